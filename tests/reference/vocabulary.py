"""Log-probabilities and divergences over a vocabulary, straight from the definitions.

Logits are lists of floats; a distribution is exp(logits / temperature) by its sum.
"""

import math
from collections.abc import Sequence


def log_softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    """The log-probability of every id."""
    scaled = [z / temperature for z in logits]
    top = max(scaled)
    if top == -math.inf:
        return [math.nan] * len(scaled)
    total = top + math.log(math.fsum(math.exp(z - top) for z in scaled))
    return [z - total for z in scaled]


def divergence(log_p: Sequence[float], log_q: Sequence[float]) -> float:
    """KL(P || Q) in nats: p = 0 adds nothing, q = 0 < p makes it infinite."""
    if any(math.isnan(x) for x in (*log_p, *log_q)):
        return math.nan
    terms = [math.exp(p) * (p - q) for p, q in zip(log_p, log_q, strict=True) if p > -math.inf]
    return math.inf if math.inf in terms else math.fsum(terms)


def binned(
    log_p: Sequence[float], log_q: Sequence[float], k: int
) -> tuple[list[float], list[float]]:
    """Both distributions over the k ids that P makes likeliest, and the others as one."""
    order = sorted(range(len(log_p)), key=lambda i: -log_p[i])

    def merge(values: Sequence[float]) -> list[float]:
        tail = math.fsum(math.exp(values[i]) for i in order[k:])
        return [*(values[i] for i in order[:k]), math.log(tail) if tail > 0 else -math.inf]

    return merge(log_p), merge(log_q)
