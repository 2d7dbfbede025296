"""The exact content of an array as its cell."""

from dataclasses import dataclass

from kl_proteus._core import Layout
from kl_proteus.encoders.leaf import ArrayLeaf

__all__ = ["ExactContent"]


@dataclass(frozen=True)
class ExactContent:
    """Each distinct array is a cell of its own, named by a 128-bit hash of its content.

    For symbolic observations such as MiniGrid's 7 x 7 x 3 codes, which declare 0 to 255 and hold 0
    to 10: bins of the declared range would all be the first. Numbers count by value, whatever the
    dtype; NaN raises. The hash is the same on every platform and in every process.
    """

    def takes(self, leaf: ArrayLeaf) -> bool:
        """Every array of integers."""
        return leaf.integer

    def layout(self, leaf: ArrayLeaf) -> Layout:
        """One axis, whose cells are hashes."""
        return Layout.exact(leaf.name, list(leaf.shape))
