"""Logits a tile at a time, and the log-probabilities of tokens from them.

A tile is up to 512 rows by as many columns of the vocabulary as a byte budget allows. Rows are kept
and the vocabulary is cut, because every chunk of rows reads the whole head again; a tile that stays
in the processor's cache is faster than the whole product. Sums over the vocabulary run in float64.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kl_proteus.torch.tile_sources import TileSource

ROWS = 512
_MB = 1 << 20
# Columns come in multiples of it.
_COLUMNS = 256
# Below it a maximum counts as -inf: a tile in which every logit is -inf must not become NaN.
_FLOOR = -1e30


def default_budget(device: torch.device) -> int:
    """Bytes of a tile: what stays in a core's cache, or what keeps an accelerator busy."""
    return 4 * _MB if device.type == "cpu" else 64 * _MB


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
