"""What counts cannot show, and what a value usually is, straight from the definitions."""

import math
from collections.abc import Hashable

from .drift import Cell, Counts, groups, log_quotient, marginal, support
from .noise_floor import hypergeometric_mean, pooled_counts

FREEDOM = 19


def coverage(current: Counts, previous: Counts) -> float:
    """Good and Turing: one less the share of the pairs that are alone in their cell."""
    pairs = current.total() + previous.total()
    single = sum(count == 1 for count in pooled_counts(current, previous))
    return 1 - single / pairs if pairs else 0.0


def supported(current: Counts, previous: Counts) -> float:
    """The share of P in observations with at least five pairs of Q."""
    pairs = current.total()
    well_known = sum(
        observation_total(current, cells)
        for cells in groups(support(current, previous)).values()
        if observation_total(previous, cells) >= 5
    )
    return well_known / pairs if pairs else 0.0


def observation_total(counts: Counts, cells: list[Cell]) -> int:
    """The pairs of an observation."""
    return sum(counts[cell] for cell in cells)


def policy_terms(
    current: Counts, previous: Counts, epsilon: float
) -> dict[Hashable, tuple[float, float, int]]:
    """What each observation that can vary adds: on average, now, and its number of cells."""
    terms = {}
    for observation, cells in groups(support(current, previous)).items():
        n, m = observation_total(current, cells), observation_total(previous, cells)
        if n == 0 or m == 0 or len(cells) == 1:
            continue
        mass = epsilon * len(cells)
        off = (n + mass) * marginal(current, previous, cells, epsilon)
        mean = math.fsum(
            hypergeometric_mean(current[cell] + previous[cell], n, m, epsilon, 0.0)
            for cell in cells
        )
        now = math.fsum(
            (current[cell] + epsilon) * log_quotient(current[cell], previous[cell], epsilon)
            for cell in cells
        )
        terms[observation] = (mean - off, now - off, len(cells))
    return terms


def policy_statistics(
    current: Counts, previous: Counts, epsilon: float, value: float
) -> dict[str, float]:
    """Floor, excess and z of the policy part, and what it can detect."""
    union = len(support(current, previous))
    total = current.total() + epsilon * union
    terms = policy_terms(current, previous, epsilon).values()
    excess = math.fsum(now - mean for mean, now, _ in terms) / total
    deviation = math.sqrt(math.fsum(2 * mean**2 / (cells - 1) for mean, _, cells in terms)) / total
    largest = math.log((previous.total() + epsilon * union) / epsilon)
    share = supported(current, previous)
    return {
        "kl_policy_floor": max(0.0, value - excess),
        "kl_policy_excess": excess,
        "kl_policy_z": excess / deviation if deviation else 0.0,
        "kl_policy_pvalue": gamma_tail(
            math.fsum(now for _, now, _ in terms) / total,
            math.fsum(mean for mean, _, _ in terms) / total,
            deviation**2,
        ),
        "kl_detectable": min(3.2 * deviation / share, largest) if share else largest,
    }


def gamma_tail(x: float, mean: float, variance: float) -> float:
    """P(X > x) of a Gamma distribution, from the power series of the incomplete gamma function."""
    if not (x > 1e-12 and mean > 0 and variance > 0):
        return 1.0
    shape, z = mean**2 / variance, x * mean / variance
    term = math.exp(shape * math.log(z) - z - math.lgamma(shape + 1))
    total, k = term, 1
    while term > 1e-18 * total or k < z:
        term *= z / (shape + k)
        total += term
        k += 1
    return min(1.0, max(0.0, 1.0 - total))


def past_values(values: dict[int, float], full: int, window: int) -> list[float]:
    """The last 20 of the values one window apart but the newest; fewer where there are fewer.

    Args:
        values: What was reported after n pairs.
        full: The number of pairs that first fills the windows.
        window: Their length.
    """
    taken = [value for n, value in sorted(values.items()) if n >= full and (n - full) % window == 0]
    return taken[:-1][-20:]


def tail(t: float) -> float:
    """P(T > t) of Student's t with 19 degrees of freedom (Abramowitz and Stegun 26.7.3)."""
    angle = math.atan(t / math.sqrt(FREEDOM))
    total, term = 0.0, math.cos(angle)
    for k in range(3, FREEDOM + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (k - 1) / k
    within = 2 / math.pi * (angle + math.sin(angle) * total)
    return (1 - within) / 2


def prediction(past: list[float], value: float) -> tuple[float, float]:
    """The typical value, and how probable a larger one is than this; (0, 1) of too short a past."""
    if len(past) < FREEDOM + 1:
        return 0.0, 1.0
    logs = [math.log(max(x, 1e-9)) for x in past]
    mean = math.fsum(logs) / len(logs)
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / FREEDOM)
    spread = max(deviation, 1e-3) * math.sqrt(1 + 1 / len(logs))
    return math.exp(mean), tail((math.log(max(value, 1e-9)) - mean) / spread)
