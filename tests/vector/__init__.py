"""The wrappers of vector environments."""
