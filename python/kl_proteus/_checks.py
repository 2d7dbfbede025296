"""Checks that several modules of this package make of their arguments."""

from __future__ import annotations

import math
import os
from numbers import Real
from pathlib import Path
from typing import cast


def real_number(
    name: str,
    value: object,
    *,
    minimum: float,
    maximum: float = math.inf,
    above_minimum: bool = False,
) -> float:
    """Return ``value`` as a float after checking its type and its range.

    Args:
        name: Name of the argument, for the message.
        value: What arrived. A ``bool`` is refused: it is nearly always a misplaced flag.
        minimum: Smallest legal value.
        maximum: Largest legal value.
        above_minimum: Whether ``minimum`` itself is refused.

    Returns:
        The value as a Python float; always finite.

    Raises:
        TypeError: If ``value`` is not a real number.
        ValueError: If ``value`` is NaN, infinite or outside the range.
    """
    number = finite(name, value)
    in_range = number > minimum if above_minimum else number >= minimum
    if not (in_range and number <= maximum):
        expected = f"{'>' if above_minimum else '>='} {minimum:g}"
        if math.isfinite(maximum):
            expected += f" and <= {maximum:g}"
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    # Turns -0.0 into 0.0.
    return number + 0.0


def finite(name: str, value: object) -> float:
    """Return ``value`` as a float after checking that it is a finite real number.

    Args:
        name: Name of the argument or field, for the message.
        value: What arrived. A ``bool`` is refused: it is nearly always a misplaced flag.

    Returns:
        The value as a Python float.

    Raises:
        TypeError: If ``value`` is not a real number.
        ValueError: If ``value`` is NaN, infinite or too large for a float.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a real number, got {value!r} ({type(value).__name__})")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return number


def text(name: str, value: object, *, blank: bool = True) -> str:
    """Return ``value`` after checking that it is text a UTF-8 file can hold.

    Args:
        name: Name of the argument or field, for the message.
        value: What arrived.
        blank: Whether text without any visible character is legal.

    Returns:
        The text itself.

    Raises:
        TypeError: If ``value`` is not a ``str``.
        ValueError: If it holds a lone surrogate, or is blank where that is not legal.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {value!r} ({type(value).__name__})")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{name} must be text that UTF-8 can encode, got the lone surrogate "
                f"{value[error.start]!a} at position {error.start}"
            ) from None
    if not blank and not value.strip():
        raise ValueError(f"{name} must hold at least one visible character, got {value!r}")
    return value


def path(name: str, value: object, what: str) -> Path:
    """Return ``value`` as a path after checking that it can be one.

    Args:
        name: Name of the argument, for the message.
        value: What arrived; text or an object with ``__fspath__``.
        what: What the path is of, for the message: ``"a file"`` or ``"a directory"``.

    Returns:
        The path; nothing says that it exists.

    Raises:
        TypeError: If ``value`` is not a path.
        ValueError: If it is empty or holds a null character.
    """
    text: object = os.fspath(cast(Path, value)) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a path, got {text!r} ({type(text).__name__})")
    if not text or "\0" in text:
        raise ValueError(f"{name} must be the path of {what}, got {text!r}")
    return Path(text)
