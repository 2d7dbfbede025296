"""Observations and actions as text, and text as actions."""
