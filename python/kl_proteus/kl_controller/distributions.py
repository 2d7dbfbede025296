"""Divergences of distributions and of samples, under the names of the drop-in controller."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any, cast

import numpy as np

from kl_proteus.divergence import kl_divergence

_SMOOTHING = 1e-4
_TOLERANCE = 1e-2
"""A sum of probabilities may exceed 1 by this much, which is what bfloat16 makes of a softmax."""


def compute_kl_divergence(policy_probs: Any, reference_probs: Any) -> float:
    """KL(policy || reference) of two distributions over the same outcomes.

    The values are used as they are: lists cut to the most likely outcomes give their part of the
    sum. `kl_divergence` is the function that insists on whole distributions.

    Args:
        policy_probs: Probabilities, shape (outcomes,); their sum is at most 1.
        reference_probs: The same for the reference.

    Returns:
        The sum of p log(p/q) in nats, at least 0; infinite where q = 0 < p. An outcome with p = 0
        adds nothing.

    Raises:
        TypeError: An argument does not hold real numbers.
        ValueError: The lengths differ; a value is negative, NaN or infinite; a sum exceeds 1.
    """
    p = _probabilities("policy_probs", policy_probs)
    q = _probabilities("reference_probs", reference_probs)
    if len(p) != len(q):
        raise ValueError(
            f"reference_probs has {len(q)} outcomes, and policy_probs {len(p)}; expected as many"
        )
    pairs = [(x, y) for x, y in zip(p, q, strict=True) if x > 0.0]
    if any(y == 0.0 for _, y in pairs):
        return math.inf
    # The difference of logarithms: a quotient of two such numbers can overflow.
    return max(0.0, math.fsum(x * (math.log(x) - math.log(y)) for x, y in pairs))


def estimate_kl_from_samples(
    policy_samples: Iterable[str], reference_samples: Iterable[str], tokenizer: Any
) -> float:
    """A rough divergence of two sets of texts: that of their token frequencies.

    Every token of either set gets 0.0001 occurrences more, so the result is finite; it grows with
    the number of tokens that only the policy uses. For debugging, not for control.

    Args:
        policy_samples: Texts of the policy.
        reference_samples: Texts of the reference.
        tokenizer: An object with `encode(text)`, or a function, that returns tokens.

    Returns:
        The divergence in nats; 0.0 where there are no tokens at all.

    Raises:
        TypeError: A sample is no text, or `tokenizer` neither.
    """
    encode = getattr(tokenizer, "encode", tokenizer)
    if not callable(encode):
        raise TypeError(
            f"tokenizer must have encode(text) or be a function, got {tokenizer!r} "
            f"({type(tokenizer).__name__})"
        )
    policy: Counter[Hashable] = Counter()
    reference: Counter[Hashable] = Counter()
    for name, samples, counter in (
        ("policy_samples", policy_samples, policy),
        ("reference_samples", reference_samples, reference),
    ):
        for text in _texts(name, samples):
            counter.update(cast("Iterable[Hashable]", encode(text)))
    tokens = list(policy | reference)
    if not tokens:
        return 0.0
    return float(
        kl_divergence(
            [policy[token] for token in tokens],
            [reference[token] for token in tokens],
            epsilon=_SMOOTHING,
        )
    )


def _probabilities(name: str, values: Any) -> list[float]:
    try:
        array = np.asarray(values)
        if array.size and array.dtype.kind not in "fiub":
            raise TypeError
        array = array.astype(np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a list of real numbers, got {values!r}") from None
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got the shape {array.shape}")
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0.0)))
    if wrong.size:
        place = int(wrong[0])
        raise ValueError(f"{name}[{place}] must be a probability, got {float(array[place])!r}")
    total = math.fsum(array)
    if total > 1.0 + _TOLERANCE:
        raise ValueError(f"{name} must sum to at most 1, got {total!r}")
    return array.tolist()


def _texts(name: str, samples: Any) -> list[str]:
    if isinstance(samples, str):
        raise TypeError(f"{name} must be a list of texts, got the one text {samples!r}")
    texts = list(samples)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{i}] must be a str, got {text!r} ({type(text).__name__})")
    return cast("list[str]", texts)
