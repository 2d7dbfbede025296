"""Logits a tile at a time, and the log-probabilities of tokens from them.

A tile is up to 512 rows by as many columns of the vocabulary as a byte budget allows. Rows are kept
and the vocabulary is cut, because every chunk of rows reads the whole head again; a tile that stays
in the processor's cache is faster than the whole product. Sums over the vocabulary run in float64.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kl_proteus.torch.lazy_logits import LazyLogits

ROWS = 512
_MB = 1 << 20
# Columns come in multiples of it.
_COLUMNS = 256
# Below it a maximum counts as -inf: a tile in which every logit is -inf must not become NaN.
_FLOOR = -1e30


def default_budget(device: torch.device) -> int:
    """Bytes of a tile: what stays in a core's cache, or what keeps an accelerator busy."""
    return 4 * _MB if device.type == "cpu" else 64 * _MB


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which the logits of a model of this type are worked on."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def accumulator(device: torch.device) -> torch.dtype:
    """The type of sums over the vocabulary: float64 wherever there is one."""
    return torch.float32 if device.type == "mps" else torch.float64


def lowest_exponent(dtype: torch.dtype) -> float:
    """Below it exp() gives denormal numbers, which cost ten times as much."""
    return -700.0 if dtype == torch.float64 else -80.0


def autocast_off(device: torch.device) -> AbstractContextManager[Any]:
    """A region in which products are in the dtype of their factors."""
    kind = device.type if device.type != "meta" else "cpu"
    if not torch.amp.is_autocast_available(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


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


def spans(length: int, step: int) -> Iterator[slice]:
    """Consecutive slices."""
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def tile_shape(source: TileSource, budget: int, alive: int = 1) -> tuple[int, int]:
    """Rows and columns of a tile.

    Args:
        source: What is cut.
        budget: Bytes of all tiles that are alive at once.
        alive: Their number.
    """
    rows = max(1, min(source.rows, ROWS))
    columns = budget // (alive * source.dtype.itemsize * rows)
    return rows, max(_COLUMNS, min(source.vocab, columns // _COLUMNS * _COLUMNS))


def fold(logits: Tensor, total: Tensor) -> Tensor:
    """log(exp(total) + sum of exp(logits)) of each row; the logits are destroyed."""
    top = logits.amax(-1).clamp_(min=_FLOOR)
    logits.sub_(top[:, None]).clamp_(min=lowest_exponent(logits.dtype)).exp_()
    mass = logits.sum(-1).to(total.dtype).log_()
    return torch.logaddexp(total, mass.add_(top))


def without_floor(total: Tensor) -> Tensor:
    """A sum of nothing but zeros is zero."""
    return total.masked_fill(total < 0.1 * _FLOOR, -torch.inf)


def pick_and_normalise(source: TileSource, ids: Tensor, budget: int) -> tuple[Tensor, Tensor]:
    """The logit of one id in each row, and the log of the row's sum of exponentials.

    Args:
        source: The logits.
        ids: Shape (rows,), inside the vocabulary.
        budget: Bytes of a tile.

    Returns:
        Two tensors of shape (rows,), the second in the type of accumulators.
    """
    precise = accumulator(source.device)
    picked = torch.empty(source.rows, dtype=source.dtype, device=source.device)
    normaliser = torch.empty(source.rows, dtype=precise, device=source.device)
    height, width = tile_shape(source, budget)
    for rows in spans(source.rows, height):
        chosen = ids[rows]
        total = torch.full(chosen.shape, -torch.inf, dtype=precise, device=source.device)
        found = torch.zeros(chosen.shape, dtype=source.dtype, device=source.device)
        for columns in spans(source.vocab, width):
            tile = source.tile(rows, columns)
            place, inside = _place(chosen, columns)
            found = torch.where(inside, tile.gather(-1, place[:, None]).squeeze(-1), found)
            total = fold(tile, total)
        picked[rows], normaliser[rows] = found, without_floor(total)
    return picked, normaliser


def _place(ids: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Where ids lie in a tile, and whether they do."""
    place = ids - columns.start
    last = columns.stop - columns.start - 1
    return place.clamp(0, last), (place >= 0) & (place <= last)


class _TokenLogprobs(torch.autograd.Function):
    """Keeps one number a row; backward makes the tiles again."""

    @staticmethod
    def forward(ctx: Any, source: TileSource, ids: Tensor, budget: int, *_: Tensor) -> Tensor:
        picked, normaliser = pick_and_normalise(source, ids, budget)
        ctx.save_for_backward(ids, normaliser, *source.tensors)
        ctx.again, ctx.budget = source.again, budget
        return picked.to(normaliser.dtype) - normaliser

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ids, normaliser, *tensors = ctx.saved_tensors
        source: TileSource = ctx.again(*tensors)
        collected = source.gradients(ctx.needs_input_grad[3:])
        upstream = gradients[0].to(source.dtype)
        unused = upstream == 0
        offset = normaliser.to(source.dtype)
        floor = lowest_exponent(source.dtype)
        height, width = tile_shape(source, ctx.budget)
        with autocast_off(source.device):
            for columns in spans(source.vocab, width):
                for rows in spans(source.rows, height):
                    tile = source.tile(rows, columns)
                    slope = source.map.slope(tile)
                    weight = upstream[rows]
                    tile.sub_(offset[rows, None]).clamp_(min=floor).exp_().mul_(-weight[:, None])
                    place, inside = _place(ids[rows], columns)
                    tile.scatter_add_(1, place[:, None], torch.where(inside, weight, 0.0)[:, None])
                    if not (isinstance(slope, float) and slope == 1.0):
                        tile.mul_(slope)
                    # 0 * NaN: rows that nobody asks for add nothing, whatever they hold.
                    collected.add(rows, columns, tile.masked_fill_(unused[rows, None], 0.0))
        return None, None, None, *collected.finish()


def tiled_logprobs(source: TileSource, ids: Tensor, budget: int) -> Tensor:
    """Log-probability of one id in each row.

    Args:
        source: The logits.
        ids: Shape (rows,), inside the vocabulary, on the source's device.
        budget: Bytes of a tile.

    Returns:
        Shape (rows,), in the type of accumulators; differentiable once.
    """
    return cast(Tensor, _TokenLogprobs.apply(source, ids, budget, *source.tensors))
