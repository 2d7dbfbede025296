"""What encoders are given and what they are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium import spaces

from kl_proteus._core import Layout

__all__ = ["ArrayEncoder", "ArrayLeaf"]


@dataclass(frozen=True)
class ArrayLeaf:
    """An array of an observation, with the bounds and bins of its scalars.

    Attributes:
        name: How messages call it.
        shape: Its shape.
        integer: Whether its scalars are integers or bools.
        low: Lower bounds in C order.
        high: Upper bounds in C order.
        bins: In-range bins of each scalar in C order.
        scale: The `s` of the maps of unbounded axes.
        declared: Whether the bounds come from the space, where a magnitude above 1e6 is no bound.
    """

    name: str
    shape: tuple[int, ...]
    integer: bool
    low: list[float] = field(repr=False)
    high: list[float] = field(repr=False)
    bins: list[int] = field(repr=False)
    scale: float
    declared: bool

    @classmethod
    def of_space(cls, space: spaces.Box[Any], name: str) -> ArrayLeaf:
        """The array of a Box with the bounds that it declares."""
        size = math.prod(space.shape)
        integer = np.dtype(space.dtype).kind in "iub"
        # A bound of extended precision beyond float64 becomes infinite, which is no bound.
        with np.errstate(over="ignore"):
            low, high = (
                np.ravel(bound).astype(np.float64).tolist() for bound in (space.low, space.high)
            )
        return cls(name, tuple(space.shape), integer, low, high, [10] * size, 1.0, declared=True)

    @property
    def size(self) -> int:
        """Number of scalars."""
        return len(self.low)

    @property
    def height_and_width(self) -> tuple[int, int]:
        """The lengths of the two longest axes, longest first; 1 where there is none."""
        longest = sorted((*self.shape, 1, 1), reverse=True)
        return longest[0], longest[1]

    def plain(self) -> Layout:
        """One axis for each scalar."""
        build = Layout.integer if self.integer else Layout.real
        return build(
            self.name,
            list(self.shape),
            self.low,
            self.high,
            self.bins,
            scale=self.scale,
            declared=self.declared,
        )


@runtime_checkable
class ArrayEncoder(Protocol):
    """An encoder of arrays. Its `repr` is the name under which snapshots record it."""

    def takes(self, leaf: ArrayLeaf) -> bool:
        """Whether it can encode arrays like this one."""
        ...

    def layout(self, leaf: ArrayLeaf) -> Layout:
        """The axes of the encoded array."""
        ...
