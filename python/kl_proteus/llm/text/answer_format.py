"""Which answers are legal, in words: the part of a prompt that says how to write an action."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from kl_proteus.llm.tasks.quantities import Quantity, each_quantity
from kl_proteus.llm.text.wording import printable, quoted, rounded, shortest

__all__ = ["describe_box", "describe_integers", "describe_text"]

_LISTED = 16
"""Up to this many values with bounds of their own are listed one by one."""

_CHARACTERS = 100
"""Up to this many characters of a charset are listed."""


def describe_box(space: spaces.Box, quantities: tuple[Quantity, ...], path: str) -> str:
    """Describe the legal values of a Box.

    Args:
        space: The space.
        quantities: What its values are, for one-dimensional spaces with as many values.
        path: What to call a value that has bounds of its own and no name.

    Returns:
        A phrase such as "one number between -2 and 2: torque (N m)".
    """
    noun = "number" if space.dtype.kind == "f" else "integer"
    ranges = _box_ranges(space)
    named = len(quantities) == len(ranges)
    if len(ranges) == 1:
        return f"one {noun}{ranges[0]}" + (f": {quantities[0]}" if named else "")
    head = f"{_array_of(space.shape)} {noun}s"
    if len(set(ranges)) <= 1:
        each = f", each{ranges[0]}" if ranges and ranges[0] else ""
        return head + each + (f": {each_quantity(quantities)}" if named else "")
    if len(ranges) > _LISTED:
        low, high = _number(space.low.min()), _number(space.high.max())
        return f"{head}, each within bounds of its own, all of them between {low} and {high}"
    names = map(str, quantities) if named else _item_names(path, space.shape)
    return f"{head}: " + ", ".join(n + r for n, r in zip(names, ranges, strict=True))


def describe_integers(low: npt.NDArray[Any], high: npt.NDArray[Any]) -> str:
    """Describe the legal values of a MultiDiscrete or MultiBinary space.

    Args:
        low: The smallest value of each integer.
        high: The largest value of each integer, in the same shape.

    Returns:
        A phrase such as "a JSON array of 2 integers, from 0 to 4 and from 0 to 1".
    """
    pairs = zip(low.ravel().tolist(), high.ravel().tolist(), strict=True)
    ranges = [f"from {a} to {b}" for a, b in pairs]
    if len(ranges) == 1:
        return f"one integer {ranges[0]}"
    head = f"{_array_of(low.shape)} integers"
    if len(set(ranges)) == 1:
        return f"{head}, each {ranges[0]}"
    if len(ranges) > _LISTED:
        return (
            f"{head}, each within bounds of its own, all of them from {low.min()} to {high.max()}"
        )
    return f"{head}, {', '.join(ranges[:-1])} and {ranges[-1]}"


def describe_text(space: spaces.Text) -> str:
    """Describe the legal values of a Text space, such as "a JSON string of 1 to 5 characters"."""
    if space.min_length == space.max_length:
        length = str(space.max_length)
    else:
        length = f"{space.min_length} to {space.max_length}"
    characters = space.characters
    of = f" out of {quoted(printable(characters))}" if len(characters) <= _CHARACTERS else ""
    return f"a JSON string of {length} characters{of}"


def _item_names(path: str, shape: tuple[int, ...]) -> list[str]:
    indices = np.ndindex(*shape)
    return [f"{path}[{', '.join(map(str, index))}]" for index in indices]


def _array_of(shape: tuple[int, ...]) -> str:
    if len(shape) == 1:
        return f"a JSON array of {shape[0]}"
    return f"a nested JSON array of shape {'x'.join(map(str, shape))} of"


def _box_ranges(space: spaces.Box) -> list[str]:
    bounds = zip(
        space.low.ravel(),
        space.high.ravel(),
        space.bounded_below.ravel().tolist(),
        space.bounded_above.ravel().tolist(),
        strict=True,
    )
    return [_range(low, high, below, above) for low, high, below, above in bounds]


def _range(low: Any, high: Any, below: bool, above: bool) -> str:
    if below and above:
        return f" between {_number(low)} and {_number(high)}"
    if below:
        return f" of at least {_number(low)}"
    return f" of at most {_number(high)}" if above else ""


def _number(value: Any) -> str:
    if value.dtype.kind == "f":
        return shortest(cast("np.floating[Any]", value + 0))  # a bound of -0.0 reads 0
    return rounded(value.item())
