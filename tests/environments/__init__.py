"""The wrapper of single environments."""
