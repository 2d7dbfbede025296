"""Results that are tensors and remember how they were made."""

from collections.abc import Iterable
from typing import Any, Literal, Self, TypeAlias

import torch
from torch import Tensor

Alignment: TypeAlias = Literal["token", "next"]
"""Where a token's value lies: at the token's own position, or at the one before it."""

Direction: TypeAlias = Literal["policy_reference", "reference_policy"]
"""KL(policy || reference) or KL(reference || policy)."""


class _Measured(torch.Tensor):
    """A tensor of one number a token; what is computed from it is a plain tensor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Without this, every difference and every slice would claim the temperature and mask."""
        with torch.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    mask: Tensor
    temperature: float
    vocab_size: int
    alignment: Alignment

    @classmethod
    def _of(cls, values: Tensor, **facts: Any) -> Self:
        self = values.as_subclass(cls)
        for name, fact in facts.items():
            setattr(self, name, fact)
        return self

    @property
    def values(self) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The numbers as a plain tensor."""
        return self.as_subclass(torch.Tensor)


class TokenLogprobs(_Measured):
    """Log-probabilities of tokens, in nats: a float32 tensor of shape (batch, tokens).

    Attributes:
        mask: bool, the same shape: where there is a log-probability. Elsewhere the value is 0.0 and
            is not to be counted.
        temperature: What the logits were divided by.
        vocab_size: Over how many ids the probabilities sum to one.
        alignment: `"token"`: position t holds log p(token t | tokens before t); `"next"`: position
            t holds log p(token t + 1 | tokens up to t).
    """

    @property
    def logprobs(self) -> Tensor:
        """The log-probabilities as a plain tensor."""
        return self.as_subclass(torch.Tensor)


class TokenKL(_Measured):
    """The divergence at each prefix, in nats: a float32 tensor.

    Attributes:
        mask: bool, the same shape: where there is a divergence. Elsewhere the value is 0.0 and is
            not to be counted.
        temperature: What the logits of both were divided by.
        vocab_size: Over how many ids both distributions sum to one.
        alignment: `"token"`: position t holds the divergence of what may come at t; `"next"`: of
            what may come at t + 1.
        direction: Which divergence it is.
        lower_bound: Whether the tail of the vocabulary was one bin, so that the value is at most
            the divergence.
    """

    direction: Direction
    lower_bound: bool

    @property
    def kl(self) -> Tensor:
        """The divergences as a plain tensor."""
        return self.as_subclass(torch.Tensor)


def require_comparable(named: Iterable[tuple[str, object]]) -> None:
    """Refuses log-probabilities that were made in different ways.

    Args:
        named: Arguments with their names; those that do not say how they were made pass.

    Raises:
        ValueError: Two of them differ in temperature, vocabulary or alignment.
    """
    first: tuple[str, TokenLogprobs] | None = None
    for name, value in named:
        if not isinstance(value, TokenLogprobs):
            continue
        if first is None:
            first = (name, value)
            continue
        for fact in ("temperature", "vocab_size", "alignment"):
            ours, theirs = getattr(first[1], fact), getattr(value, fact)
            if ours != theirs:
                raise ValueError(
                    f"{first[0]} and {name} must have the same {fact}, got {ours!r} and "
                    f"{theirs!r}: their difference would not be a divergence"
                )
