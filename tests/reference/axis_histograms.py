"""Each axis on its own, from the list of all pairs: histograms, divergence and what is expected."""

import math
from collections import Counter
from itertools import pairwise
from typing import Any

from gymnasium import Space

from . import drift
from .axes import axes_of, digits_of

BINS = 20
CATEGORIES = 64
PAST, LEAST_PAST = 20, 10
SMALLEST, LEAST_DEVIATION = 1e-9, 1e-3


def histogram_axes(space: Space, settings: dict[str, Any]) -> list[Any]:
    """The axes of a space with the bins of histograms: those of cells, only 20 of them."""
    return axes_of(space, **(settings | {"bins": BINS}))


def row_of(space: Space, axes: list[Any], value: Any) -> list[int]:
    """The histogram bin of each scalar."""
    digits = digits_of(space, axes, value)
    return [
        digit * CATEGORIES // axis.size
        if axis.kind == "category" and axis.size > CATEGORIES
        else digit
        for axis, digit in zip(axes, digits, strict=True)
    ]


def extent(axis: Any) -> int:
    """Number of bins of a histogram."""
    return min(axis.extent, CATEGORIES) if axis.kind == "category" else axis.extent


def counts(rows: list[list[int]], axes: list[Any]) -> list[list[int]]:
    """Counts of each bin of each axis."""
    tables = [Counter(row[i] for row in rows) for i in range(len(axes))]
    return [
        [table[bin_] for bin_ in range(extent(axis))]
        for table, axis in zip(tables, axes, strict=True)
    ]


def kl(p: list[int], q: list[int], epsilon: float) -> float:
    """The smoothed divergence of two histograms."""
    cells = [Counter({((bin_,), ()): n for bin_, n in enumerate(x) if n}) for x in (p, q)]
    return max(0.0, drift.kl_joint(cells[0], cells[1], epsilon))


def expected_of_independent(p: list[int], q: list[int], epsilon: float) -> float:
    """The mean divergence over all ways to deal the pooled pairs out."""
    n, m = sum(p), sum(q)
    pooled = [c + d for c, d in zip(p, q, strict=True) if c + d]
    mass = epsilon * len(pooled)
    terms = []
    for t in pooled:
        for c in range(max(0, t - m), min(t, n) + 1):
            ways = math.comb(t, c) * math.comb(n + m - t, n - c)
            probability = ways / math.comb(n + m, n)
            own, other = c + epsilon, t - c + epsilon
            terms.append(probability * own * (math.log(own) - math.log(other)))
    return max(0.0, math.fsum(terms) / (n + mass) + math.log((m + mass) / (n + mass)))


def standardised(
    value: float, p: list[int], q: list[int], epsilon: float, past: list[float], window: int
) -> tuple[float, float]:
    """What a divergence is expected to be, and the deviations above it."""
    n, m = sum(p), sum(q)
    if len(past) < LEAST_PAST:
        expected = expected_of_independent(p, q, epsilon)
        cells = sum(c + d > 0 for c, d in zip(p, q, strict=True))
        deviation = expected * math.sqrt(2 / (max(cells, 2) - 1))
        return expected, (value - expected) / deviation if expected > 1e-12 else 0.0
    logs = [math.log(max(x, SMALLEST)) for x in past]
    mean = math.fsum(logs) / len(logs)
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / (len(logs) - 1))
    spread = max(spread, LEAST_DEVIATION) * math.sqrt(1 + 1 / len(logs))
    size = (1 / n + 1 / m) * window / 2
    log_expected = mean + math.log(size)
    return math.exp(log_expected), (math.log(max(value, SMALLEST)) - log_expected) / spread


def past_divergences(
    rows: list[list[int]], axes: list[Any], window: int, end: int, epsilon: float
) -> list[list[float]]:
    """For each axis the divergences between successive windows that had ended before `end`."""
    filled = [rows[k * window : (k + 1) * window] for k in range(end // window)]
    tables = [counts(part, axes) for part in filled]
    values = [
        [kl(p, q, epsilon) for p, q in zip(now, before, strict=True)]
        for before, now in pairwise(tables)
    ]
    return [[row[i] for row in values[-PAST:]] for i in range(len(axes))]
