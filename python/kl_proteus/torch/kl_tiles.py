"""The exact divergence of rows of logits, a pair of tiles at a time.

With z the logits of a row, KL(P || Q) = E_P[z_P - z_Q] - log sum exp z_P + log sum exp z_Q, in one
pass with running sums in float64. Backward makes the tiles again. Where p = 0 a term is 0, whatever
q is; where q = 0 < p the divergence is infinite.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kl_proteus.torch.coarse import Coarse, coarse_divergence
from kl_proteus.torch.tile_sources import TileSource
from kl_proteus.torch.tiles import (
    accumulator,
    autocast_off,
    fold,
    lowest_exponent,
    spans,
    tile_shape,
    without_floor,
)

# Tiles that are alive at once: both logits and their difference.
_ALIVE = 3


def exact_divergence(p: TileSource, q: TileSource, budget: int) -> tuple[Tensor, Tensor, Tensor]:
    """KL(P || Q) of each row, and the log of both sums of exponentials.

    Args:
        p: Rows of logits of the distribution that the mean is over.
        q: The other, with as many rows and columns.
        budget: Bytes of tiles.

    Returns:
        Three tensors of shape (rows,), in the type of accumulators, on the device of `p`.
    """
    precise = accumulator(p.device)
    divergence, norm_p, norm_q = (
        torch.empty(p.rows, dtype=precise, device=p.device) for _ in range(3)
    )
    height, width = tile_shape(p, budget, _ALIVE)
    for rows in spans(p.rows, height):
        count = rows.stop - rows.start
        top = torch.full((count,), -torch.inf, dtype=p.dtype, device=p.device)
        mass, weighted = (torch.zeros(count, dtype=precise, device=p.device) for _ in range(2))
        total_q = torch.full((count,), -torch.inf, dtype=precise, device=p.device)
        for columns in spans(p.vocab, width):
            tile_p = p.tile(rows, columns)
            tile_q = q.tile(rows, columns).to(p.device)
            difference = (tile_p - tile_q).masked_fill_(tile_p == -torch.inf, 0.0)
            total_q = fold(tile_q, total_q)
            higher = torch.maximum(top, tile_p.amax(-1)).clamp_(min=-1e30)
            shrink = (top - higher).to(precise).exp_()
            tile_p.sub_(higher[:, None]).clamp_(min=lowest_exponent(p.dtype)).exp_()
            mass = mass * shrink + tile_p.sum(-1)
            # Infinite stays infinite, however little mass it has.
            weighted = torch.where(weighted.isinf(), weighted, weighted * shrink)
            weighted += tile_p.mul_(difference).sum(-1)
            top = higher
        total_p = without_floor(mass.log() + top)
        total_q = without_floor(total_q)
        # Rounding may go below zero, where a divergence is not.
        value = (weighted / mass - total_p + total_q).clamp_(min=0.0)
        # Logits that are all -inf are no distribution.
        nothing = (total_p == -torch.inf) | (total_q == -torch.inf)
        divergence[rows] = value.masked_fill_(nothing, torch.nan)
        norm_p[rows], norm_q[rows] = total_p, total_q
    return divergence, norm_p, norm_q


class _Divergence(torch.autograd.Function):
    """KL of a policy P and a reference Q; gradients flow to P."""

    @staticmethod
    def forward(
        ctx: Any,
        p: TileSource,
        q: TileSource,
        reverse: bool,
        top_k: int | None,
        budget: int,
        *_: Tensor | None,
    ) -> Tensor:
        bins: tuple[Tensor, ...] = ()
        if top_k is not None and top_k < p.vocab:
            coarse = coarse_divergence(p, q, top_k, reverse, budget)
            value, norm_p, norm_q = coarse.divergence, coarse.norm_p, coarse.norm_q
            bins = (coarse.ids, coarse.log_ratios, coarse.tail_log_ratio)
        elif reverse:
            value, norm_q, norm_p = exact_divergence(q, p, budget)
            value, norm_p, norm_q = (x.to(p.device) for x in (value, norm_p, norm_q))
        else:
            value, norm_p, norm_q = exact_divergence(p, q, budget)
        ctx.save_for_backward(value, norm_p, norm_q, *bins, *p.tensors, *q.tensors)
        ctx.counts = (len(bins), len(p.tensors))
        ctx.again = (p.again, q.again)
        ctx.reverse, ctx.budget = reverse, budget
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        value, norm_p, norm_q, *rest = ctx.saved_tensors
        of_bins, of_p = ctx.counts
        bins, rest = rest[:of_bins], rest[of_bins:]
        p: TileSource = ctx.again[0](*rest[:of_p])
        q: TileSource = ctx.again[1](*rest[of_p:])
        upstream = gradients[0].to(p.dtype)
        unused = upstream == 0
        value, norm_p, norm_q = (x.to(p.dtype) for x in (value, norm_p, norm_q))
        floor = lowest_exponent(p.dtype)
        collected = p.gradients(ctx.needs_input_grad[5:])
        height, width = tile_shape(p, ctx.budget, _ALIVE)
        with autocast_off(p.device):
            for columns in spans(p.vocab, width):
                for rows in spans(p.rows, height):
                    tile = p.tile(rows, columns)
                    slope = p.map.slope(tile)
                    tile.sub_(norm_p[rows, None])
                    impossible = tile == -torch.inf
                    if bins:
                        log_q = tile - Coarse.spread(rows, columns, *bins)
                    else:
                        log_q = q.tile(rows, columns).to(p.device).sub_(norm_q[rows, None])
                    # In logits: p - q, or p (log p/q - KL).
                    if ctx.reverse:
                        tile.clamp_(min=floor).exp_().sub_(log_q.clamp_(min=floor).exp_())
                    else:
                        weight = log_q.neg_().add_(tile).sub_(value[rows, None])
                        tile.clamp_(min=floor).exp_().mul_(weight).masked_fill_(impossible, 0.0)
                    tile.mul_(upstream[rows, None])
                    if not (isinstance(slope, float) and slope == 1.0):
                        tile.mul_(slope)
                    collected.add(rows, columns, tile.masked_fill_(unused[rows, None], 0.0))
        return None, None, None, None, None, *collected.finish()


def tiled_divergence(
    p: TileSource, q: TileSource, *, reverse: bool, top_k: int | None, budget: int
) -> Tensor:
    """KL(P || Q), or KL(Q || P), of each row, with gradients to P.

    Args:
        p: The policy's logits.
        q: The reference's.
        reverse: For KL(Q || P).
        top_k: The policy's k likeliest ids, and one bin for the others: a lower bound. None: exact.
        budget: Bytes of tiles.

    Returns:
        Shape (rows,), in the type of accumulators; differentiable once.
    """
    return cast(Tensor, _Divergence.apply(p, q, reverse, top_k, budget, *p.tensors))
