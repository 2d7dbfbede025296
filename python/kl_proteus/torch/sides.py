"""The logits of one model at the wanted tokens of a batch, in chunks of rows."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import (
    checkpoint,  # pyright: ignore[reportUnknownVariableType]
)

from kl_proteus.torch.causal_lm import CausalLM, activated
from kl_proteus.torch.lazy_logits import LazyLogits
from kl_proteus.torch.repack import Packed, Request
from kl_proteus.torch.replay import last_hidden_state, replay_head
from kl_proteus.torch.tile_sources import TileSource, tile_source
from kl_proteus.torch.tiles import ROWS, autocast_off


class Side(Protocol):
    """Logits of numbered rows."""

    vocab: int
    device: torch.device
    recompute: bool
    """Whether logits are to be made again for backward rather than kept."""

    def cuts(self, budget: int) -> list[int]:
        """Row numbers at which chunks end."""
        ...

    def source(self, start: int, stop: int, temperature: float, vocab: int) -> TileSource:
        """The logits of the rows between two cuts."""
        ...


@dataclass(eq=False)
class LogitsSide:
    """Logits that are there already, or lazily; `index` has the place of each row."""

    all: LazyLogits | Tensor
    index: tuple[Tensor, ...] | None = None

    def __post_init__(self) -> None:
        self.vocab = self.all.shape[-1]
        self.device = self.all.device
        self.recompute = False
        if self.index is not None:
            self.index = tuple(part.to(self.device) for part in self.index)

    def cuts(self, budget: int) -> list[int]:
        """One chunk: tiles cut it."""
        return [self.all.shape[:-1].numel() if self.index is None else self.index[0].shape[0]]

    def source(self, start: int, stop: int, temperature: float, vocab: int) -> TileSource:
        """Tiles of some rows."""
        index = self.index
        if (start, stop) != (0, self.cuts(0)[0]):
            rows = torch.arange(start, stop, device=self.device)
            if index is None:
                index = torch.unravel_index(rows, self.all.shape[:-1])
            else:
                index = tuple(part[start:stop] for part in index)
        return tile_source(self.all, temperature, vocab, index)


@dataclass(eq=False)
class ReplaySide:
    """The model's own head on chunks of hidden states."""

    lm: CausalLM
    model: object
    output: Any
    hidden: Tensor

    def __post_init__(self) -> None:
        self.vocab = self.lm.vocab
        self.device = self.hidden.device
        self.recompute = True

    def cuts(self, budget: int) -> list[int]:
        """As many whole rows of logits as fit, and not too few."""
        rows = self.hidden.shape[0]
        step = max(1, min(ROWS, budget // (4 * self.vocab)))
        return [*range(step, rows, step), rows]

    def source(self, start: int, stop: int, temperature: float, vocab: int) -> TileSource:
        """Runs the head."""
        assert self.lm.backbone is not None
        hidden = self.hidden[start:stop]
        with activated(self.model), autocast_off(self.device):
            logits = replay_head(self.lm.model, self.lm.backbone, self.output, hidden)
        return tile_source(logits, temperature, vocab)


@dataclass(eq=False)
class PlainSide:
    """The whole model, one batch row at a time."""

    lm: CausalLM
    model: object
    packed: Packed

    def __post_init__(self) -> None:
        self.vocab = self.lm.vocab
        self.device = self.lm.device_for(self.packed.ids)
        self.recompute = True

    def cuts(self, budget: int) -> list[int]:
        """The ends of batch rows."""
        return self.packed.bounds[1:]

    def source(self, start: int, stop: int, temperature: float, vocab: int) -> TileSource:
        """Runs the model on the row."""
        row = int(self.packed.row[start])
        ids = self.packed.ids[row : row + 1, : self.packed.lengths[row]].to(self.device)
        with activated(self.model), autocast_off(self.device):
            logits = self.lm.model(input_ids=ids, use_cache=False).logits[0]
        index = (self.packed.position[start:stop].to(logits.device) - 1,)
        return tile_source(logits, temperature, vocab, index)


def model_side(model: object, lm: CausalLM, request: Request, packed: Packed) -> Side:
    """Runs a model's backbone and prepares its logits at the wanted tokens.

    Args:
        model: What the caller passed: the model, or a `ModelState`; active already.
        lm: What it was found to be.
        request: What is wanted.
        packed: The same, repacked.
    """
    if lm.path == "plain":
        return PlainSide(lm, model, packed)
    device = lm.device_for(packed.ids)
    with autocast_off(device):
        if lm.path in ("whole", "as_is"):
            return _in_one_call(lm, request, packed, device)
        assert lm.backbone is not None
        output = lm.backbone(input_ids=packed.ids.to(device), use_cache=False)
        hidden = last_hidden_state(output)
        # The token before predicts the wanted one.
        hidden = hidden[packed.row.to(hidden.device), packed.position.to(hidden.device) - 1]
    if lm.path == "replay":
        return ReplaySide(lm, model, output, hidden)
    head = lm.head
    assert head is not None
    hidden = hidden.to(head.weight.device, head.weight.dtype)
    return LogitsSide(LazyLogits(hidden, head.weight, head.bias, lm.scale, lm.softcap))


def _in_one_call(lm: CausalLM, request: Request, packed: Packed, device: torch.device) -> Side:
    """The logits of the whole batch, and where the wanted ones are."""
    if lm.path == "whole":
        ids, given = packed.ids, {}
        index = (packed.row, packed.position - 1)
    else:
        # Padding is the model's own affair, but its ids may be anything, such as -100.
        ids = torch.where(request.kept, request.tokens, request.tokens.new_zeros(()))
        given = {"attention_mask": request.kept.long().to(device)}
        index = packed.before
    logits: object = lm.model(input_ids=ids.to(device), **given).logits
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != ids.shape:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"model must return logits of shape ({ids.shape[0]}, {ids.shape[1]}, vocabulary), "
            f"got {shape}"
        )
    return LogitsSide(logits, index)


def by_chunks(sides: list[Side], budget: int, measure: Callable[[int, int], Tensor]) -> Tensor:
    """One number a row, by chunks that every side can give.

    Args:
        sides: Where logits come from.
        budget: Bytes of logits that may be alive at once.
        measure: Makes the numbers of the rows from a start to a stop.
    """
    cuts = sorted({cut for side in sides for cut in side.cuts(budget // len(sides))})
    recompute = torch.is_grad_enabled() and any(side.recompute for side in sides)
    parts: list[Tensor] = []
    for start, stop in pairwise([0, *cuts]):
        if recompute:
            part = checkpoint(measure, start, stop, use_reentrant=False)
        else:
            part = measure(start, stop)
        parts.append(part)
    return torch.cat(parts)
