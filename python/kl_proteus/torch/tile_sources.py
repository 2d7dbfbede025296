"""Rows of logits that can be had a tile at a time, and the gradients of what they are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from kl_proteus.torch.lazy_logits import LazyLogits


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which the logits of a model of this type are worked on."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True)
class LogitMap:
    """What happens to a logit after the head: scale, softcap, temperature, in this order."""

    scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0

    def forward_(self, raw: Tensor) -> Tensor:
        """Maps logits in place."""
        if self.scale != 1.0:
            raw.mul_(self.scale)
        if self.softcap is not None:
            raw.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.temperature != 1.0:
            raw.div_(self.temperature)
        return raw

    def slope(self, mapped: Tensor) -> Tensor | float:
        """The derivative of the map, from what it gave."""
        if self.softcap is None:
            return self.scale / self.temperature
        share = mapped * (self.temperature / self.softcap)
        return share.square_().neg_().add_(1.0).mul_(self.scale / self.temperature)


class Gradients(Protocol):
    """Collects gradients of tiles: columns outside, rows inside."""

    def add(self, rows: slice, columns: slice, gradient: Tensor) -> None:
        """Adds the gradient of one tile."""
        ...

    def finish(self) -> tuple[Tensor | None, ...]:
        """The gradients of the tensors."""
        ...


class TileSource(Protocol):
    """Rows of logits that can be had in tiles."""

    tensors: tuple[Tensor | None, ...]
    """What gradients may flow to."""
    again: Callable[..., "TileSource"]
    """Makes the source from its tensors."""
    map: LogitMap
    rows: int
    vocab: int
    device: torch.device
    dtype: torch.dtype

    def tile(self, rows: slice, columns: slice) -> Tensor:
        """A fresh tile of mapped logits, float32 or float64."""
        ...

    def gradients(self, needed: tuple[bool, ...]) -> Gradients:
        """A collector for the tensors that need one."""
        ...


class HeadTiles:
    """Tiles of hidden states by output embeddings."""

    def __init__(self, map: LogitMap, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self.tensors: tuple[Tensor | None, ...] = (hidden, weight, bias)
        self.again: Callable[..., TileSource] = partial(HeadTiles, map)
        self.map = map
        self._hidden, self._weight, self._bias = hidden, weight, bias
        self.rows, self.vocab = hidden.shape[0], weight.shape[0]
        self.device, self.dtype = weight.device, wide(hidden.dtype)

    def tile(self, rows: slice, columns: slice) -> Tensor:
        """The product in the model's dtype, as the model has it; then wide."""
        bias = None if self._bias is None else self._bias[columns]
        product = torch.nn.functional.linear(self._hidden[rows], self._weight[columns], bias)
        return self.map.forward_(product.to(self.dtype))

    def gradients(self, needed: tuple[bool, ...]) -> "HeadGradients":
        """A collector."""
        return HeadGradients(self._hidden, self._weight, self._bias, needed, self.dtype)


class HeadGradients:
    """Gradients of hidden states, and of output embeddings where they are trained."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        needed: tuple[bool, ...],
        dtype: torch.dtype,
    ) -> None:
        self._hidden, self._weight = hidden, weight
        self._dtype = dtype
        self._for_hidden = (
            torch.zeros(hidden.shape, dtype=dtype, device=hidden.device) if needed[0] else None
        )
        self._for_weight = torch.empty_like(weight) if needed[1] else None
        self._for_bias = torch.empty_like(bias) if bias is not None and needed[2] else None
        # The block of the head that rows are being added to.
        self._columns = slice(0, 0)
        self._weight_block: Tensor | None = None
        self._bias_block: Tensor | None = None

    def add(self, rows: slice, columns: slice, gradient: Tensor) -> None:
        """Adds the gradient of one tile."""
        if columns != self._columns:
            self._flush()
            self._columns = columns
        narrow = gradient.to(self._hidden.dtype)
        if self._for_hidden is not None:
            self._for_hidden[rows] += narrow @ self._weight[columns]
        if self._for_weight is not None:
            block = narrow.t() @ self._hidden[rows]
            if self._weight_block is None:
                self._weight_block = block.to(self._dtype)
            else:
                self._weight_block += block
        if self._for_bias is not None:
            total = gradient.sum(0)
            self._bias_block = total if self._bias_block is None else self._bias_block + total

    def _flush(self) -> None:
        if self._for_weight is not None and self._weight_block is not None:
            self._for_weight[self._columns] = self._weight_block
        if self._for_bias is not None and self._bias_block is not None:
            self._for_bias[self._columns] = self._bias_block
        self._weight_block = self._bias_block = None

    def finish(self) -> tuple[Tensor | None, ...]:
        """The gradients of hidden states, weight and bias."""
        self._flush()
        hidden = None if self._for_hidden is None else self._for_hidden.to(self._hidden.dtype)
        return hidden, self._for_weight, self._for_bias


class LogitTiles:
    """Tiles of logits that are there already, wherever their rows lie."""

    def __init__(self, map: LogitMap, index: tuple[Tensor, ...] | None, logits: Tensor) -> None:
        self.tensors: tuple[Tensor | None, ...] = (logits,)
        self.again: Callable[..., TileSource] = partial(LogitTiles, map, index)
        self.map = map
        self._index = index
        self._logits = logits
        self.rows = logits.shape[0] if index is None else index[0].shape[0]
        self.vocab = logits.shape[-1]
        self.device, self.dtype = logits.device, wide(logits.dtype)

    def tile(self, rows: slice, columns: slice) -> Tensor:
        """A copy in the wide dtype."""
        place = _cell(self._index, rows, columns)
        return self.map.forward_(self._logits[place].to(self.dtype, copy=True))

    def gradients(self, needed: tuple[bool, ...]) -> "LogitGradients":
        """A collector."""
        return LogitGradients(self._logits, self._index)


class LogitGradients:
    """The gradient of logits."""

    def __init__(self, logits: Tensor, index: tuple[Tensor, ...] | None) -> None:
        self._index = index
        self._gradient = torch.zeros_like(logits)

    def add(self, rows: slice, columns: slice, gradient: Tensor) -> None:
        """Writes the gradient of one tile."""
        self._gradient[_cell(self._index, rows, columns)] = gradient.to(self._gradient.dtype)

    def finish(self) -> tuple[Tensor | None, ...]:
        """The gradient."""
        return (self._gradient,)


def _cell(index: tuple[Tensor, ...] | None, rows: slice, columns: slice) -> Any:
    """What a tensor of logits is indexed with to get a tile."""
    return (rows, columns) if index is None else (*(part[rows] for part in index), columns)


def tile_source(
    logits: LazyLogits | Tensor,
    temperature: float,
    vocab_size: int | None = None,
    index: tuple[Tensor, ...] | None = None,
) -> TileSource:
    """Rows of logits, cut to the first ids of the vocabulary.

    Args:
        logits: Shape (..., vocabulary).
        temperature: What they are divided by.
        vocab_size: How many ids are kept; None keeps all.
        index: Which rows, a tensor for each leading axis; None: all, in order.
    """
    if isinstance(logits, LazyLogits):
        weight = logits.weight[:vocab_size]
        bias = None if logits.bias is None else logits.bias[:vocab_size]
        hidden = (
            logits.hidden.reshape(-1, weight.shape[1]) if index is None else logits.hidden[index]
        )
        hidden = hidden.to(weight.device, weight.dtype)
        map_ = LogitMap(logits.scale, logits.softcap, temperature)
        return HeadTiles(map_, hidden, weight, bias)
    logits = logits[..., :vocab_size]
    if index is None:
        try:
            logits = logits.view(-1, logits.shape[-1])
        except RuntimeError:  # rows that do not follow each other, such as logits[:, :-1]
            shape = logits.shape[:-1]
            every = torch.arange(shape.numel(), device=logits.device)
            index = torch.unravel_index(every, shape)
    return LogitTiles(LogitMap(temperature=temperature), index, logits)
