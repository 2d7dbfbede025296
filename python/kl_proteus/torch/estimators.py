"""Estimates of KL(policy || reference) from the log-probabilities of sampled tokens, on tensors.

Nothing here waits for an accelerator unless it says so.
"""

from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from kl_proteus._checks import real_number
from kl_proteus.estimators import BatchReduction, Estimator
from kl_proteus.torch.arguments import check_mask, first_place
from kl_proteus.torch.results import require_comparable
from kl_proteus.torch.tiles import accumulator

Reduction = BatchReduction | Literal["per_sequence", "none"]

_ESTIMATORS = ("k1", "abs", "k2", "k3")
_REDUCTIONS = ("none", "per_sequence", "token_mean", "sequence_mean", "sequence_sum")
# 1/2!, ..., 1/14! of exp(x) - 1 - x, whose remainder is below 1e-16 of it for |x| <= ln(2)/2.
_TAYLOR = [1.0]
for _k in range(3, 15):
    _TAYLOR.append(_TAYLOR[-1] / _k)
_NEAR = 0.3465


class TensorTokenCounts(NamedTuple):
    """How many tokens and sequences an estimate stands for, as int64 tensors without axes.

    Sums of these and of value * count over micro-batches or ranks give the value of the whole:
    weigh `token_mean` by `kept`, and `sequence_mean` and `sequence_sum` by `sequences`.

    Attributes:
        kept: Tokens that entered; 0 means that there was no measurement.
        excluded: Tokens that the mask kept, but that were left out because they are not finite.
        sequences: Sequences with at least one token that entered.
    """

    kept: Tensor
    excluded: Tensor
    sequences: Tensor


@overload
def kl_from_logprobs(
    policy: Tensor,
    reference: Tensor,
    mask: Tensor | None = None,
    *,
    estimator: Estimator = "k1",
    reduction: Reduction = "token_mean",
    on_nonfinite: Literal["raise", "exclude"] = "raise",
    return_counts: Literal[False] = False,
) -> Tensor: ...
@overload
def kl_from_logprobs(
    policy: Tensor,
    reference: Tensor,
    mask: Tensor | None = None,
    *,
    estimator: Estimator = "k1",
    reduction: Reduction = "token_mean",
    on_nonfinite: Literal["raise", "exclude"] = "raise",
    return_counts: Literal[True],
) -> tuple[Tensor, TensorTokenCounts]: ...
def kl_from_logprobs(
    policy: Tensor,
    reference: Tensor,
    mask: Tensor | None = None,
    *,
    estimator: Estimator = "k1",
    reduction: Reduction = "token_mean",
    on_nonfinite: Literal["raise", "exclude"] = "raise",
    return_counts: bool = False,
) -> Tensor | tuple[Tensor, TensorTokenCounts]:
    """Estimates KL(policy || reference), in nats, from log-probabilities of sampled tokens.

    The estimators, reductions and rules for masks are those of `kl_proteus.kl_from_logprobs`; here
    everything stays on the device of the tensors. What lies at a masked place changes nothing, and
    its gradient is 0. To differentiate a penalty use `kl_loss`: the gradients of k1 and k3 are not
    that of the divergence.

    Args:
        policy: Log-probabilities of the sampled tokens under the policy, of any float dtype and the
            shape (tokens,) or (batch, tokens). `TokenLogprobs` bring their own mask, and must agree
            with those of the reference in temperature, vocabulary and alignment.
        reference: The same under the reference, in the same shape on the same device.
        mask: True or 1 where a token counts, in the same shape; None counts every token.
        estimator: `"k1"`, `"abs"`, `"k2"` or `"k3"`.
        reduction: `"token_mean"`, `"sequence_mean"`, `"sequence_sum"`, `"per_sequence"` or
            `"none"`.
        on_nonfinite: `"raise"`, which waits for an accelerator once, or `"exclude"` to leave out
            and count kept tokens that are NaN or infinite, or whose estimate overflows.
        return_counts: Also return how many tokens and sequences the value stands for.

    Returns:
        The estimate, without axes, of shape (batch,) or of the shape of `policy`, as the reduction
        says: float64 where an argument is, else float32, computed in float64. Without any kept
        token it is 0.0 and `counts.kept` is 0: no measurement.

    Raises:
        TypeError: An argument is of another type.
        ValueError: Shapes or devices differ, the rank is not 1 or 2, an option is unknown, the log-
            probabilities were made in different ways, or a kept token is not finite.
    """
    if not isinstance(return_counts, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"return_counts must be True or False, got {return_counts!r}")
    _one_of("estimator", estimator, _ESTIMATORS)
    _one_of("reduction", reduction, _REDUCTIONS)
    _one_of("on_nonfinite", on_nonfinite, ("raise", "exclude"))
    named = {"policy": policy, "reference": reference}
    kept, (p, r) = _prepared(named, mask)
    with torch.no_grad():
        value = _estimate(estimator, torch.where(kept, p - r, 0.0))
        entered = kept & value.to(_result_type(named)).isfinite()
    if on_nonfinite == "raise":
        wrong = kept & ~entered
        if wrong.any():
            raise ValueError(_complaint(named, wrong))
    # Selected before the function, not after it: the gradient of 0 * inf is NaN.
    log_ratio = torch.where(entered, p, 0.0) - torch.where(entered, r, 0.0)
    value = _reduced(_estimate(estimator, log_ratio), entered, reduction).to(_result_type(named))
    if not return_counts:
        return value
    in_rows = _rows(entered).sum(-1)
    counts = TensorTokenCounts(in_rows.sum(), (kept & ~entered).sum(), (in_rows > 0).sum())
    return value, counts


def kl_loss(
    policy: Tensor,
    reference: Tensor,
    mask: Tensor | None = None,
    *,
    estimator: Estimator = "k3",
    behaviour_logprobs: Tensor | None = None,
    clamp: float | None = None,
    reduction: Reduction = "token_mean",
) -> Tensor:
    """A penalty on KL(policy || reference) whose gradient is that of the divergence.

    The value is the estimate; the gradient does not depend on the estimator. With l = policy -
    reference, it is l * grad(policy) a token, which in the mean over tokens of the policy is the
    gradient of the per-token divergence at the visited prefixes, as that of k2 is (Y. Tang and R.
    Munos, 2025, arXiv:2506.09477). That of k1 would be zero in the mean, and that of k3 belongs to
    KL(reference || policy).

    Off-policy, with `behaviour_logprobs` of whatever sampled the tokens and ratio = exp(policy -
    behaviour), the value is ratio * estimate and the gradient ratio * l * grad(policy), which is
    that of ratio * k3 with a gradient through the ratio.

    That a token changes which prefixes are visited later is not in it; for the divergence of whole
    sequences charge `kl_penalties(..., kind="to_go")` to the reward.

    Nothing waits for the accelerator, so nothing is raised for values: a kept token that is not
    finite, or whose value overflows, makes the loss NaN. Masked places may hold anything, and their
    gradient is 0.

    Args:
        policy: Log-probabilities of the sampled tokens under the policy, with gradient, of any
            float dtype and the shape (tokens,) or (batch, tokens). `TokenLogprobs` bring their own
            mask, and must agree in temperature, vocabulary and alignment.
        reference: The same under the reference; no gradient flows into it.
        mask: True or 1 where a token counts, in the same shape; None counts every token.
        estimator: `"k1"`, `"abs"`, `"k2"` or `"k3"`: what the value is.
        behaviour_logprobs: Log-probabilities under the model that sampled the tokens; None: the
            policy did. No gradient flows into it.
        clamp: Limits each token's value, ratio included, to +-clamp; never the gradient, so tokens
            that have drifted far are still pulled back. None: no limit.
        reduction: `"token_mean"`, `"sequence_mean"`, `"sequence_sum"`, `"per_sequence"` or
            `"none"`.

    Returns:
        The loss, without axes, of shape (batch,) or of the shape of `policy`: float64 where an
        argument is, else float32, computed in float64. 0.0 where no token is kept.

    Raises:
        TypeError: An argument is of another type.
        ValueError: Shapes or devices differ, the rank is not 1 or 2, an option is unknown, or the
            log-probabilities were made in different ways.
    """
    _one_of("estimator", estimator, _ESTIMATORS)
    _one_of("reduction", reduction, _REDUCTIONS)
    if clamp is not None:
        clamp = real_number("clamp", clamp, minimum=0.0, above_minimum=True)
    named = {"policy": policy, "reference": reference}
    if behaviour_logprobs is not None:
        named["behaviour_logprobs"] = behaviour_logprobs
    kept, selected = _prepared(named, mask)
    p, *others = (torch.where(kept, values, 0.0) for values in selected)
    reference_, *behaviour = (values.detach() for values in others)
    fixed = p.detach()
    log_ratio = fixed - reference_
    weight = torch.exp(fixed - behaviour[0]) if behaviour else torch.ones_like(log_ratio)
    value = weight * _estimate(estimator, log_ratio)
    finite = log_ratio.isfinite() & weight.isfinite()
    if clamp is not None:
        value = value.clamp(-clamp, clamp)
    finite &= value.to(_result_type(named)).isfinite()
    value = torch.where(finite, value, torch.nan)
    # Zero, with the gradient that is wanted.
    value = value + (weight * log_ratio) * (p - fixed)
    return _reduced(value, kept, reduction).to(_result_type(named))


def _prepared(named: dict[str, Tensor], mask: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    """Checks tensors of log-probabilities; what is kept, and the plain tensors in wide floats."""
    policy = named["policy"]
    for name, value in named.items():
        if not isinstance(value, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"{name} must be a tensor of log-probabilities, got {type(value).__name__}; "
                "kl_proteus.kl_from_logprobs takes lists and arrays"
            )
        if not value.is_floating_point():
            raise TypeError(f"{name} must hold floats, got {value.dtype}")
        if value.ndim not in (1, 2):
            raise ValueError(
                f"{name} must have the shape (tokens,) or (batch, tokens), got {tuple(value.shape)}"
            )
        if value.shape != policy.shape:
            raise ValueError(
                f"{name} must have the shape of policy, {tuple(policy.shape)}; got "
                f"{tuple(value.shape)}"
            )
        if value.device != policy.device:
            raise ValueError(
                f"{name} must be on the device of policy, {policy.device}; got {value.device}"
            )
    require_comparable(named.items())
    kept = check_mask("mask", mask, policy)
    for value in named.values():
        own = getattr(value, "mask", None)
        if isinstance(own, Tensor):
            kept = kept & own
    precise = accumulator(policy.device)
    return kept, [value.as_subclass(Tensor).to(precise) for value in named.values()]


def _estimate(estimator: Estimator, log_ratio: Tensor) -> Tensor:
    if estimator == "k1":
        return log_ratio
    if estimator == "abs":
        return log_ratio.abs()
    if estimator == "k2":
        return 0.5 * log_ratio * log_ratio
    return exp_remainder(-log_ratio)


def exp_remainder(x: Tensor) -> Tensor:
    """exp(x) - 1 - x, never negative, and by a series where it would cancel."""
    is_near = x.abs() <= _NEAR
    near = torch.where(is_near, x, 0.0)
    series = torch.full_like(near, _TAYLOR[-1])
    for coefficient in reversed(_TAYLOR[:-1]):
        series = series * near + coefficient
    # _TAYLOR has 2/k!: 0.5 * near * near does not underflow before the result does.
    far = torch.where(is_near, 1.0, x)
    return torch.where(is_near, 0.5 * near * near * series, torch.expm1(far) - far)


def _reduced(values: Tensor, kept: Tensor, reduction: Reduction) -> Tensor:
    """Values are 0.0 where they are not kept, unless something is wrong with them."""
    if reduction == "none":
        return values
    rows = _rows(values)
    in_rows = _rows(kept).sum(-1)
    sums = rows.sum(-1)
    if reduction == "per_sequence":
        return sums / in_rows.clamp(min=1)
    if reduction == "token_mean":
        return sums.sum() / in_rows.sum().clamp(min=1)
    sequences = (in_rows > 0).sum().clamp(min=1)
    if reduction == "sequence_mean":
        return (sums / in_rows.clamp(min=1)).sum() / sequences
    return sums.sum() / sequences


def _rows(values: Tensor) -> Tensor:
    return values if values.ndim == 2 else values[None]


def _result_type(named: dict[str, Tensor]) -> torch.dtype:
    double = any(value.dtype == torch.float64 for value in named.values())
    return torch.float64 if double else torch.float32


def _complaint(named: dict[str, Tensor], wrong: Tensor) -> str:
    """Names the first kept token that is not finite."""
    place = first_place(wrong)
    index = "".join(f"[{i}]" for i in place)
    for name, values in named.items():
        value = float(values[*place].detach())
        if not torch.isfinite(torch.tensor(value)):
            return (
                f"{name}{index} is {value} and the mask keeps it; mask it, or pass "
                "on_nonfinite='exclude'"
            )
    return f"the estimate of the token at {index} overflows; on_nonfinite='exclude' leaves it out"


def _one_of(name: str, value: Any, options: tuple[str, ...]) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type(value).__name__}")
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}")
