"""Trajectories as fine-tuning data for language models."""
