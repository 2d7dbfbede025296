"""Spaces to axes and values to digits, walked in the order of the space."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from . import content, rows
from .rows import Axis

USABLE = 1e6
WITH_AXES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def leaves(space: Space) -> Iterator[Space]:
    """The leaves of a nested space."""
    if isinstance(space, spaces.Tuple):
        for child in space.spaces:
            yield from leaves(child)
    elif isinstance(space, spaces.Dict):
        for child in space.spaces.values():
            yield from leaves(child)
    else:
        yield space


def scalars(space: Space, value: Any) -> Iterator[float | int]:
    """The scalars of a value, one for each axis."""
    if isinstance(space, spaces.Tuple):
        for child, part in zip(space.spaces, value, strict=True):
            yield from scalars(child, part)
    elif isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            yield from scalars(child, value[key])
    elif isinstance(space, spaces.Discrete):
        yield np.asarray(value).item()
    elif not isinstance(space, WITH_AXES):
        yield from content.digits(value)
    else:
        array = np.asarray(value)
        if array.shape != space.shape:
            raise ValueError(f"expected the shape {space.shape}, got {array.shape}")
        yield from array.ravel().tolist()


def width(space: Space) -> int:
    """The number of axes."""
    return sum(
        1
        if isinstance(leaf, spaces.Discrete) or not isinstance(leaf, WITH_AXES)
        else math.prod(leaf.shape)
        for leaf in leaves(space)
    )


def usable(bound: float | int) -> bool:
    """Whether a bound that the space declares is taken at its word."""
    return math.isfinite(bound) and abs(bound) <= USABLE


def box_axis(low: Any, high: Any, integer: bool, n: int, scale: float) -> Axis:
    """The axis of one scalar of a Box; None is no bound."""
    if low is not None and high is not None and math.isinf(float(high) - float(low)):
        low = high = None
    if low is None and high is None:
        return rows.unbounded(n, scale)
    if high is None:
        return rows.lower_bounded(float(low), n, scale)
    if low is None:
        return rows.upper_bounded(float(high), n, scale)
    if low > high:
        raise ValueError(f"low {low} is above high {high}")
    if integer and float(low).is_integer() and float(high).is_integer():
        return rows.whole_numbers(int(low), int(high), n)
    if low == high:
        return rows.degenerate(float(low))
    return rows.regular(float(low), float(high), n)


def spread(setting: Any, axes: int) -> list[Any]:
    """A setting that is one for all axes or one for each, as one for each."""
    if setting is None or np.ndim(setting) == 0:
        return [setting] * axes
    if len(setting) != axes:
        raise ValueError(f"expected {axes} values, got {len(setting)}")
    return list(setting)


def overrides(value_range: Any, axes: int) -> list[tuple[Any, Any]]:
    """An explicit range as one pair for each axis; a side that is not finite is no bound."""
    sides = [
        [None if side is None or math.isinf(side) else side for side in spread(sides, axes)]
        for sides in value_range
    ]
    return list(zip(*sides, strict=True))


def declared_bounds(space: spaces.Box) -> Iterator[tuple[Any, Any]]:
    """The bounds of a Box, None where a bound is not usable."""
    for low, high in zip(space.low.ravel().tolist(), space.high.ravel().tolist(), strict=True):
        yield (low if usable(low) else None), (high if usable(high) else None)


def axes_of(
    space: Space,
    bins: Any = 10,
    value_range: Any = None,
    scale: float = 1.0,
    normalized: bool = False,
) -> list[Axis]:
    """Every axis of a space; `normalized` is the range (0, 1)."""
    count = width(space)
    if normalized:
        if value_range is not None:
            raise ValueError("a range for values that already lie in [0, 1]")
        value_range = (0, 1)
    sizes = iter(spread(bins, count))
    explicit = iter([None] * count if value_range is None else overrides(value_range, count))
    axes: list[Axis] = []
    for leaf in leaves(space):
        if isinstance(leaf, spaces.Box):
            integer = not np.issubdtype(leaf.dtype, np.floating)
            for bounds in declared_bounds(leaf):
                low, high = next(explicit) or bounds
                axes.append(box_axis(low, high, integer, int(next(sizes)), scale))
            continue
        if not isinstance(leaf, WITH_AXES):
            next(sizes), next(explicit)
            # The hash of a content is four digits of base 2^32.
            axes.extend([rows.category(0, 2**32)] * 4)
            continue
        for start, n in categories(leaf):
            next(sizes), next(explicit)
            axes.append(rows.category(start, n))
    return axes


def categories(leaf: Space) -> Iterator[tuple[int, int]]:
    """The first value and the number of values of each axis of a leaf that is not a Box."""
    if isinstance(leaf, spaces.Discrete):
        yield int(leaf.start), int(leaf.n)
    elif isinstance(leaf, spaces.MultiDiscrete):
        yield from zip(leaf.start.ravel().tolist(), leaf.nvec.ravel().tolist(), strict=True)
    elif isinstance(leaf, spaces.MultiBinary):
        for _ in range(math.prod(leaf.shape)):
            yield 0, 2
    else:
        raise TypeError(f"the twin has no axes for {leaf}")


def digits_of(space: Space, axes: list[Axis], value: Any) -> tuple[int, ...]:
    """The digits of a value."""
    digits = []
    for axis, x in zip(axes, scalars(space, value), strict=True):
        if isinstance(x, float) and math.isnan(x):
            raise ValueError("NaN has no bin")
        if axis.integer and isinstance(x, float) and math.isfinite(x) and not x.is_integer():
            raise ValueError(f"{x} is not a whole number")
        digits.append(axis.digit(x))
    return tuple(digits)
