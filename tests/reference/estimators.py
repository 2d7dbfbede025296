"""Estimates of KL(policy || reference) from log-probabilities, straight from the definitions.

A sequence is a list of (policy, reference, kept) triples. Every sum is an fsum.
"""

import math
from collections.abc import Sequence

Token = tuple[float, float, bool]

ESTIMATORS = ("k1", "abs", "k2", "k3")
BATCH_REDUCTIONS = ("token_mean", "sequence_mean", "sequence_sum")


def exp_remainder(x: float) -> float:
    """exp(x) - 1 - x."""
    if abs(x) < 0.5:
        return math.fsum(x**k / math.factorial(k) for k in range(2, 30))
    try:
        return math.fsum([math.expm1(x), -x])
    except OverflowError:
        return math.inf


def estimate(estimator: str, policy: float, reference: float) -> float:
    """What one token says, in nats."""
    log_ratio = policy - reference
    if not math.isfinite(log_ratio):
        return math.nan
    if estimator == "k1":
        return log_ratio
    if estimator == "abs":
        return abs(log_ratio)
    if estimator == "k2":
        return log_ratio * log_ratio / 2
    return exp_remainder(-log_ratio)


def token_values(estimator: str, sequence: Sequence[Token]) -> list[float]:
    """Every token's estimate; 0.0 where it is masked or not finite."""
    values = [
        estimate(estimator, policy, reference) if kept else 0.0
        for policy, reference, kept in sequence
    ]
    return [value if math.isfinite(value) else 0.0 for value in values]


def kept_values(estimator: str, sequence: Sequence[Token]) -> list[float]:
    """The finite estimates of the kept tokens."""
    kept = [estimate(estimator, p, r) for p, r, keep in sequence if keep]
    return [value for value in kept if math.isfinite(value)]


def mean(values: Sequence[float]) -> float:
    """The mean, 0.0 of nothing."""
    return math.fsum(values) / len(values) if values else 0.0


def per_sequence(estimator: str, batch: Sequence[Sequence[Token]]) -> list[float]:
    """The mean of each sequence."""
    return [mean(kept_values(estimator, sequence)) for sequence in batch]


def reduced(estimator: str, reduction: str, batch: Sequence[Sequence[Token]]) -> float:
    """The number for the batch."""
    sequences = [kept_values(estimator, sequence) for sequence in batch]
    measured = [values for values in sequences if values]
    if reduction == "token_mean":
        return mean([value for values in measured for value in values])
    if reduction == "sequence_mean":
        return mean([mean(values) for values in measured])
    return mean([math.fsum(values) for values in measured])


def counts(estimator: str, batch: Sequence[Sequence[Token]]) -> tuple[int, int, int]:
    """Tokens that entered, tokens left out, sequences with a token that entered."""
    sequences = [kept_values(estimator, sequence) for sequence in batch]
    kept = sum(map(len, sequences))
    masked_in = sum(keep for sequence in batch for _, _, keep in sequence)
    return kept, masked_in - kept, sum(bool(values) for values in sequences)


def penalties(
    kl: Sequence[float], mask: Sequence[bool], coefficient: float, kind: str, discount: float
) -> list[float]:
    """The reward of each token; only kept ones are steps."""
    steps = [t for t, kept in enumerate(mask) if kept]
    rewards = [0.0] * len(kl)
    for i, t in enumerate(steps):
        later = steps[i:] if kind == "to_go" else [t]
        charged = math.fsum(discount**n * kl[s] for n, s in enumerate(later))
        rewards[t] = -coefficient * charged
    return rewards


def divergence(p: Sequence[float], q: Sequence[float]) -> float:
    """sum of p log(p/q) of weights that are normalised first."""
    p_total, q_total = math.fsum(p), math.fsum(q)
    if any(a > 0 and b == 0 for a, b in zip(p, q, strict=True)):
        return math.inf
    return math.fsum(
        a / p_total * (math.log(a / p_total) - math.log(b / q_total))
        for a, b in zip(p, q, strict=True)
        if a > 0
    )


def smoothed_divergence(c: Sequence[float], d: Sequence[float], epsilon: float) -> float:
    """The same of counts, with a pseudocount for every cell that is occupied in either."""
    cells = [(a + epsilon, b + epsilon) for a, b in zip(c, d, strict=True) if a > 0 or b > 0]
    return divergence([a for a, _ in cells], [b for _, b in cells]) if cells else 0.0
