"""What an environment hands over, checked and given a type."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

__all__ = ["to_array", "to_integer", "to_items", "to_mapping"]


def to_integer(value: Any, argument: str) -> int:
    """Read one integer.

    Args:
        value: A Python or NumPy integer, or an integer array with one element.
        argument: The name that errors give the value.

    Returns:
        The value as a Python integer.

    Raises:
        TypeError: If the value is not an integer.
    """
    try:
        return operator.index(value)
    except TypeError:
        array = to_array(value, argument)
    if array.size != 1 or array.dtype.kind not in "iub":
        raise TypeError(
            f"{argument} must be one integer, got {value!r} ({array.dtype}, shape {array.shape})"
        )
    return int(array.item())


def to_array(value: Any, argument: str) -> npt.NDArray[Any]:
    """Read numbers of any shape.

    Args:
        value: A number, an array, a nested sequence, or anything that `np.asarray` takes.
        argument: The name that errors give the value.

    Returns:
        The values as an array of booleans, integers or floats.

    Raises:
        TypeError: If the values are not real numbers.
        ValueError: If a nested sequence is ragged.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{argument} must be a rectangular array, got {value!r}") from error
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{argument} must be real numbers, got {type(value).__name__} of dtype {array.dtype}"
        )
    return array


def to_items(value: object, argument: str, length: int | None = None) -> list[Any]:
    """Read the items of a tuple or list.

    Args:
        value: The tuple or list.
        argument: The name that errors give the value.
        length: How many items there must be; None for any number.

    Returns:
        The items.

    Raises:
        TypeError: If the value is of another type.
        ValueError: If it has another length.
    """
    if not isinstance(value, tuple | list):
        raise TypeError(f"{argument} must be a tuple, got {value!r} ({type(value).__name__})")
    items = list(cast("tuple[Any, ...] | list[Any]", value))
    if length is not None and len(items) != length:
        raise ValueError(f"{argument} must have {length} items, got {len(items)}: {value!r}")
    return items


def to_mapping(value: object, argument: str) -> Mapping[Any, Any]:
    """Read a mapping.

    Args:
        value: The mapping.
        argument: The name that errors give the value.

    Returns:
        The mapping itself.

    Raises:
        TypeError: If the value is of another type.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{argument} must be a mapping, got {value!r} ({type(value).__name__})")
    return cast("Mapping[Any, Any]", value)
