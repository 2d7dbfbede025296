"""What environments are about, in words, with names for their values and actions."""
