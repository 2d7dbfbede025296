"""The wrapper of single environments, held to the checklist S1-S16 of a well-behaved wrapper."""
