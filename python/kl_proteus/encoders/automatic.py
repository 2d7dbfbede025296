"""Which encoder an observation needs, by its space alone."""

import math
from collections.abc import Sequence

from kl_proteus.encoders.exact_content import ExactContent
from kl_proteus.encoders.grey_grid import GreyGrid
from kl_proteus.encoders.leaf import ArrayEncoder, ArrayLeaf
from kl_proteus.encoders.random_projection import RandomProjection

__all__ = ["MOST_PLAIN_INTEGERS", "choose"]

MOST_PLAIN_INTEGERS = 64
"""An array of integers with two or more axes and more scalars than this has no axes for each."""
_SMALLEST_IMAGE = 32
# Codes of tiles and objects stay below this, levels of grey do not.
_FEWEST_LEVELS = 64
# Up to eight scalars keep an axis each: see docs/zoo.md.
_MOST_PLAIN_AXES = 8
# Integers with fewer values come back, however many there are.
_FEWEST_VALUES = 64
_PROJECTED_AXES = 4


def choose(leaves: Sequence[ArrayLeaf], *, project: bool = True) -> dict[str, ArrayEncoder]:
    """The encoder of each array that needs one.

    * Images (two axes of 32 or more, and 64 or more levels or floats): `GreyGrid()`.
    * Other arrays of integers with two or more axes and more than 64 scalars, such as the codes of
      a grid world: `ExactContent()`.
    * More than eight scalars that are floats, or integers with 64 or more values, in all arrays
      together: `RandomProjection`, with four axes shared out by size, at least one an array.
    * Anything else keeps an axis for each scalar.

    Args:
        leaves: The arrays of an observation.
        project: Whether to use random projections: not where the user has set bins or ranges for
            each axis.

    Returns:
        Encoders by the name of the leaf, without those that need none.
    """
    chosen: dict[str, ArrayEncoder] = {}
    wide: list[ArrayLeaf] = []
    for leaf in leaves:
        if _is_image(leaf):
            chosen[leaf.name] = GreyGrid()
        elif leaf.integer and len(leaf.shape) >= 2 and leaf.size > MOST_PLAIN_INTEGERS:
            chosen[leaf.name] = ExactContent()
        elif leaf.size and (not leaf.integer or _levels(leaf) >= _FEWEST_VALUES):
            wide.append(leaf)
    total = sum(leaf.size for leaf in wide)
    if project and total > _MOST_PLAIN_AXES:
        for leaf in wide:
            axes = max(1, round(_PROJECTED_AXES * leaf.size / total))
            if leaf.size > axes:
                chosen[leaf.name] = RandomProjection(axes=axes)
    return chosen


def _is_image(leaf: ArrayLeaf) -> bool:
    large = len(leaf.shape) >= 2 and min(leaf.height_and_width) >= _SMALLEST_IMAGE
    return large and (not leaf.integer or _levels(leaf) >= _FEWEST_LEVELS)


def _levels(leaf: ArrayLeaf) -> float:
    """The most values that an integer of the array can take."""
    widths = (high - low for low, high in zip(leaf.low, leaf.high, strict=True))
    return max(widths, default=0.0) + 1.0 if leaf.size else math.inf
