"""Built-in encoders, one scalar at a time."""

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from . import axes as space_axes
from . import content, rows

WORD = 2**64


def grey_means(image: Any, rows_: int, columns: int) -> list[float]:
    """The mean of each block, row by row; the two longest axes are height and width."""
    image = np.asarray(image)
    longest = sorted(range(image.ndim), key=lambda axis: (-image.shape[axis], axis))[:2]
    y_axis, x_axis = sorted(longest)
    height, width = image.shape[y_axis], image.shape[x_axis]
    sums = [[0.0] * columns for _ in range(rows_)]
    counts = [[0] * columns for _ in range(rows_)]
    for index in np.ndindex(*image.shape):
        row, column = index[y_axis] * rows_ // height, index[x_axis] * columns // width
        sums[row][column] += float(image[index])
        counts[row][column] += 1
    return [sums[r][c] / counts[r][c] for r in range(rows_) for c in range(columns)]


def grey_digits(space: spaces.Box, image: Any, rows_: int, columns: int, levels: int) -> list[int]:
    """The digits of a grey grid."""
    axis = rows.regular(float(space.low.min()), float(space.high.max()), levels)
    return [axis.digit(mean) for mean in grey_means(image, rows_, columns)]


def signs(seed: int, index: int) -> int:
    """Output `index` of splitmix64."""
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) % WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB % WORD
    return z ^ z >> 31


def place(low: float | None, high: float | None, x: float, scale: float) -> float:
    """Where a scalar lies on its own axis, from 0 to 1."""
    if low is None and high is None:
        return rows.squash(x, scale)
    if high is None:
        return rows.squash_above(max(x - low, 0.0), scale)
    if low is None:
        return 1.0 - rows.squash_above(max(high - x, 0.0), scale)
    # A degenerate range has only its middle.
    return min(max((x - low) / (high - low), 0.0), 1.0) if high > low else 0.5


def projection_digits(
    space: spaces.Box, value: Any, outputs: int, seed: int, bins: int
) -> list[int]:
    """The digits of a random projection."""
    sums = [0.0] * outputs
    bounds = space_axes.declared_bounds(space)
    scalars = np.asarray(value).ravel().tolist()
    for index, ((low, high), x) in enumerate(zip(bounds, scalars, strict=True)):
        u = 2.0 * place(low, high, float(x), 1.0) - 1.0
        word = signs(seed, index)
        for k in range(outputs):
            sums[k] += -u if word >> k & 1 else u
    axis = rows.regular(-4.0, 4.0, bins)
    return [axis.digit(total / math.sqrt(len(scalars))) for total in sums]


def exact_digits(value: Any) -> list[int]:
    """The digits of the content of an array."""
    return content.digits(np.asarray(value).tolist())
