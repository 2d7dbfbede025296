"""Finds what a model does to its logits by watching it do it, for no two configurations agree.

Models scale logits by `logit_scale` or `lm_head_multiplier`, divide or multiply them by
`logits_scaling`, and cap them by `final_logit_softcapping` or `logits_soft_cap`. The configuration
offers candidates; the model's own head, fed with small and large hidden states, chooses.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from kl_proteus.torch.replay import last_hidden_state, replay_head

_SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier")
_SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "logit_softcap")
# The largest raw logits of the probes: caps do not show where logits are small.
_SIZES = (60.0, 2000.0)
# Relative difference, as a norm, that rounding explains.
_ROUNDING = {
    torch.float64: 1e-9,
    torch.float32: 2e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}


@dataclass(frozen=True)
class HeadProbe:
    """Pairs of hidden states and the logits that the model's own head makes of them."""

    pairs: list[tuple[Tensor, Tensor]]

    @staticmethod
    def declared(config: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The scales and softcaps that a configuration names."""
        if hasattr(config, "get_text_config"):
            config = config.get_text_config()

        def numbers(names: tuple[str, ...]) -> tuple[float, ...]:
            values = (getattr(config, name, None) for name in names)
            return tuple(float(v) for v in values if isinstance(v, int | float) and v > 0)

        return numbers(_SCALES), numbers(_SOFTCAPS)

    @classmethod
    def taken(cls, model: Any, backbone: nn.Module, ids: Tensor, logits: Tensor) -> Self | None:
        """Feeds hidden states to the head.

        Args:
            model: The model, in eval mode.
            backbone: The part of it that makes hidden states.
            ids: Shape (1, tokens).
            logits: What the model makes of them, shape (tokens, vocabulary).

        Returns:
            None where its head, given the hidden states of its backbone, makes other logits.
        """
        try:
            output = backbone(input_ids=ids, use_cache=False)
            hidden = last_hidden_state(output)[0]
            replayed = replay_head(model, backbone, output, hidden)
            if not close(replayed, logits):
                return None
            pairs = [(hidden, replayed)]
            top = float(replayed.abs().max())
            for size in _SIZES if top > 0 else ():
                large = hidden * (size / top)
                pairs.append((large, replay_head(model, backbone, output, large)))
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
            return None
        return cls([pair for pair in pairs if _finite(*pair)])


def close(got: Tensor, expected: Tensor) -> bool:
    """Whether logits are the same but for rounding."""
    if got.shape != expected.shape:
        return False
    rounding = max(_ROUNDING.get(t.dtype, 0.0) for t in (got, expected))
    return _norm(got.double() - expected.double()) <= rounding * _norm(expected.double())


def _norm(values: Tensor) -> float:
    return values.square().sum().item() ** 0.5


def find_logit_map(
    probe: HeadProbe, head: nn.Linear, config: Any
) -> tuple[float, float | None] | None:
    """The scale and softcap with which a head's product is the model's logits.

    Args:
        probe: What the model made of hidden states.
        head: Its head.
        config: Its configuration.

    Returns:
        (scale, softcap), or None where no candidate explains every probe.
    """
    rounding = _ROUNDING.get(head.weight.dtype)
    if not probe.pairs or rounding is None:
        return None
    # As tiles make it, not by the head itself, whose forward may have been replaced.
    linear = nn.functional.linear
    raw = [
        (linear(h.to(head.weight.dtype), head.weight, head.bias).double(), z)
        for h, z in probe.pairs
    ]
    for scale, softcap in _candidates(config):
        for product, logits in raw:
            mapped = product * scale
            if softcap is not None:
                mapped = softcap * torch.tanh(mapped / softcap)
            if not _norm(mapped - logits.double()) <= rounding * _norm(logits.double()):
                break
        else:
            return scale, softcap
    return None


def _candidates(config: Any) -> Iterator[tuple[float, float | None]]:
    """What the configuration declares first, since what it does not may be too small to see."""
    scales, softcaps = HeadProbe.declared(config)
    factors = [factor for scale in scales for factor in (scale, 1.0 / scale)]
    for softcap in (*softcaps, None):
        for factor in (*factors, 1.0):
            yield factor, softcap


def _finite(hidden: Tensor, logits: Tensor) -> bool:
    return bool(hidden.isfinite().all()) and bool(logits.isfinite().all())
