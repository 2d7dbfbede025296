"""The divergence of a policy from its reference over the whole vocabulary, at every prefix."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kl_proteus.torch.arguments import (
    check_budget,
    check_count,
    check_logits,
    check_mask,
    check_temperature,
    check_vocab_size,
)
from kl_proteus.torch.causal_lm import ModelState, activated, causal_lm, check_request, check_stated
from kl_proteus.torch.kl_tiles import tiled_divergence
from kl_proteus.torch.lazy_logits import LazyLogits
from kl_proteus.torch.repack import Packed, Request, make_request, repack
from kl_proteus.torch.results import Alignment, Direction, TokenKL
from kl_proteus.torch.sides import LogitsSide, Side, by_chunks, model_side
from kl_proteus.torch.tiles import autocast_off


def full_kl(
    policy: Any,
    reference: Any,
    tokens: Tensor | None = None,
    attention_mask: Tensor | None = None,
    *,
    direction: Direction = "policy_reference",
    top_k: int | None = None,
    temperature: float = 1.0,
    vocab_size: int | None = None,
    columns: slice | None = None,
    score_mask: Tensor | None = None,
    alignment: Alignment = "token",
    byte_budget: int | None = None,
) -> TokenKL:
    """The exact KL divergence over the vocabulary at each prefix, in nats.

    Without sampling noise, and differentiable: gradients flow to the policy's logits or parameters,
    never to the reference. Logits of models are worked on in tiles that stay within `byte_budget`,
    with sums in float64; backward makes them again.

    Each of policy and reference is a model (what `token_logprobs` takes) or logits. Without
    `tokens` both must be logits of the same leading axes, and nothing is shifted: position t of the
    result is the divergence of `logits[..., t, :]`. With `tokens`, logits have the shape (batch,
    tokens, vocabulary), as a causal model gives them, and the result is aligned as in
    `token_logprobs`.

    An id that the averaging distribution gives probability 0 adds nothing, whatever the other gives
    it; one that only the other gives 0 makes the divergence infinite, and its gradient not finite.

    Args:
        policy: A model, or logits of any float dtype (a tensor or `LazyLogits`).
        reference: The same; it gets no gradient.
        tokens: Token ids of shape (batch, tokens), which models need.
        attention_mask: As in `token_logprobs`; only with `tokens`.
        direction: `"policy_reference"` for KL(policy || reference), `"reference_policy"` for
            KL(reference || policy).
        top_k: None for the exact value. With k, the policy's k likeliest ids are kept apart and all
            others are one bin: a lower bound, and `.lower_bound` says so.
        temperature: Divides the logits of both.
        vocab_size: Uses the first ids only. Vocabularies of different sizes need it.
        columns: As in `token_logprobs`; only with `tokens`.
        score_mask: Where a value is wanted: the shape of `tokens`, or of logits without the last
            axis. Elsewhere the value is 0.0, logits may be NaN, and their gradient is 0.
        alignment: As in `token_logprobs`; only with `tokens`.
        byte_budget: As in `token_logprobs`.

    Returns:
        Float32 of shape (batch, columns), or of logits without the last axis.

    Raises:
        TypeError: An argument is of another type.
        ValueError: Shapes or vocabularies differ, an id is outside the vocabulary, a number or an
            option is out of its range, or a `ReferenceModel` was made for another temperature or
            vocabulary.
    """
    temperature = check_temperature(temperature)
    if direction not in ("policy_reference", "reference_policy"):
        raise ValueError(
            f"direction must be 'policy_reference' or 'reference_policy', got {direction!r}"
        )
    if top_k is not None:
        top_k = check_count("top_k", top_k)
    for name, source in (("the policy", policy), ("the reference", reference)):
        check_stated(name, source, temperature, vocab_size)
    plan = _Plan(direction == "reference_policy", top_k, temperature, vocab_size, byte_budget)
    if tokens is None:
        for name, value in (("attention_mask", attention_mask), ("columns", columns)):
            if value is not None:
                raise ValueError(f"{name} goes only with tokens")
        values, mask, vocab = _of_logits(policy, reference, score_mask, plan)
        alignment = "next"
    else:
        request = make_request(
            tokens,
            attention_mask,
            columns=columns,
            score_mask=score_mask,
            alignment=alignment,
        )
        values, vocab = _of_tokens(policy, reference, request, plan)
        mask = request.mask()
    return TokenKL._of(  # pyright: ignore[reportPrivateUsage]
        values,
        mask=mask,
        temperature=temperature,
        vocab_size=vocab,
        alignment=alignment,
        direction=direction,
        lower_bound=top_k is not None and top_k < vocab,
    )


@dataclass(frozen=True)
class _Plan:
    """How a divergence is to be computed."""

    reverse: bool
    top_k: int | None
    temperature: float
    vocab_size: int | None
    byte_budget: int | None

    def vocab(self, policy: int, reference: int) -> int:
        """The ids that both are over."""
        if self.vocab_size is None and policy != reference:
            raise ValueError(
                f"policy and reference have {policy} and {reference} ids; pass vocab_size for the "
                "first ids, which both must mean the same by"
            )
        return check_vocab_size(self.vocab_size, min(policy, reference), "policy and reference")

    def run(self, policy: Side, reference: Side, vocab: int) -> Tensor:
        """The divergence of each row."""
        budget = check_budget(self.byte_budget, policy.device)

        def measure(start: int, stop: int) -> Tensor:
            with torch.no_grad():
                q = reference.source(start, stop, self.temperature, vocab)
            p = policy.source(start, stop, self.temperature, vocab)
            return tiled_divergence(p, q, reverse=self.reverse, top_k=self.top_k, budget=budget)

        with autocast_off(policy.device):
            return by_chunks([policy, reference], budget, measure).float()


def _of_logits(
    policy: object, reference: object, score_mask: Tensor | None, plan: _Plan
) -> tuple[Tensor, Tensor, int]:
    for name, value in (("policy", policy), ("reference", reference)):
        if isinstance(value, ModelState | torch.nn.Module):
            raise TypeError(f"tokens must be given where {name} is a model, got None")
    p, q = check_logits("policy", policy), check_logits("reference", reference)
    if p.shape[:-1] != q.shape[:-1]:
        raise ValueError(
            "policy and reference must have the same shape without the last axis, got "
            f"{tuple(p.shape)} and {tuple(q.shape)}"
        )
    shape = p.shape[:-1]
    mask = check_mask("score_mask", score_mask, torch.empty(shape, device=p.device))
    vocab = plan.vocab(p.shape[-1], q.shape[-1])
    values = plan.run(LogitsSide(p), LogitsSide(q), vocab).view(shape)
    return torch.where(mask, values, 0.0), mask, vocab


def _of_tokens(policy: Any, reference: Any, request: Request, plan: _Plan) -> tuple[Tensor, int]:
    packed = repack(request)
    device = request.tokens.device
    if not packed.lengths:
        return request.spread(torch.zeros((0,), device=device), packed), plan.vocab_size or 0
    p = _side("policy", policy, request, packed)
    with torch.no_grad():
        q = _side("reference", reference, request, packed)
    vocab = plan.vocab(p.vocab, q.vocab)
    return request.spread(plan.run(p, q, vocab).to(device), packed), vocab


def _side(name: str, source: Any, request: Request, packed: Packed) -> Side:
    """The logits of a model, or those that were passed, at the wanted tokens."""
    if isinstance(source, Tensor | LazyLogits):
        logits = check_logits(name, source)
        if logits.shape[:-1] != request.tokens.shape:
            batch, length = request.tokens.shape
            raise ValueError(
                f"{name} must be logits of shape ({batch}, {length}, vocabulary), as tokens are; "
                f"got {tuple(logits.shape)}"
            )
        return LogitsSide(logits, packed.before)
    with activated(source) as module:
        lm = causal_lm(module)
        check_request(lm, request)
        return model_side(source, lm, request, packed)
