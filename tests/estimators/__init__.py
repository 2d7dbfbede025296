"""Estimates of the divergence of language models, held to their slow twin and to known numbers."""
