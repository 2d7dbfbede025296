"""The drift tracker, held to its slow twin."""
