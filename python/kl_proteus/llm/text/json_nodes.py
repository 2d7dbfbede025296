"""JSON with its numbers as the text they were written in, and exact conversions from there."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import numpy as np

__all__ = [
    "Number",
    "array_items",
    "object_members",
    "parse_json",
    "parse_number",
    "to_float",
    "to_int",
]

_INTEGER = re.compile(r"([+-]?[0-9]{1,40})(\.0*)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?inf(inity)?", re.I)


class Number(str):
    """A JSON number, or one of the words Infinity, -Infinity and NaN, not converted yet."""

    __slots__ = ()


def parse_json(text: str) -> Any:
    """Parse JSON.

    Args:
        text: One JSON value. Infinity and NaN are legal, as Python and JavaScript write them.

    Returns:
        The value, every number as a `Number`.

    Raises:
        ValueError: If the text is something else, repeats a key or is nested too deeply.
    """
    try:
        return json.loads(
            text,
            parse_float=Number,
            parse_int=Number,
            parse_constant=Number,
            object_pairs_hook=_members,
        )
    except RecursionError:
        raise ValueError("text must be JSON, got one that is nested too deeply") from None


def parse_number(text: str) -> Number | None:
    """Read a lone number, more liberally than JSON does: ".5", "+1", "2." and "inf" will do.

    Args:
        text: The text, without white space around the number.

    Returns:
        The number, or None if the text is not one.
    """
    return Number(text) if _NUMBER.fullmatch(text) else None


def to_float(node: Any, dtype: np.dtype[Any], argument: str) -> np.floating[Any]:
    """Convert a parsed number to a float.

    Args:
        node: What `parse_json` returned for the number.
        dtype: A float dtype of any width.
        argument: The name that errors give the value.

    Returns:
        The nearest float of that width; infinite only where the text says so.

    Raises:
        ValueError: If the node is no number, is NaN, or is beyond the range of the dtype.
    """
    if not isinstance(node, Number) or node == "NaN":
        raise ValueError(f"{argument} must be a number, got {node!r}")
    with np.errstate(over="ignore"):
        wide = dtype.itemsize > 8
        value: np.floating[Any] = dtype.type(str(node) if wide else float(node))
    if np.isinf(value) and "inf" not in node.lower():
        raise ValueError(f"{argument} must be within the range of {dtype}, got {node}")
    return value


def to_int(node: Any, argument: str) -> int:
    """Convert a parsed number to an integer.

    Args:
        node: What `parse_json` returned for the number. True and false count as 1 and 0.
        argument: The name that errors give the value.

    Returns:
        The integer.

    Raises:
        ValueError: If the node is no integer, or has more than 40 digits.
    """
    if isinstance(node, bool):
        return int(node)
    match = _INTEGER.fullmatch(node) if isinstance(node, Number) else None
    if match is None:
        raise ValueError(f"{argument} must be an integer, got {node!r}")
    return int(match[1])


def array_items(node: object, argument: str, length: int | None = None) -> list[Any]:
    """Return the items of a parsed JSON array.

    Args:
        node: What `parse_json` returned for the array.
        argument: The name that errors give the value.
        length: How many items there must be; None for any number.

    Returns:
        The items.

    Raises:
        ValueError: If the node is something else, or has another length.
    """
    if not isinstance(node, list):
        raise ValueError(f"{argument} must be an array, got {node!r}")
    items = cast("list[Any]", node)
    if length is not None and len(items) != length:
        raise ValueError(f"{argument} must have {length} items, got {len(items)}: {node!r}")
    return items


def object_members(node: object, argument: str) -> dict[str, Any]:
    """Return the members of a parsed JSON object.

    Args:
        node: What `parse_json` returned for the object.
        argument: The name that errors give the value.

    Returns:
        The members.

    Raises:
        ValueError: If the node is something else.
    """
    if not isinstance(node, dict):
        raise ValueError(f"{argument} must be an object, got {node!r}")
    return cast("dict[str, Any]", node)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError(f"text must not repeat a key, got the keys {[key for key, _ in pairs]}")
    return members
