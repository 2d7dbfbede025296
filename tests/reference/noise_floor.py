"""The mean divergence of pairs that have not changed, straight from its definition.

Every count that could have been is weighed by its probability, one cell after the other.
"""

import math
from decimal import Decimal
from functools import lru_cache

from .drift import Counts, log_quotient, support


def pooled_counts(current: Counts, previous: Counts) -> list[int]:
    """The pairs of each cell in either distribution."""
    return [current[cell] + previous[cell] for cell in support(current, previous)]


def cell_mean(t: int, weights: dict[int, float], centre: float, epsilon: float) -> float:
    """The weighted mean of (c + e) (log((c + e) / (t - c + e)) - centre)."""
    return math.fsum(
        weight * (c + epsilon) * (log_quotient(c, t - c, epsilon) - centre)
        for c, weight in weights.items()
    )


@lru_cache(maxsize=100_000)
def hypergeometric_mean(
    t: int, current: int, previous: int, epsilon: float, centre: float
) -> float:
    """C of t pairs drawn from the N + M, of which N are current."""
    ways = math.comb(current + previous, t)
    weights = {
        c: math.comb(current, c) * math.comb(previous, t - c) / ways
        for c in range(max(0, t - previous), min(t, current) + 1)
    }
    return cell_mean(t, weights, centre, epsilon)


@lru_cache(maxsize=100_000)
def binomial_mean(t: int, current: float, previous: float, epsilon: float) -> float:
    """Each of the t pairs is a current one with probability N / (N + M)."""
    p = Decimal(current) / (Decimal(current) + Decimal(previous))
    weights = {c: float(math.comb(t, c) * p**c * (1 - p) ** (t - c)) for c in range(t + 1)}
    return cell_mean(t, weights, math.log(current / previous), epsilon)


def certain_mean(t: int, current: float, previous: float, epsilon: float) -> float:
    """C is its own mean."""
    c = t * current / (current + previous)
    return (c + epsilon) * (math.log1p(epsilon / c) - math.log1p(epsilon / (t - c)))


def damped_sum(
    counts: list[int], current: float, previous: float, total: int, epsilon: float
) -> float:
    """Binomial means whose spread is made that of a draw without replacement."""
    terms: list[float] = []
    for t in counts:
        certain = certain_mean(t, current, previous, epsilon)
        spread = binomial_mean(t, current, previous, epsilon) - certain
        terms.append(certain + spread * (total - t) / max(total - 1, 1))
    return math.fsum(terms)


def normalised(total: float, current: int, previous: int, mass: float) -> float:
    """The sum of all cells, with the logarithm of the totals."""
    offset = math.log1p(mass / previous) - math.log1p(mass / current)
    return max(0.0, total / (current + mass) + offset)


def full(current: Counts, previous: Counts, epsilon: float) -> float:
    """The exact mean: the pairs of both distributions, divided anew in every possible way."""
    n, m = current.total(), previous.total()
    counts = pooled_counts(current, previous)
    total = math.fsum(hypergeometric_mean(t, n, m, epsilon, math.log(n / m)) for t in counts)
    return normalised(total, n, m, epsilon * len(counts))


def halves(current: Counts, previous: Counts, epsilon: float) -> float:
    """What is reported while both windows grow."""
    total = current.total() + previous.total()
    counts = pooled_counts(current, previous)
    mean = damped_sum(counts, 1.0, 1.0, total, epsilon)
    return max(0.0, mean / (total / 2 + epsilon * len(counts)))


def growing(current: Counts, previous: Counts, epsilon: float) -> float:
    """What is reported while one side grows: interpolated between four powers of sqrt(2)."""
    n, m = current.total(), previous.total()
    counts = pooled_counts(current, previous)
    first = math.floor(2 * math.log2(n)) - 1
    nodes = range(first, first + 4)
    place = 2 * math.log2(n)
    total = 0.0
    for node in nodes:
        others = [other for other in nodes if other != node]
        weight = math.prod((place - other) / (node - other) for other in others)
        total += weight * damped_sum(counts, 2 ** (node / 2), float(m), n + m, epsilon)
    return normalised(total, n, m, epsilon * len(counts))


def noise_floor(
    current: Counts,
    previous: Counts,
    *,
    window: int | None,
    lag: int | None,
    has_reference: bool,
    epsilon: float,
) -> float:
    """The floor of a reported value; 0.0 where the distributions share pairs."""
    shared = window is None if lag is None else window is not None and lag < window
    if shared and not has_reference:
        return 0.0
    n, m = current.total(), previous.total()
    if has_reference and n != window:
        return growing(current, previous, epsilon)
    if not has_reference and (n < window or m < window):
        return halves(current, previous, epsilon)
    return full(current, previous, epsilon)
