"""From batches with padding anywhere to right padding, and back.

Right padding is the one layout in which every causal language model gives each row what it gives
that row alone: positions count from 0, nothing kept sees padding, and no row is empty. Models
differ in what they make of left padding; several need position ids for it, some ignore the mask.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from kl_proteus.torch.arguments import check_mask, check_tokens
from kl_proteus.torch.results import Alignment


@dataclass(frozen=True, eq=False)
class Request:
    """Which tokens of a batch are wanted.

    Attributes:
        tokens: int64, shape (batch, tokens).
        kept: bool, the same shape: the tokens that the model sees.
        wanted: bool, the same shape: the kept tokens that have a context and are to be scored.
        columns: The columns of the result, in the coordinates of its alignment.
        alignment: Where values go.
    """

    tokens: Tensor
    kept: Tensor
    wanted: Tensor
    columns: slice
    alignment: Alignment

    def spread(self, values: Tensor, packed: "Packed") -> Tensor:
        """Puts one value a wanted token into the shape of the result, 0.0 elsewhere."""
        flat = torch.zeros(self.wanted.numel(), dtype=values.dtype, device=values.device)
        flat = flat.index_put((packed.origin.to(values.device),), values)
        return self._aligned(flat.view(self.wanted.shape))

    def mask(self) -> Tensor:
        """Where the result holds a value."""
        return self._aligned(self.wanted)

    def _aligned(self, grid: Tensor) -> Tensor:
        if self.alignment == "next":
            grid = torch.cat([grid[:, 1:], torch.zeros_like(grid[:, :1])], dim=1)
        return grid[:, self.columns]


def _numbers(values: Tensor) -> list[int]:
    return cast(list[int], values.tolist())


@dataclass(frozen=True, eq=False)
class Packed:
    """The same batch with its kept tokens at the left, without empty rows and columns.

    Wanted tokens are numbered row by row.

    Attributes:
        ids: int64, shape (rows, longest).
        lengths: Kept tokens of each row.
        row, position: Of each wanted token in `ids`, shape (wanted,).
        targets: Its id.
        origin: Its place in the flattened batch.
        before: Batch rows and columns of the kept tokens before them.
        bounds: For each row the first number of its wanted tokens, and the end.
    """

    ids: Tensor
    lengths: list[int]
    row: Tensor
    position: Tensor
    targets: Tensor
    origin: Tensor
    before: tuple[Tensor, Tensor]
    bounds: list[int]


def make_request(
    tokens: object,
    attention_mask: object = None,
    *,
    columns: slice | None = None,
    score_mask: object = None,
    alignment: Alignment = "token",
) -> Request:
    """Checks the arguments that say what to score."""
    ids = check_tokens(tokens)
    kept = check_mask("attention_mask", attention_mask, ids)
    if alignment not in ("token", "next"):
        raise ValueError(f"alignment must be 'token' or 'next', got {alignment!r}")
    if columns is None:
        columns = slice(None)
    elif not isinstance(columns, slice):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"columns must be a slice or None, got {type(columns).__name__}")
    elif columns.step not in (None, 1):
        raise ValueError(f"columns must be a slice of step 1, got {columns!r}")
    # The first kept token of a row has no context.
    wanted = kept & (kept.cumsum(1) > 1)
    if score_mask is not None:
        wanted &= check_mask("score_mask", score_mask, ids)
    shown = torch.zeros(ids.shape[1], dtype=torch.bool, device=ids.device)
    shown[columns] = True
    if alignment == "next":
        shown = torch.cat([torch.zeros_like(shown[:1]), shown[:-1]])
    return Request(ids, kept, wanted & shown, columns, alignment)


def repack(request: Request) -> Packed:
    """Moves the kept tokens of each row to the left.

    Rows without a wanted token are dropped: their values are all 0.0.
    """
    rows = request.wanted.any(1).nonzero().squeeze(1)
    kept, wanted = request.kept[rows], request.wanted[rows]
    lengths = kept.sum(1)
    longest = int(lengths.max()) if rows.numel() else 0
    order = (~kept).to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
    ids = request.tokens[rows].gather(1, order)
    real = torch.arange(longest, device=ids.device) < lengths[:, None]
    # Padding may hold anything, such as -100; the model gets an id that it knows.
    ids = torch.where(real, ids, ids[:, :1])
    row, position = (wanted.gather(1, order) & real).nonzero(as_tuple=True)
    column = order[row, position]
    counts = torch.bincount(row, minlength=rows.numel()).cumsum(0)
    return Packed(
        ids=ids,
        lengths=_numbers(lengths),
        row=row,
        position=position,
        targets=ids[row, position],
        origin=rows[row] * request.tokens.shape[1] + column,
        before=(rows[row], order[row, position - 1]),
        bounds=[0, *_numbers(counts)],
    )
