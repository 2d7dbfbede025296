"""Values to digits and keys, against the rows of the twin."""

import math

import numpy as np
import pytest
import xxhash
from gymnasium import spaces
from hypothesis import given, reject
from hypothesis import strategies as st

from drift.harness import layout_of
from drift.strategies import LAST_BINS, Side, any_space, boxes, sides, values
from kl_proteus.spaces import layout_from_space
from reference import keys
from reference.axes import axes_of, digits_of


def around(x):
    """The next floats below and above."""
    return math.nextafter(x, -math.inf), math.nextafter(x, math.inf)


def expected_key(axes, digits):
    """Mixed radix, or the hash where that does not fit."""
    if keys.fits(axes):
        return keys.mixed_radix(axes, digits)
    return xxhash.xxh3_128_intdigest(keys.hashed_bytes(digits))


def assert_same_digits(side: Side) -> None:
    """Digits and key of every value of the pool."""
    layout = layout_of(side)
    for value in side.pool:
        digits = digits_of(side.space, side.axes, value)
        assert layout.digits(value) == list(digits)
        assert layout.key(value) == expected_key(side.axes, digits)


@given(sides())
def test_any_space(side):
    assert_same_digits(side)


@given(sides(boxes(dtypes=(np.float64,))))
def test_float64_boxes(side):
    assert_same_digits(side)


@given(sides(boxes(dtypes=(np.float16, np.float32))))
def test_narrow_float_boxes(side):
    assert_same_digits(side)


@given(sides(boxes(dtypes=(np.int8, np.uint8, np.int64, np.uint64, np.bool_))))
def test_integer_boxes(side):
    assert_same_digits(side)


@given(any_space, st.integers(0, 2**32 - 1))
def test_samples_of_the_space(space, seed):
    space.seed(seed)
    layout, axes = layout_from_space(space), axes_of(space)
    for _ in range(5):
        try:
            sample = space.sample()
        except (ValueError, OverflowError, RuntimeWarning):
            reject()  # gymnasium cannot sample the widest boxes
        assert layout.digits(sample) == list(digits_of(space, axes, sample))


@given(st.integers(1, 400), st.data())
def test_every_edge_of_a_regular_axis(n, data):
    low = data.draw(st.floats(-1e3, 1e3))
    high = low + data.draw(st.floats(1e-3, 1e3))
    space = spaces.Box(np.array([low]), np.array([high]), dtype=np.float64)
    layout, axes = layout_from_space(space, bins=n), axes_of(space, n)
    for k in range(n + 1):
        edge = low + (high - low) * k / n
        for x in (edge, *around(edge)):
            assert layout.digits(np.array([x])) == list(digits_of(space, axes, np.array([x])))


@pytest.mark.parametrize("n", [1, 2, 3, 10, 255, 256, 257, LAST_BINS])
def test_every_value_of_a_byte(n):
    space = spaces.Box(0, 255, (1,), dtype=np.uint8)
    layout, axes = layout_from_space(space, bins=n), axes_of(space, n)
    for value in range(256):
        array = np.array([value], np.uint8)
        assert layout.digits(array) == list(digits_of(space, axes, array))


@pytest.mark.parametrize("count", [2, 11, 49, 98, 107, 196, 1000])
def test_every_value_of_an_integer_range(count):
    low = -(count // 3)
    space = spaces.Box(low, low + count - 1, (1,), dtype=np.int64)
    values = np.arange(low - 1, low + count + 1)
    for n in sorted({1, 2, 3, 7, 10, 49, 98, count - 1, count, count + 1}):
        layout, axes = layout_from_space(space, bins=n), axes_of(space, n)
        for value in values:
            assert layout.digits(value[None]) == list(digits_of(space, axes, value[None]))


wide_boxes = st.integers(2, 12).map(lambda n: spaces.Box(-np.inf, np.inf, (n,), dtype=np.float64))


@given(wide_boxes, st.data())
def test_keys_around_128_bits(space, data):
    # Four axes of 2^31 + 1 digits fit 128 bits and five do not.
    count = space.shape[0]
    sizes = st.sampled_from([LAST_BINS, LAST_BINS, 2**31 - 2, 10])
    bins = data.draw(st.lists(sizes, min_size=count, max_size=count))
    axes = axes_of(space, bins)
    value = data.draw(values(space, axes))
    digits = digits_of(space, axes, value)
    layout = layout_from_space(space, bins=bins)
    assert layout.digits(value) == list(digits)
    assert layout.key(value) == expected_key(axes, digits)


@pytest.mark.parametrize("n", [127, 128, 129, 1000])
def test_the_last_key_that_fits(n):
    layout, axes = layout_from_space(spaces.MultiBinary(n)), axes_of(spaces.MultiBinary(n))
    for value in (np.zeros(n, np.int8), np.ones(n, np.int8), np.arange(n, dtype=np.int8) % 2):
        digits = digits_of(spaces.MultiBinary(n), axes, value)
        assert layout.key(value) == expected_key(axes, digits)
    assert keys.fits(axes) == (n <= 128)


SQUASHED = [(-np.inf, np.inf), (-1.0, np.inf), (-np.inf, 1.0), (0.1, np.inf), (-np.inf, 0.1)]


def assert_squashed(n, scale, points):
    """Digits of some points on every kind of axis without two usable bounds."""
    for low, high in SQUASHED:
        space = spaces.Box(np.array([low]), np.array([high]), dtype=np.float64)
        layout, axes = layout_from_space(space, bins=n, scale=scale), axes_of(space, n, scale=scale)
        for x in points:
            assert layout.digits(np.array([x])) == list(digits_of(space, axes, [x]))


@given(st.integers(1, 50), st.floats(1e-3, 1e3), st.floats(allow_nan=False))
def test_squashed_axes_anywhere(n, scale, x):
    assert_squashed(n, scale, [x])


@given(st.integers(2, 50), st.just(1.0) | st.floats(1e-3, 1e3), st.data())
def test_squashed_axes_at_their_edges(n, scale, data):
    y = data.draw(st.integers(1, n - 1)) / n
    # Where each of the maps is y: of the line, from the lower bound, down from the upper.
    z = 2 * y - 1
    line = scale * z / (1 - abs(z))
    above, below = scale * y / (1 - y), scale * (1 - y) / y
    centres = [line, -1.0 + above, 1.0 - below, 0.1 + above, 0.1 - below]
    points = [x for centre in centres for x in (centre, *around(centre))]
    assert_squashed(n, scale, points)
