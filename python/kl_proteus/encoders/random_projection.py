"""Many scalars as a few sums with random signs."""

from dataclasses import dataclass

from kl_proteus._core import Layout
from kl_proteus.encoders.arguments import integer, positive
from kl_proteus.encoders.leaf import ArrayLeaf

__all__ = ["RandomProjection"]


@dataclass(frozen=True)
class RandomProjection:
    """A seeded random projection to a few axes (Achlioptas 2003, with signs only).

    Each scalar is first placed on the axis it would have had, from -1 (its lower edge) to 1; the
    sum of the places with random signs, divided by the square root of their number, is one output.
    An output is an unbounded axis with `obs_bins` bins: half of them lie within +-`scale`. The
    signs are bits of an integer hash of (seed, scalar), and sums run in C order: the result is the
    same on every platform.

    With an axis for each of 348 scalars nearly every observation is a cell of its own, and a
    changed policy looks like the same one; three outputs keep cells that are met again.

    Args:
        axes: Number of outputs, 1 to 64.
        scale: Where the maps of the outputs are steep.
        seed: Of the signs, 0 to 2^64 - 1.

    Raises:
        TypeError: An argument is of another type.
        ValueError: One is out of its range.
    """

    axes: int = 3
    scale: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        integer("RandomProjection axes", self.axes, 1, 64)
        integer("RandomProjection seed", self.seed, 0, 2**64 - 1)
        positive("RandomProjection scale", self.scale)

    def takes(self, leaf: ArrayLeaf) -> bool:
        """Every array with at least one scalar."""
        return leaf.size > 0

    def layout(self, leaf: ArrayLeaf) -> Layout:
        """An axis for each output."""
        return Layout.projection(
            leaf.plain(), self.axes, seed=self.seed, bins=leaf.bins[0], scale=self.scale
        )
