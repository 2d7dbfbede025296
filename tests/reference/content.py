"""The canonical bytes of a value without axes, and the digits of their hash."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash


def canonical(value: Any) -> bytes:
    """Numbers by value, an array as the sequence of its rows, a mapping without an order."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if value is None:
        return b"n"
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return b"s" + length(text) + text
    if isinstance(value, bytes | bytearray):
        return b"b" + length(value) + bytes(value)
    if isinstance(value, tuple | list):
        return b"l" + length(value) + b"".join(map(canonical, value))
    if isinstance(value, Mapping):
        entries = sorted((canonical(key), canonical(inner)) for key, inner in value.items())
        return b"m" + length(entries) + b"".join(key + inner for key, inner in entries)
    if isinstance(value, int | float):
        return number(value)
    raise TypeError(f"{value!r} has no canonical form")


def length(value: Any) -> bytes:
    """A length as u64, little-endian."""
    return len(value).to_bytes(8, "little")


def number(x: int | float) -> bytes:
    """Whole numbers of 128 bits as integers, all others as float64."""
    if math.isnan(x):
        raise ValueError("NaN has no canonical form")
    if math.isfinite(x) and x == math.floor(x) and (isinstance(x, int) or abs(x) < 2.0**127):
        return b"i" + int(x).to_bytes(16, "little", signed=True)
    return b"f" + np.array(x, "<f8").tobytes()


def digits(value: Any) -> list[int]:
    """The hash as four digits of base 2^32, the most significant first."""
    digest = xxhash.xxh3_128_intdigest(canonical(value))
    return [digest >> shift & 0xFFFFFFFF for shift in (96, 64, 32, 0)]
