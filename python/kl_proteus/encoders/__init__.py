"""Encoders: what turns an array with too many scalars for axes of their own into few cells.

`encoder="auto"` of the wrappers picks among these by the space alone, so that every worker picks
the same; each can be given by itself, as an object or as the text of its `repr`.
"""

from kl_proteus.encoders.automatic import choose
from kl_proteus.encoders.exact_content import ExactContent
from kl_proteus.encoders.grey_grid import GreyGrid
from kl_proteus.encoders.leaf import ArrayEncoder, ArrayLeaf
from kl_proteus.encoders.names import named
from kl_proteus.encoders.random_projection import RandomProjection

__all__ = [
    "ArrayEncoder",
    "ArrayLeaf",
    "ExactContent",
    "GreyGrid",
    "RandomProjection",
    "choose",
    "named",
]
