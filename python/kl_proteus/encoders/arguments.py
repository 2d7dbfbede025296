"""Checks of the arguments of encoders."""

import operator
from typing import Any

__all__ = ["integer", "positive"]


def integer(name: str, value: Any, least: int, most: int) -> None:
    """Refuses what is no integer from `least` to `most`."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if not least <= number <= most:
        raise ValueError(f"{name} must be from {least} to {most}, got {number}")


def positive(name: str, value: Any, most: float) -> None:
    """Refuses what is no number from 1e-6 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 1e-6 <= value <= most:
        raise ValueError(f"{name} must be from 1e-6 to {most:g}, got {value}")
