"""Logits that are not computed before they are needed, and never all at once."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kl_proteus._checks import real_number


@dataclass(frozen=True, eq=False)
class LazyLogits:
    """The logits `hidden @ weight.T + bias`, scaled and capped, without the memory they would take.

    Attributes:
        hidden: Output of the backbone, shape (..., hidden size).
        weight: Output embeddings, shape (vocabulary, hidden size).
        bias: Shape (vocabulary,), or None.
        scale: Factor of the logits (Cohere, Granite).
        softcap: c of c * tanh(logits / c), after the scale (Gemma 2), or None.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        for name in ("hidden", "weight", "bias"):
            value: object = getattr(self, name)
            if name == "bias" and value is None:
                continue
            if not isinstance(value, Tensor):
                raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
            if not value.is_floating_point():
                raise TypeError(f"{name} must hold floats, got {value.dtype}")
        if self.weight.ndim != 2 or self.hidden.ndim < 1 or not len(self.weight):
            raise ValueError(
                "weight must have the shape (vocabulary, hidden size), hidden (..., hidden size); "
                f"got {tuple(self.weight.shape)} and {tuple(self.hidden.shape)}"
            )
        if self.hidden.shape[-1] != self.weight.shape[1]:
            raise ValueError(
                f"hidden ends in {self.hidden.shape[-1]} numbers, weight takes "
                f"{self.weight.shape[1]}"
            )
        if self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            raise ValueError(
                f"bias must have the shape ({self.weight.shape[0]},), got {tuple(self.bias.shape)}"
            )
        real_number("scale", self.scale, minimum=-math.inf)
        if self.softcap is not None:
            real_number("softcap", self.softcap, minimum=0.0, above_minimum=True)

    @property
    def shape(self) -> torch.Size:
        """The shape that the logits would have."""
        return torch.Size((*self.hidden.shape[:-1], self.weight.shape[0]))

    @property
    def device(self) -> torch.device:
        """Where they would be computed."""
        return self.weight.device
