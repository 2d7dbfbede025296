"""Digits to one key: mixed radix where it fits 128 bits, else a hash."""

import math

from .rows import Axis

BITS = 128


def fits(axes: list[Axis]) -> bool:
    """Whether every key of these axes fits."""
    return math.prod(axis.extent for axis in axes) <= 2**BITS


def mixed_radix(axes: list[Axis], digits: tuple[int, ...]) -> int:
    """The first axis is the most significant."""
    key = 0
    for axis, digit in zip(axes, digits, strict=True):
        key = key * axis.extent + digit
    return key


def hashed_bytes(digits: tuple[int, ...]) -> bytes:
    """What is hashed where the keys do not fit: little-endian u32 digits."""
    return b"".join(digit.to_bytes(4, "little") for digit in digits)
