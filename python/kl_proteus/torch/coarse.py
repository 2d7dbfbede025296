"""Divergences over the likeliest ids and one bin for the others.

Merging ids into bins never raises a divergence (the data-processing inequality), so this is a lower
bound. The mass of the bin is summed, not taken as what is missing from one: a tail may be smaller
than the rounding of the rest.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kl_proteus.torch.tile_sources import TileSource
from kl_proteus.torch.tiles import accumulator, fold, spans, tile_shape, without_floor


@dataclass(frozen=True, eq=False)
class Coarse:
    """Divergences of rows over k ids and a tail.

    Attributes:
        divergence, norm_p, norm_q: Shape (rows,).
        ids: The policy's likeliest, shape (rows, k).
        log_ratios: log p/q of them.
        tail_log_ratio: log p/q of the tail, shape (rows,).
    """

    divergence: Tensor
    norm_p: Tensor
    norm_q: Tensor
    ids: Tensor
    log_ratios: Tensor
    tail_log_ratio: Tensor

    @staticmethod
    def spread(
        rows: slice, columns: slice, ids: Tensor, log_ratios: Tensor, tail_log_ratio: Tensor
    ) -> Tensor:
        """The log-ratio of the bin that each id of a tile is in."""
        width = columns.stop - columns.start
        place = ids[rows] - columns.start
        # Ids of other tiles go to a column that is cut off.
        place = torch.where((place >= 0) & (place < width), place, width)
        tail = tail_log_ratio[rows, None].expand(-1, width + 1).clone()
        return tail.scatter_(1, place, log_ratios[rows])[:, :width]


def coarse_divergence(p: TileSource, q: TileSource, k: int, reverse: bool, budget: int) -> Coarse:
    """KL over the k ids that P makes likeliest, and the rest as one.

    Args:
        p: The policy's logits.
        q: The reference's.
        k: How many ids, fewer than there are.
        reverse: For KL(Q || P).
        budget: Bytes of tiles.
    """
    parts: list[Coarse] = []
    height, width = tile_shape(p, budget, 3)
    for rows in spans(p.rows, height):
        parts.append(_rows(p, q, k, reverse, rows, width))
    if not parts:
        parts.append(_rows(p, q, k, reverse, slice(0, 0), width))
    fields = [[getattr(part, name) for part in parts] for name in Coarse.__dataclass_fields__]
    return Coarse(*(torch.cat(values) for values in fields))


def _rows(p: TileSource, q: TileSource, k: int, reverse: bool, rows: slice, width: int) -> Coarse:
    precise = accumulator(p.device)
    count = rows.stop - rows.start
    best_p, best_q = (
        torch.full((count, k), -torch.inf, dtype=p.dtype, device=p.device) for _ in range(2)
    )
    # -1: no id yet.
    ids = torch.full((count, k), -1, dtype=torch.long, device=p.device)
    tail_p, tail_q = (
        torch.full((count,), -torch.inf, dtype=precise, device=p.device) for _ in range(2)
    )
    for columns in spans(p.vocab, width):
        tile_p, tile_q = p.tile(rows, columns), q.tile(rows, columns).to(p.device)
        top_p, place = tile_p.topk(min(k, tile_p.shape[1]), dim=-1)
        best_p = torch.cat([best_p, top_p], dim=1)
        best_q = torch.cat([best_q, tile_q.gather(1, place)], dim=1)
        ids = torch.cat([ids, place + columns.start], dim=1)
        order = best_p.argsort(dim=1, descending=True)
        best_p, best_q, ids = (x.gather(1, order) for x in (best_p, best_q, ids))
        # What is in no tile's best, or was and is no longer, is in the tail.
        tail_p = fold(best_p[:, k:].clone(), fold(tile_p.scatter_(1, place, -torch.inf), tail_p))
        tail_q = fold(best_q[:, k:].clone(), fold(tile_q.scatter_(1, place, -torch.inf), tail_q))
        best_p, best_q, ids = (x[:, :k] for x in (best_p, best_q, ids))
    tail_p, tail_q = without_floor(tail_p), without_floor(tail_q)
    log_p = torch.cat([best_p.to(precise), tail_p[:, None]], dim=1)
    log_q = torch.cat([best_q.to(precise), tail_q[:, None]], dim=1)
    norm_p, norm_q = log_p.logsumexp(1), log_q.logsumexp(1)
    log_p, log_q = log_p - norm_p[:, None], log_q - norm_q[:, None]
    above, below = (log_q, log_p) if reverse else (log_p, log_q)
    terms = above.exp() * (above - below)
    divergence = terms.masked_fill(above == -torch.inf, 0.0).sum(1).clamp(min=0.0)
    ratios = (log_p - log_q).masked_fill(log_p == -torch.inf, 0.0).to(p.dtype)
    return Coarse(divergence, norm_p, norm_q, ids, ratios[:, :k], ratios[:, k])
