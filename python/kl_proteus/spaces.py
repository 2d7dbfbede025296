"""Which axes a Gymnasium space has."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from gymnasium import spaces

from kl_proteus._core import Layout

Side: TypeAlias = float | None | Sequence[float | None]
"""One side of a range: a number, one per axis, or None for "no bound"."""
Bins: TypeAlias = int | Sequence[int]
"""In-range bins: a number, or one per axis."""

MOST_BINS = 2**31 - 1
MOST_IMAGE_SCALARS = 64


@dataclass(frozen=True)
class _Leaf:
    name: str
    space: spaces.Space[Any]
    size: int


def _children(space: spaces.Space[Any], name: str) -> list[tuple[Any, str, spaces.Space[Any]]]:
    """Key, name and space of what a composite space holds, in its own order."""
    if isinstance(space, spaces.Tuple):
        return [(i, f"{name}[{i}]", inner) for i, inner in enumerate(space.spaces)]
    if isinstance(space, spaces.Dict):
        return [(key, f"{name}[{key!r}]", inner) for key, inner in space.spaces.items()]
    return []


def _leaves(space: spaces.Space[Any], name: str) -> Iterator[_Leaf]:
    if isinstance(space, spaces.Tuple | spaces.Dict):
        for _, inner_name, inner in _children(space, name):
            yield from _leaves(inner, inner_name)
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        yield _Leaf(name, space, math.prod(space.shape or ()))
    else:
        raise TypeError(
            f"{name} is a {type(space).__name__} space, which has no bins; "
            "give encoder= a function that returns a 1-D array for an observation"
        )


def axis_bins(bins: Bins, width: int | None, option: str) -> list[int]:
    """One number of bins per axis.

    Args:
        bins: A number, or one per axis.
        width: Number of axes; None where it is not known yet, and a single number gives `[bins]`.
        option: The argument's name, for messages.

    Raises:
        TypeError: A number of bins is no integer.
        ValueError: One is outside 1 to 2^31 - 1, or the length is not `width`.
    """
    if isinstance(bins, str | bytes) or not isinstance(bins, Sequence | np.ndarray):
        listed: list[Any] = [bins] * (1 if width is None else width)
        one = True
    else:
        listed, one = list(cast("Sequence[Any]", bins)), False
    if not one and width is not None and len(listed) != width:
        raise ValueError(
            f"{option} must be one number or one per axis ({width} here), got {len(listed)}"
        )
    checked: list[int] = []
    # One value stands for all of them, so look at it even where there is no axis.
    for value in listed if listed or not one else [bins]:
        if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
            raise TypeError(f"{option} must hold integers, got {value!r}")
        number = int(value)
        if not 1 <= number <= MOST_BINS:
            raise ValueError(f"{option} must be from 1 to 2**31 - 1, got {number}")
        checked.append(number)
    return checked[: len(listed)]


def _bounds(side: Side, width: int, option: str, unbounded: float) -> list[float]:
    if isinstance(side, Sequence | np.ndarray) and not isinstance(side, str | bytes):
        listed = list(side)
        if len(listed) != width:
            raise ValueError(
                f"{option} must hold a number or one per axis ({width} here) on each side, "
                f"got {len(listed)}"
            )
    else:
        listed = [side] * width
    bounds: list[float] = []
    for value in listed:
        if value is None:
            bounds.append(unbounded)
            continue
        if isinstance(value, bool | str | bytes):
            raise TypeError(f"{option} must hold numbers or None, got {value!r}")
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"{option} must hold numbers or None, got {value!r}") from None
        if math.isnan(number):
            raise ValueError(f"{option} must hold numbers or None, got nan")
        bounds.append(unbounded if math.isinf(number) else number)
    return bounds


def _range(
    value_range: tuple[Side, Side] | Sequence[Side], width: int, option: str
) -> tuple[list[float], list[float]]:
    if (
        isinstance(value_range, str | bytes)
        or not isinstance(value_range, Sequence | np.ndarray)
        or len(value_range) != 2
    ):
        raise ValueError(f"{option} must be (low, high), got {value_range!r}")
    low = _bounds(value_range[0], width, option, -math.inf)
    high = _bounds(value_range[1], width, option, math.inf)
    for i, (lower, upper) in enumerate(zip(low, high, strict=True)):
        if lower > upper:
            raise ValueError(f"{option} must have low <= high, got {lower} > {upper} on axis {i}")
    return low, high


@dataclass
class _Builder:
    """Hands out the per-axis options while it walks a space."""

    bins: list[int]
    bounds: tuple[list[float], list[float]] | None
    scale: float
    next_axis: int = 0

    def build(self, space: spaces.Space[Any], name: str) -> Layout:
        if isinstance(space, spaces.Tuple):
            return Layout.of_tuple(
                name, [self.build(inner, at) for _, at, inner in _children(space, name)]
            )
        if isinstance(space, spaces.Dict):
            return Layout.of_dict(
                name, [(str(key), self.build(inner, at)) for key, at, inner in _children(space, name)]
            )
        shape = list(space.shape or ())
        size = math.prod(shape)
        axes = slice(self.next_axis, self.next_axis + size)
        self.next_axis += size
        if isinstance(space, spaces.Discrete):
            return Layout.categories(name, [], [int(space.start)], [int(space.n)])
        if isinstance(space, spaces.MultiDiscrete):
            sizes = np.ravel(space.nvec)
            # Absent before the space learned to start elsewhere than at 0.
            starts = np.ravel(getattr(space, "start", np.zeros_like(sizes)))
            return Layout.categories(name, shape, _ints(starts), _ints(sizes))
        if isinstance(space, spaces.MultiBinary):
            return Layout.categories(name, shape, [0] * size, [2] * size)
        assert isinstance(space, spaces.Box)
        low, high = (
            (bound[axes] for bound in self.bounds)
            if self.bounds is not None
            else (np.ravel(bound).astype(np.float64).tolist() for bound in (space.low, space.high))
        )
        build = Layout.real if np.dtype(space.dtype).kind == "f" else Layout.integer
        return build(
            name,
            shape,
            low,
            high,
            self.bins[axes],
            scale=self.scale,
            declared=self.bounds is None,
        )


def _ints(values: np.ndarray[Any, Any]) -> list[int]:
    return [int(value) for value in values]


def layout_from_space(
    space: spaces.Space[Any],
    name: str = "observation",
    *,
    bins: Bins = 10,
    value_range: tuple[Side, Side] | Sequence[Side] | None = None,
    scale: float = 1.0,
    normalized: bool = False,
    option: str = "obs",
) -> Layout:
    """The axes of a space.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, and Tuple and Dict of them.
        name: How messages call a value of it.
        bins: In-range bins, a number or one per axis in walk order; ignored where each value has
            its own bin.
        value_range: (low, high) in place of the declared bounds, each side a number or one per axis
            in walk order; None or an infinity is no bound.
        scale: The `s` of the maps of unbounded axes, in units of the value.
        normalized: The values already lie in [0, 1].
        option: The prefix of the arguments' names, for messages.

    Raises:
        TypeError: A space without axes, or an option of another type.
        ValueError: An option out of its range, or an image that needs an encoder.
    """
    leaves = list(_leaves(space, name))
    for leaf in leaves:
        inner = leaf.space
        if (
            name == "observation"
            and isinstance(inner, spaces.Box)
            and np.dtype(inner.dtype).kind in "iub"
            and len(inner.shape) >= 2
            and leaf.size > MOST_IMAGE_SCALARS
        ):
            raise ValueError(
                f"{leaf.name} is an image of {leaf.size} integers, and one axis for each would "
                "make every observation a cell of its own; give encoder= a function that returns "
                "a 1-D array for an observation"
            )
    width = sum(leaf.size for leaf in leaves)
    if normalized:
        if value_range is not None:
            raise ValueError(
                f"{option}_range and normalize_{option}=False both set the range; give one of them"
            )
        value_range = (0.0, 1.0)
    bounds = None if value_range is None else _range(value_range, width, f"{option}_range")
    return _Builder(axis_bins(bins, width, f"{option}_bins"), bounds, scale).build(space, name)
