"""The columns of an episode: their names, and what may stand in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from kl_proteus import _checks

__all__ = ["CHECKS", "NAMES", "check_bool", "check_index", "floats", "sum_is_finite"]

_KEY_LIMIT = 1 << 128


def check_bool(name: str, value: object) -> None:
    """Refuse what is no bool; `name` is the field."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {value!r} ({type(value).__name__})")


def check_index(value: object) -> None:
    """Refuse what is no index of an episode."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"episode must be an int, got {value!r} ({type(value).__name__})")
    if value < 0:
        raise ValueError(f"episode must be >= 0, got {value}")


def _entries(name: str, values: object) -> tuple[object, ...]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise TypeError(f"{name} must be a sequence, got {values!r} ({type(values).__name__})")
    return tuple(cast("Sequence[object]", values))


def _texts(name: str, values: object) -> tuple[str, ...]:
    entries = cast("tuple[str, ...]", _entries(name, values))
    try:
        # All at once; only a failure pays for finding out where.
        "".join(entries).encode("utf-8")
    except (TypeError, UnicodeEncodeError):
        for index, entry in enumerate(entries):
            _checks.text(f"{name}[{index}]", entry)
    return entries


def _visible_texts(name: str, values: object) -> tuple[str, ...]:
    entries = _texts(name, values)
    if not all(map(str.strip, entries)):
        for index, entry in enumerate(entries):
            _checks.text(f"{name}[{index}]", entry, blank=False)
    return entries


def _keys(name: str, values: object) -> tuple[str, ...]:
    keys = _texts(name, values)
    for index, key in enumerate(keys):
        # One spelling per cell, so that keys can be compared as text.
        decimal = key.isascii() and key.isdigit() and len(key) < 40
        if not decimal or int(key) >= _KEY_LIMIT or (key[0] == "0" and key != "0"):
            raise ValueError(f"{name}[{index}] must be a decimal number below 2**128, got {key!r}")
    return keys


def sum_is_finite(numbers: Iterable[float]) -> bool:
    """Whether all the numbers are certainly finite; False asks for a look at each of them."""
    try:
        return math.isfinite(sum(numbers))
    except (TypeError, OverflowError):
        return False


def floats(name: str, values: object) -> tuple[float, ...]:
    """Return a column of finite floats; `name` is the field."""
    entries = _entries(name, values)
    if all(type(entry) is float for entry in entries):
        exact = cast("tuple[float, ...]", entries)
        if sum_is_finite(exact):
            return exact
    return tuple(_checks.finite(f"{name}[{index}]", entry) for index, entry in enumerate(entries))


CHECKS: dict[str, Callable[[str, object], tuple[str, ...] | tuple[float, ...]]] = {
    "observation_texts": _texts,
    "action_texts": _visible_texts,
    "observation_keys": _keys,
    "action_keys": _keys,
    "base_rewards": floats,
    "shaped_rewards": floats,
    "kl_penalties": floats,
    "kl_bonuses": floats,
    "kl_divergences": floats,
    "kl_observations": floats,
    "kl_policies": floats,
}
"""Per column, in the order of the fields of a step, what checks and converts it to a tuple."""

NAMES = tuple(CHECKS)
"""Names of the columns."""
