"""Images as a grid of grey levels."""

from dataclasses import dataclass

from kl_proteus._core import Layout
from kl_proteus.encoders.arguments import integer
from kl_proteus.encoders.leaf import ArrayLeaf

__all__ = ["GreyGrid"]


@dataclass(frozen=True)
class GreyGrid:
    """The mean of each block of a grid over an image, in a few levels.

    The two longest axes of the array are its height and width; channels and stacked frames are
    averaged with the pixels. Pixel (y, x) belongs to block `(y * rows // height, x * columns //
    width)`. Sums of bytes are exact, those of floats are added in C order: the result is the same
    on every platform. The mean is binned like any scalar, in `levels` bins over the range of the
    pixels.

    Eight by eight blocks in 32 levels told a held action from a random policy in every one of the
    Atari games and other image environments that docs/zoo.md lists; with 4 x 4 blocks, or in 4
    levels, a ball of a few pixels moves no mean over an edge and most of them look alike.

    Args:
        rows: Blocks from top to bottom.
        columns: Blocks from left to right.
        levels: Bins of each mean.

    Raises:
        TypeError: An argument is no integer.
        ValueError: One is below 1, or `levels` above 2^31 - 1.
    """

    rows: int = 8
    columns: int = 8
    levels: int = 32

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "levels"):
            integer(f"GreyGrid {name}", getattr(self, name), 1, 2**31 - 1)

    def takes(self, leaf: ArrayLeaf) -> bool:
        """Every array with two axes of at least as many pixels as blocks."""
        return min(leaf.height_and_width) >= max(self.rows, self.columns)

    def layout(self, leaf: ArrayLeaf) -> Layout:
        """An axis for each block, row by row."""
        return Layout.grey_grid(
            leaf.name,
            list(leaf.shape),
            self.rows,
            self.columns,
            low=min(leaf.low),
            high=max(leaf.high),
            levels=self.levels,
            scale=leaf.scale,
            declared=leaf.declared,
        )
