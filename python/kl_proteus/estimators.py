"""Estimates of KL(policy || reference) from the log-probabilities of sampled tokens."""

from typing import Any, Literal, NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from kl_proteus import _core

Estimator: TypeAlias = Literal["k1", "abs", "k2", "k3"]
"""What is estimated of each token; see `kl_from_logprobs`."""

BatchReduction: TypeAlias = Literal["token_mean", "sequence_mean", "sequence_sum"]
"""The reductions that give one number for a batch."""

TokenValues: TypeAlias = NDArray[np.float64] | list[NDArray[np.float64]]
"""Per-token numbers: an array, or for nested lists a list of arrays."""


class TokenCounts(NamedTuple):
    """How many tokens and sequences an estimate stands for.

    Sums of these and of value * count over micro-batches or ranks give the value of the whole:
    weigh `token_mean` by `kept`, and `sequence_mean` and `sequence_sum` by `sequences`.

    Attributes:
        kept: Tokens that entered; 0 means that there was no measurement.
        excluded: Tokens that the mask kept, but that were left out because they are not finite.
        sequences: Sequences with at least one token that entered.
    """

    kept: int
    excluded: int
    sequences: int


@overload
def kl_from_logprobs(
    policy: Any,
    reference: Any,
    mask: Any = None,
    *,
    estimator: Estimator = "k1",
    reduction: BatchReduction = "token_mean",
    on_nonfinite: Literal["raise", "exclude"] = "raise",
    return_counts: Literal[False] = False,
) -> float: ...
@overload
def kl_from_logprobs(
    policy: Any,
    reference: Any,
    mask: Any = None,
    *,
    estimator: Estimator = "k1",
    reduction: BatchReduction = "token_mean",
    on_nonfinite: Literal["raise", "exclude"] = "raise",
    return_counts: Literal[True],
) -> tuple[float, TokenCounts]: ...
@overload
def kl_from_logprobs(
    policy: Any,
    reference: Any,
    mask: Any = None,
    *,
    estimator: Estimator = "k1",
    reduction: Literal["per_sequence"],
    on_nonfinite: Literal["raise", "exclude"] = "raise",
    return_counts: Literal[False] = False,
) -> NDArray[np.float64]: ...
@overload
def kl_from_logprobs(
    policy: Any,
    reference: Any,
    mask: Any = None,
    *,
    estimator: Estimator = "k1",
    reduction: Literal["per_sequence"],
    on_nonfinite: Literal["raise", "exclude"] = "raise",
    return_counts: Literal[True],
) -> tuple[NDArray[np.float64], TokenCounts]: ...
@overload
def kl_from_logprobs(
    policy: Any,
    reference: Any,
    mask: Any = None,
    *,
    estimator: Estimator = "k1",
    reduction: Literal["none"],
    on_nonfinite: Literal["raise", "exclude"] = "raise",
    return_counts: Literal[False] = False,
) -> TokenValues: ...
@overload
def kl_from_logprobs(
    policy: Any,
    reference: Any,
    mask: Any = None,
    *,
    estimator: Estimator = "k1",
    reduction: Literal["none"],
    on_nonfinite: Literal["raise", "exclude"] = "raise",
    return_counts: Literal[True],
) -> tuple[TokenValues, TokenCounts]: ...
def kl_from_logprobs(
    policy: Any,
    reference: Any,
    mask: Any = None,
    *,
    estimator: str = "k1",
    reduction: str = "token_mean",
    on_nonfinite: str = "raise",
    return_counts: bool = False,
) -> Any:
    """Estimates KL(policy || reference), in nats, from log-probabilities of sampled tokens.

    With l = policy - reference on a token sampled from the policy, the estimators are (J. Schulman,
    "Approximating KL Divergence", 2020):

    * `"k1"`: l. Unbiased, and of either sign on a single token.
    * `"abs"`: |l|. The size of the change; not less than the divergence in expectation.
    * `"k2"`: l^2 / 2. Biased, never negative; its gradient is that of the divergence.
    * `"k3"`: exp(-l) - 1 + l. Unbiased, never negative, and exact to about 1e-15 of itself where
      the formula cancels. Its gradient is *not* that of the divergence.

    All four assume tokens sampled from the policy at the temperature of its log-probabilities.

    The reductions:

    * `"token_mean"`: sum over all kept tokens by their number, in nats per token,
    * `"sequence_mean"`: mean over sequences of their means, in nats per token,
    * `"sequence_sum"`: mean over sequences of their sums, in nats per sequence,
    * `"per_sequence"`: the mean of each sequence, an array of shape (sequences,),
    * `"none"`: each token's estimate in the shape of `policy`, 0.0 where masked or excluded; nested
      lists give a list of arrays.

    A mask selects and never multiplies: what lies at a masked place changes nothing, be it NaN, an
    infinity or, in a list, None. A sequence without a kept token is 0.0 in `"per_sequence"` and is
    left out of the means. Without any kept token the value is 0.0 and `counts.kept` is 0: that is
    no measurement, and no coefficient should be updated by it.

    An empty list is one sequence without tokens, as it is to NumPy: `"per_sequence"` gives [0.0].
    A batch without sequences is an array of shape (0, tokens), and gives an empty array.

    Everything is computed in float64, whatever the dtype. What a sequence comes to depends on its
    kept tokens alone, to the last bit: not on padding, its side, or the rest of the batch.

    Lists and arrays are read where they lie, without a copy, in any memory layout (integers and
    extended precision are converted first). The interpreter is released while large arrays are
    read; as with NumPy's own functions, do not write to them or resize them from another thread
    meanwhile.

    Args:
        policy: Log-probabilities of the sampled tokens under the policy: an array of shape
            (tokens,) or (sequences, tokens), a list of numbers, a list of lists or arrays of
            different lengths, or what `numpy.asarray` takes.
        reference: The same under the reference, in the same shape; the container may be another.
        mask: True or 1 where a token counts, False or 0 elsewhere, in the same shape; None counts
            every token.
        estimator: One of the above.
        reduction: One of the above.
        on_nonfinite: `"raise"`, or `"exclude"` to leave out and count the kept tokens whose
            log-probabilities are NaN or infinite (or so far apart that the estimate overflows).
        return_counts: Also return how many tokens and sequences the value stands for.

    Returns:
        A float, an array or a list of arrays of float64, as the reduction says; with
        `return_counts` a tuple of it and a `TokenCounts`.

    Raises:
        TypeError: An argument does not hold real numbers, the mask no bools, 0 or 1, or an option
            is of another type.
        ValueError: Shapes differ or are not of rank 1 or 2; the mask holds another number; an
            option is unknown; a kept token is NaN or infinite (the message has its position); or a
            result overflows.
    """
    # Before the work: a string that says "no" would be true.
    if not isinstance(return_counts, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"return_counts must be True or False, got {return_counts!r}")
    value, kept, excluded, sequences = _core.kl_from_logprobs(
        policy, reference, mask, estimator, reduction, on_nonfinite
    )
    return (value, TokenCounts(kept, excluded, sequences)) if return_counts else value
