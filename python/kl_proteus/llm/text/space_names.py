"""What the values of a space are called where nobody named them: "observation[0]", "goal[1]"."""

from __future__ import annotations

from typing import Any, cast

from gymnasium import spaces

from kl_proteus.llm.text.wording import single_line

__all__ = ["LARGE", "box_labels", "item_path", "key_path", "parts", "value_names"]

LARGE = 64
"""Arrays with more scalars than this are summarised and not listed."""


def parts(space: spaces.Space[Any]) -> list[tuple[Any, spaces.Space[Any]]]:
    """List the parts of a Dict, Tuple or OneOf space with their keys or positions."""
    children: Any = cast("Any", space).spaces
    if isinstance(space, spaces.Dict):
        return list(children.items())
    return [(index, children[index]) for index in range(len(children))]


def item_path(path: str, index: int) -> str:
    """Name the item of a tuple, such as "observation[1]"."""
    return f"{path}[{index}]"


def key_path(path: str, key: Any, *, root: str) -> str:
    """Name the entry of a dictionary: its key, after the names of the entries around it.

    Args:
        path: The name of the dictionary.
        key: The key, a string as a rule.
        root: The name of the outermost value, which adds nothing to the key and is left out.

    Returns:
        A name such as "goal" or "robot.arm".
    """
    name = single_line(str(key)) or "entry"
    return name if path == root else f"{path}.{name}"


def box_labels(path: str, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Name the values of an array: one each in a short vector, one for all in other shapes.

    Args:
        path: The name of the array.
        shape: Its shape.

    Returns:
        ("goal[0]", "goal[1]") for the path "goal" and the shape (2,); ("goal",) for a scalar, a
        matrix, or more than 64 scalars.
    """
    if len(shape) == 1 and 0 < shape[0] <= LARGE:
        return tuple(item_path(path, index) for index in range(shape[0]))
    return (path,)


def value_names(space: spaces.Space[Any], root: str) -> tuple[str, ...]:
    """Name the values of a whole space, in the order of the space.

    Args:
        space: Any space. One of variable size has a single name.
        root: What to call the outermost value, "observation" or "action".

    Returns:
        The names.
    """
    return tuple(_names(space, root, root))


def _names(space: spaces.Space[Any], path: str, root: str) -> list[str]:
    whole = space  # keeps its static type, which a test for a generic class takes away
    if isinstance(space, spaces.Dict | spaces.Tuple):
        keyed = isinstance(space, spaces.Dict)
        paths = [
            (child, key_path(path, key, root=root) if keyed else item_path(path, key))
            for key, child in parts(whole)
        ]
        return [name for child, child_path in paths for name in _names(child, child_path, root)]
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return list(box_labels(path, space.shape))
    return [path]
