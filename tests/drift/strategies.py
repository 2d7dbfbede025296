"""Random spaces, settings and streams of pairs, small enough to recompute at every step."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from hypothesis import strategies as st

from reference.axes import axes_of, width
from reference.rows import Axis

FLOATS = (np.float16, np.float32, np.float64)
INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
SHAPES = ((), (1,), (2,), (3,), (1, 2), (2, 2))
KINDS = ("regular", "regular", "degenerate", "lower", "upper", "none", "wide", "wider")
LAST_BINS = 2**31 - 1


def cast(values: Any, dtype: Any) -> np.ndarray:
    """An array of a dtype; what is too large for a float dtype becomes infinite."""
    with np.errstate(over="ignore"):
        return (
            np.array(values, np.float64).astype(dtype)
            if dtype in FLOATS
            else np.array(values, dtype)
        )


# Spaces -------------------------------------------------------------------------------------


@st.composite
def float_bounds(draw: st.DrawFn) -> tuple[float, float]:
    """The bounds of one scalar: regular, degenerate, half or unbounded, or finite but too wide."""
    low, high = sorted(
        draw(
            st.sampled_from([-1.0, 0.0, 1.0, 0.1, 0.7, 2.5, 1e6, -1e6])
            | st.floats(-50, 50, width=16)
        )
        for _ in range(2)
    )
    kind = draw(st.sampled_from(KINDS))
    return {
        "regular": (low, high),
        "degenerate": (low, low),
        "lower": (low, math.inf),
        "upper": (-math.inf, high),
        "none": (-math.inf, math.inf),
        "wide": (-1e10, high),
        "wider": (low, math.nextafter(math.inf, 0)),
    }[kind]


@st.composite
def integer_bounds(draw: st.DrawFn, dtype: Any) -> tuple[int, int]:
    """The bounds of one scalar: narrow, wide, one value, or up to the limits of the dtype."""
    if dtype is np.bool_:
        return draw(st.sampled_from([(0, 1), (0, 0), (1, 1)]))
    limits = np.iinfo(dtype)
    least, most = int(limits.min), int(limits.max)
    near = st.integers(max(least, -300), min(most, 300))
    low, high = sorted(draw(near) for _ in range(2))
    close = min(low + draw(st.integers(0, 12)), most)
    return draw(
        st.sampled_from([(low, high), (low, close), (low, most), (least, high), (least, most)])
    )


@st.composite
def boxes(draw: st.DrawFn, dtypes: Any = (*FLOATS, *INTEGERS, np.bool_)) -> spaces.Box:
    """A Box of any dtype with bounds of its own for each scalar."""
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(st.sampled_from(SHAPES))
    one = float_bounds() if dtype in FLOATS else integer_bounds(dtype)
    bounds = [draw(one) for _ in range(math.prod(shape))]
    low = cast([low for low, _ in bounds], dtype).reshape(shape)
    high = cast([high for _, high in bounds], dtype).reshape(shape)
    return spaces.Box(low, high, shape=shape, dtype=dtype)


@st.composite
def discretes(draw: st.DrawFn) -> spaces.Discrete:
    """A Discrete with any start."""
    return spaces.Discrete(draw(st.integers(1, 5)), start=draw(st.integers(-3, 3)))


@st.composite
def multi_discretes(draw: st.DrawFn) -> spaces.MultiDiscrete:
    """A MultiDiscrete of rank 1 or 2 with any starts."""
    shape = draw(st.sampled_from([(1,), (3,), (2, 2)]))
    size = math.prod(shape)
    nvec = np.array(draw(st.lists(st.integers(1, 4), min_size=size, max_size=size)))
    start = np.array(draw(st.lists(st.integers(-3, 3), min_size=size, max_size=size)))
    return spaces.MultiDiscrete(nvec.reshape(shape), start=start.reshape(shape))


multi_binaries = st.sampled_from([1, 3, (2, 2), 129]).map(spaces.MultiBinary)


def nested(children: st.SearchStrategy[Space]) -> st.SearchStrategy[Space]:
    """A Tuple or a Dict of the children."""
    return st.lists(children, min_size=1, max_size=3).map(
        lambda parts: spaces.Tuple(parts)
    ) | st.dictionaries(st.sampled_from("zyxab"), children, min_size=1, max_size=3).map(spaces.Dict)


leaf_spaces = boxes() | discretes() | multi_discretes() | multi_binaries
any_space = leaf_spaces | nested(leaf_spaces) | nested(leaf_spaces | nested(leaf_spaces))


# Settings of one side -----------------------------------------------------------------------

one_bins = st.integers(1, 12) | st.just(10) | st.sampled_from([1, 255, 256, LAST_BINS])
one_side = st.sampled_from([None, math.inf, -2, 0, 1, 3.5, -0.25, 100, 1e7])


@st.composite
def ranges(draw: st.DrawFn, axes: int) -> tuple[Any, Any]:
    """An explicit range: each side one for all axes or one for each, low never above high."""
    low, high = (draw(one_side | st.lists(one_side, min_size=axes, max_size=axes)) for _ in "lh")
    lows = low if isinstance(low, list) else [low] * axes
    highs = high if isinstance(high, list) else [high] * axes

    def crossed(bottom, top):
        return None not in (bottom, top) and math.inf not in (bottom, top) and bottom > top

    if any(crossed(*pair) for pair in zip(lows, highs, strict=True)):
        return low, None
    return (-math.inf if low == math.inf else low), high


@dataclass(frozen=True)
class Side:
    """A space, how it is binned, and a small pool of its values, so that cells repeat."""

    space: Space
    settings: dict[str, Any]
    pool: list[Any] = field(repr=True)

    @property
    def axes(self) -> list[Axis]:
        """The axes as the twin sees them."""
        return axes_of(self.space, **self.settings)


@st.composite
def side_settings(draw: st.DrawFn, space: Space) -> dict[str, Any]:
    """Bins, range, scale and whether the values already lie in [0, 1]."""
    axes = width(space)
    bins = draw(one_bins | st.lists(one_bins, min_size=axes, max_size=axes))
    settings: dict[str, Any] = {"bins": bins}
    kind = draw(st.sampled_from(["plain", "plain", "plain", "range", "normalized"]))
    if kind == "range":
        settings["value_range"] = draw(ranges(axes))
    settings["normalized"] = kind == "normalized"
    settings["scale"] = draw(st.just(1.0) | st.floats(1e-3, 1e3))
    return settings


# Values -------------------------------------------------------------------------------------


@st.composite
def float_scalars(draw: st.DrawFn, axis: Axis) -> float:
    """In range, out of range, on an edge or next to it, infinite."""
    low = axis.low if axis.low is not None else -2.0 if axis.high is None else axis.high - 4.0
    high = axis.high if axis.high is not None else low + 4.0
    edge = low + (high - low) * draw(st.integers(0, min(axis.size, 20))) / min(axis.size, 20)
    toward = draw(st.sampled_from([0.0, math.inf, -math.inf, edge]))
    return draw(
        st.just(math.nextafter(edge, toward))
        | st.floats(low, high)
        | st.sampled_from([math.inf, -math.inf, -0.0, 0.0, 5e-324, 1.7e308, low, high])
        | st.floats(allow_nan=False)
    )


@st.composite
def integer_scalars(draw: st.DrawFn, axis: Axis) -> int:
    """In range, out of range, on an edge."""
    low = math.ceil(axis.low) if axis.low is not None else -50
    high = math.floor(axis.high) if axis.high is not None else 50
    return draw(
        st.sampled_from([low - 1, low, high, high + 1])
        | st.integers(min(low, high) - 2, max(low, high) + 2)
    )


@st.composite
def box_values(draw: st.DrawFn, box: spaces.Box, axes: list[Axis]) -> Any:
    """A value for a Box, as an array of its dtype or a wider one, strided or not, or as lists."""
    if np.issubdtype(box.dtype, np.floating):
        numbers = [draw(float_scalars(axis)) for axis in axes]
        array = cast(numbers, draw(st.sampled_from([box.dtype.type, np.float64])))
    elif box.dtype != np.bool_ and draw(st.integers(0, 9)) == 0:
        limits = np.iinfo(box.dtype)
        array = np.full(len(axes), draw(st.sampled_from([limits.min, limits.max])), box.dtype)
    else:
        array = np.array([draw(integer_scalars(axis)) for axis in axes], np.int64)
        narrow = array.astype(box.dtype)
        if draw(st.booleans()) and (narrow.astype(np.int64) == array).all():
            array = narrow
        elif draw(st.booleans()):
            array = array.astype(np.float64)
    array = array.reshape(box.shape)
    return draw(st.sampled_from([array, array.tolist(), np.stack([array, array], -1)[..., 0]]))


@st.composite
def values(draw: st.DrawFn, space: Space, axes: list[Axis]) -> Any:
    """A value for a space; consumes the axes of its leaves in walk order."""
    if isinstance(space, spaces.Tuple):
        parts = []
        for child in space.spaces:
            count = width(child)
            parts.append(draw(values(child, axes[:count])))
            axes = axes[count:]
        return draw(st.sampled_from([tuple(parts), parts]))
    if isinstance(space, spaces.Dict):
        entries = {}
        for key, child in space.spaces.items():
            count = width(child)
            entries[key] = draw(values(child, axes[:count]))
            axes = axes[count:]
        # The order of the space counts, not that of the value.
        return dict(draw(st.permutations(list(entries.items()))))
    if isinstance(space, spaces.Box):
        return draw(box_values(space, axes))
    numbers = [draw(st.integers(axis.low, axis.high)) for axis in axes]
    if isinstance(space, spaces.Discrete):
        wrap = draw(st.sampled_from([int, np.int64, np.int8, np.array, lambda x: np.array([x])]))
        return wrap(numbers[0])
    array = np.array(numbers, space.dtype).reshape(space.shape)
    return draw(st.sampled_from([array, array.tolist()]))


@st.composite
def sides(draw: st.DrawFn, of: st.SearchStrategy[Space] = any_space) -> Side:
    """A space with its settings and a few of its values."""
    space = draw(of)
    settings = draw(side_settings(space))
    axes = axes_of(space, **settings)
    return Side(space, settings, draw(st.lists(values(space, axes), min_size=3, max_size=5)))


# Runs ---------------------------------------------------------------------------------------

MODES = ("adjacent", "lag", "lifetime", "reference_window", "reference_lifetime")
epsilons = st.just(0.5) | st.floats(-10, 6).map(lambda power: 10.0**power)


@dataclass(frozen=True)
class Run:
    """Two sides, the settings of a tracker, and the pairs that it is fed."""

    observation: Side
    action: Side
    settings: dict[str, Any]
    codes: list[int]
    reference_codes: list[int]

    def _pairs(self, codes: list[int]) -> list[tuple[Any, Any]]:
        observations, actions = self.observation.pool, self.action.pool
        return [
            (observations[code // 5 % len(observations)], actions[code % 5 % len(actions)])
            for code in codes
        ]

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        """The stream."""
        return self._pairs(self.codes)

    @property
    def reference(self) -> list[tuple[Any, Any]]:
        """The pairs of the frozen reference, empty where the mode has none."""
        return self._pairs(self.reference_codes)


@st.composite
def runs(draw: st.DrawFn, mode: str, of: st.SearchStrategy[Space] = any_space) -> Run:
    """A run of at least three windows in one mode."""
    window = None if mode.endswith("lifetime") else draw(st.integers(1, 12) | st.integers(6, 12))
    lag = draw(st.integers(1, 2 * window)) if mode == "lag" else None
    code = st.integers(0, 24)
    least = 3 * (window or 8) + (lag or 0)
    codes = draw(st.lists(code, min_size=least, max_size=least + 12))
    has_reference = mode.startswith("reference")
    settings = {
        "window": window,
        "lag": lag,
        "epsilon": draw(epsilons),
        "history_size": draw(st.integers(1, 30) | st.just(1000)),
        "min_window": draw(st.integers(1, 14) | st.just(32)),
    }
    reference = draw(st.lists(code, min_size=1, max_size=30)) if has_reference else []
    return Run(draw(sides(of)), draw(sides(of)), settings, codes, reference)
