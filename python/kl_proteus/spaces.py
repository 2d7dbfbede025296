"""Which axes a Gymnasium space has."""

import copy
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kl_proteus._core import Layout
from kl_proteus.encoders import ArrayEncoder, ArrayLeaf, choose
from kl_proteus.encoders.automatic import MOST_PLAIN_INTEGERS

Side: TypeAlias = float | Sequence[float | None] | NDArray[Any] | None
"""One side of a range: a number, one per axis, or None for "no bound"."""
Range: TypeAlias = Sequence[Side] | NDArray[Any]
"""(low, high)."""
Bins: TypeAlias = int | Sequence[int] | NDArray[np.integer[Any]]
"""In-range bins: a number, or one per axis."""

LEAF_SPACES: tuple[type[spaces.Space[Any]], ...] = (
    spaces.Box,
    spaces.Discrete,
    spaces.MultiDiscrete,
    spaces.MultiBinary,
)
MOST_BINS = 2**31 - 1
# Readers of JSON, which saved layouts are, stop at some depth.
DEEPEST_NESTING = 32


@dataclass(frozen=True)
class _Leaf:
    name: str
    space: spaces.Space[Any]
    size: int


def _children(
    space: spaces.Space[Any], name: str
) -> list[tuple[str, str, spaces.Space[Any]]] | None:
    """Key, name and space of what a composite space holds, in its own order; None for a leaf."""
    if isinstance(space, spaces.Tuple):
        items = cast("spaces.Tuple[Any]", space).spaces
        return [(str(i), f"{name}[{i}]", inner) for i, inner in enumerate(items)]
    if not isinstance(space, spaces.Dict):
        return None
    children: list[tuple[str, str, spaces.Space[Any]]] = []
    for key, inner in cast("dict[Any, spaces.Space[Any]]", space.spaces).items():
        # Gymnasium takes any key.
        if not isinstance(key, str):
            raise TypeError(f"{name} is a Dict space with the key {key!r}; expected strings")
        children.append((key, f"{name}[{key!r}]", inner))
    return children


def _leaves(space: spaces.Space[Any], name: str, depth: int = 0) -> Iterator[_Leaf]:
    if depth > DEEPEST_NESTING:
        raise ValueError(f"{name} lies in more than {DEEPEST_NESTING} nested spaces")
    children = _children(space, name)
    if children is not None:
        for _, inner_name, inner in children:
            yield from _leaves(inner, inner_name, depth + 1)
    elif isinstance(space, LEAF_SPACES):
        yield _Leaf(name, space, math.prod(space.shape or ()))
    else:
        # Text, Sequence, Graph, OneOf and spaces of other libraries: the hash of the content.
        yield _Leaf(name, space, 1)


def _items(value: Any) -> list[Any] | None:
    """What a sequence or array holds; None for a single value."""
    if isinstance(value, np.ndarray):
        value = cast("NDArray[Any]", value).tolist()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return list(cast("Sequence[Any]", value))
    return None


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
    items = _items(bins)
    if items is None:
        # It is looked at even where there is no axis.
        return [_number_of_bins(bins, option)] * (1 if width is None else width)
    if width is not None and len(items) != width:
        raise ValueError(
            f"{option} must be one number or one per axis ({width} here), got {len(items)}"
        )
    return [_number_of_bins(value, option) for value in items]


def _number_of_bins(value: Any, option: str) -> int:
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{option} must hold integers, got {value!r}")
    if not 1 <= number <= MOST_BINS:
        raise ValueError(f"{option} must be from 1 to 2**31 - 1, got {number}")
    return number


def _bounds(side: Any, width: int, option: str, unbounded: float) -> list[float]:
    items = _items(side)
    if items is None:
        return [_bound(side, option, unbounded)] * width
    if len(items) != width:
        raise ValueError(
            f"{option} must hold a number or one per axis ({width} here) on each side, "
            f"got {len(items)}"
        )
    return [_bound(value, option, unbounded) for value in items]


def _bound(value: Any, option: str, unbounded: float) -> float:
    if value is None:
        return unbounded
    try:
        if isinstance(value, bool | np.bool_ | str | bytes):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{option} must hold numbers or None, got {value!r}") from None
    except OverflowError:
        raise ValueError(f"{option} must hold numbers that fit 64 bits, got {value}") from None
    if math.isnan(number):
        raise ValueError(f"{option} must hold numbers or None, got nan")
    return unbounded if math.isinf(number) else number


def _range(value_range: Range, width: int, option: str) -> tuple[list[float], list[float]]:
    sides = _items(value_range)
    if sides is None:
        raise TypeError(f"{option} must be (low, high), got {value_range!r}")
    if len(sides) != 2:
        raise ValueError(f"{option} must be (low, high), got {len(sides)} items")
    low = _bounds(sides[0], width, option, -math.inf)
    high = _bounds(sides[1], width, option, math.inf)
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
    encoders: dict[str, ArrayEncoder]
    next_axis: int = 0

    def build(self, space: spaces.Space[Any], name: str) -> Layout:
        children = _children(space, name)
        if children is not None:
            parts = [(key, self.build(inner, at)) for key, at, inner in children]
            if isinstance(space, spaces.Dict):
                return Layout.of_dict(name, parts)
            return Layout.of_tuple(name, [part for _, part in parts])
        if not isinstance(space, LEAF_SPACES):
            self.next_axis += 1
            return _content_layout(space, name)
        shape = list(space.shape or ())
        size = math.prod(shape)
        axes = slice(self.next_axis, self.next_axis + size)
        self.next_axis += size
        if isinstance(space, spaces.Discrete):
            return Layout.categories(name, [], [int(space.start)], [int(space.n)])
        if isinstance(space, spaces.MultiDiscrete):
            multi = cast("spaces.MultiDiscrete[Any]", space)
            return Layout.categories(name, shape, _ints(multi.start), _ints(multi.nvec))
        if isinstance(space, spaces.MultiBinary):
            return Layout.categories(name, shape, [0] * size, [2] * size)
        assert isinstance(space, spaces.Box)
        leaf = replace(
            ArrayLeaf.of_space(cast("spaces.Box[Any]", space), name),
            bins=self.bins[axes],
            scale=self.scale,
        )
        if self.bounds is not None:
            low, high = (bound[axes] for bound in self.bounds)
            leaf = replace(leaf, low=low, high=high, declared=False)
        encoder = self.encoders.get(name)
        return leaf.plain() if encoder is None else encoder.layout(leaf)


def _content_layout(space: spaces.Space[Any], name: str) -> Layout:
    layout = Layout.content(name)
    try:
        # A copy, because sampling moves the generator of the space.
        sample = copy.deepcopy(space).sample()
    except Exception:  # a space of another library may refuse to be sampled
        return layout
    layout.key(sample)
    return layout


def _ints(values: NDArray[Any]) -> list[int]:
    return [int(value) for value in np.ravel(values)]


def layout_from_space(
    space: spaces.Space[Any],
    name: str = "observation",
    *,
    bins: Bins = 10,
    value_range: Range | None = None,
    scale: float = 1.0,
    normalized: bool = False,
    option: str = "obs",
) -> Layout:
    """The axes of a space.

    Args:
        space: Any Gymnasium space. Box, Discrete, MultiDiscrete and MultiBinary have an axis for
            each scalar; Tuple and Dict have those of what they hold; Text, Sequence, Graph, OneOf
            and custom spaces have one axis, whose cells are hashes of the canonical content.
        name: How messages call a value of it.
        bins: In-range bins, a number or one per axis in walk order; ignored where each value has
            its own bin.
        value_range: (low, high) in place of the declared bounds, each side a number or one per axis
            in walk order; None or an infinity is no bound.
        scale: The `s` of the maps of unbounded axes, in units of the value.
        normalized: The values already lie in [0, 1].
        option: The prefix of the arguments' names, for messages.

    Raises:
        TypeError: A custom space whose values have no canonical form, or an option of another type.
        ValueError: An option out of its range, or an image that needs an encoder.
    """
    return _layout(space, name, bins, value_range, scale, normalized, option, {})


def encoded_layout(
    space: spaces.Space[Any],
    encoder: ArrayEncoder | None,
    *,
    bins: Bins = 10,
    value_range: Range | None = None,
    scale: float = 1.0,
    normalized: bool = False,
) -> tuple[Layout, str | None]:
    """The axes of an observation space whose arrays are encoded.

    Args:
        space: The space of the observation.
        encoder: Encodes every array that it takes; None chooses one for each array that needs it.
        bins: As for `layout_from_space`; one number for all axes where `encoder` is given.
        value_range: As there; it bounds what is encoded.
        scale: As there.
        normalized: As there.

    Returns:
        The axes, and the name under which snapshots record the encoders: None without any.

    Raises:
        TypeError: As `layout_from_space`.
        ValueError: As `layout_from_space`, or the encoder takes no array of the space.
    """
    arrays = [
        ArrayLeaf.of_space(cast("spaces.Box[Any]", leaf.space), leaf.name)
        for leaf in _leaves(space, "observation")
        if isinstance(leaf.space, spaces.Box)
    ]
    if encoder is None:
        # Bins or bounds for each axis are meant for the axes that the space has.
        own_axes = _items(bins) is not None or value_range is not None or normalized
        encoders = choose(arrays, project=not own_axes)
    else:
        if _items(bins) is not None:
            raise ValueError("obs_bins must be one number with a built-in encoder, got a list")
        encoders = {leaf.name: encoder for leaf in arrays if encoder.takes(leaf)}
        if not encoders:
            raise ValueError(f"encoder {encoder!r} takes no array of the observation space {space}")
    layout = _layout(space, "observation", bins, value_range, scale, normalized, "obs", encoders)
    named = [
        # What the text leaves out (shape and bounds) is in the hash.
        f"{name}: {encoders[name]!r} {fingerprint[:8]}"
        for name, fingerprint in layout.encoded_leaves
    ]
    return layout, "; ".join(named) or None


def _layout(
    space: spaces.Space[Any],
    name: str,
    bins: Bins,
    value_range: Range | None,
    scale: float,
    normalized: bool,
    option: str,
    encoders: dict[str, ArrayEncoder],
) -> Layout:
    leaves = list(_leaves(space, name))
    for leaf in leaves:
        inner = leaf.space
        if (
            name == "observation"
            and leaf.name not in encoders
            and isinstance(inner, spaces.Box)
            and np.dtype(cast("spaces.Box[Any]", inner).dtype).kind in "iub"
            and len(inner.shape) >= 2
            and leaf.size > MOST_PLAIN_INTEGERS
        ):
            raise ValueError(
                f"{leaf.name} is an image of {leaf.size} integers, and one axis for each would "
                'make every observation a cell of its own; give encoder="auto", or a function that '
                "returns a 1-D array for an observation"
            )
    width = sum(leaf.size for leaf in leaves)
    if normalized:
        if value_range is not None:
            raise ValueError(
                f"{option}_range and normalize_{option}=False both set the range; give one of them"
            )
        value_range = (0.0, 1.0)
    bounds = None if value_range is None else _range(value_range, width, f"{option}_range")
    builder = _Builder(axis_bins(bins, width, f"{option}_bins"), bounds, scale, encoders)
    return builder.build(space, name)
