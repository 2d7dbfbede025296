"""The exact divergence of discrete distributions."""

from typing import Any

from kl_proteus import _core


def kl_divergence(p: Any, q: Any, *, epsilon: float | None = None) -> Any:
    """KL(P || Q) = sum of p log(p/q), in nats, over the last axis.

    Without `epsilon`, `p` and `q` are probabilities. They are checked, not repaired: none may be
    negative, and each vector must sum to 1 within the square root of its dtype's resolution, at
    least 1e-6 (float64, integers, lists 1e-6; float32 3.5e-4; float16 0.032). What is left of the
    sum is divided out. The result is infinite where some q is 0 and its p is not; a cell with p = 0
    adds nothing.

    With `epsilon` they are counts, of any total: `epsilon` is added to every cell where either is
    not 0, before both are normalised. The result is then always finite, and 0.0 for two
    empty vectors.

    The sum is taken over p (d - log(1 + d)) with d = q/p - 1, which is the same and never negative,
    so the result keeps its digits where P is close to Q, and is never below zero.

    Args:
        p: An array of shape (cells,) or (..., cells), or what `numpy.asarray` takes.
        q: The same shape, or one of the two a single vector that all vectors of the other are
            compared with.
        epsilon: Pseudocount per cell, above 0 and at most 1e6 (0.5 is a good start); None for
            probabilities.

    Returns:
        A float for two vectors, else an array of float64 of the shape without the last axis.

    Raises:
        TypeError: An argument does not hold real numbers.
        ValueError: Shapes do not fit, there is no cell, a value is negative, NaN or infinite,
            probabilities do not sum to 1, or `epsilon` is out of its range.
    """
    return _core.kl_divergence(p, q, epsilon=epsilon)
