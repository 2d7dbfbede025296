"""Values of the spaces without parts, as JSON and back, without losing a bit.

A codec writes values of one space and reads them back with the dtype and shape of the space.
Bounds of a Box are not enforced in either direction, since policies hand over unclipped actions
as a rule. Everything else is: shapes, the range of an integer, the characters of a text.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from kl_proteus.llm.tasks.quantities import Quantity
from kl_proteus.llm.text.answer_format import describe_box, describe_integers, describe_text
from kl_proteus.llm.text.coercion import to_array, to_integer
from kl_proteus.llm.text.json_nodes import Number, array_items, to_float, to_int
from kl_proteus.llm.text.wording import quoted, shortest

__all__ = ["Codec", "DiscreteCodec", "FloatCodec", "IntegerCodec", "TextCodec", "box_codec"]


class Codec(ABC):
    """Writes the values of a space as JSON and reads them back.

    Attributes:
        path: The name that errors give the value.
        legal: The legal values as a phrase, such as "one number between -2 and 2".
    """

    path: str
    legal: str

    @abstractmethod
    def write(self, value: Any) -> str:
        """Return the value as JSON; raise `TypeError` or `ValueError` if it is no such value."""

    @abstractmethod
    def read(self, node: Any) -> Any:
        """Return the value of a parsed JSON node; raise `ValueError` if it has none."""

    @abstractmethod
    def example(self) -> str:
        """Return one legal value as JSON, always the same."""


class DiscreteCodec(Codec):
    """Codec of a Discrete space inside another space: a plain integer.

    Args:
        path: The name that errors give the value.
        space: The space.
    """

    def __init__(self, path: str, space: spaces.Discrete[Any]) -> None:
        self.path = path
        self._low, self._dtype = int(space.start), np.dtype(space.dtype)
        self._high = self._low + int(space.n) - 1
        self.legal = f"one integer from {self._low} to {self._high}"

    def write(self, value: Any) -> str:
        """Write an integer, in any form that `to_integer` takes."""
        return str(self._checked(to_integer(value, self.path)))

    def read(self, node: Any) -> Any:
        """Read a NumPy integer of the dtype of the space."""
        return self._dtype.type(self._checked(to_int(node, self.path)))

    def example(self) -> str:
        """Return the smallest integer."""
        return str(self._low)

    def _checked(self, number: int) -> int:
        if not self._low <= number <= self._high:
            raise ValueError(f"{self.path} must be {self.legal}, got {number}")
        return number


class FloatCodec(Codec):
    """Codec of a Box of floats: a number, or nested arrays of numbers.

    Args:
        path: The name that errors give the value.
        space: The space.
        quantities: What the values of a one-dimensional Box are.
    """

    def __init__(self, path: str, space: spaces.Box[Any], quantities: tuple[Quantity, ...]) -> None:
        self.path, self._shape, self._dtype = path, space.shape, space.dtype
        self.legal = describe_box(space, quantities, path)
        self._low, self._high = space.low, space.high

    def write(self, value: Any) -> str:
        """Write floats with the fewest digits that read back exactly."""
        array = _of_shape(value, self._shape, self.path)
        with np.errstate(over="ignore"):
            cast = array.astype(self._dtype)
        if np.isnan(cast).any():
            raise ValueError(f"{self.path} must not hold NaN, got {value!r}")
        if (np.isinf(cast) & np.isfinite(array)).any():
            raise ValueError(
                f"{self.path} must be within the range of {self._dtype}, got {value!r}"
            )
        return _nested([shortest(x) for x in cast.ravel()], self._shape)

    def read(self, node: Any) -> npt.NDArray[Any]:
        """Read an array of the dtype and shape of the space."""
        leaves = _leaves(node, self._shape, self.path)
        values = [to_float(leaf, self._dtype, self.path) for leaf in leaves]
        return np.array(values, dtype=self._dtype).reshape(self._shape)

    def example(self) -> str:
        """Return the middle of the box, with 0 in the place of a bound that is missing."""
        low = np.where(np.isfinite(self._low), self._low, 0)
        high = np.where(np.isfinite(self._high), self._high, 0)
        return self.write(np.clip(low / 2 + high / 2, self._low, self._high))


class IntegerCodec(Codec):
    """Codec of integer arrays: an integer, or nested arrays of integers.

    Args:
        path: The name that errors give the value.
        low: The smallest legal value of each integer.
        high: The largest legal value of each integer, in the same shape.
        dtype: The dtype of values that are read.
        legal: The legal values as a phrase.
    """

    def __init__(
        self,
        path: str,
        low: npt.NDArray[Any],
        high: npt.NDArray[Any],
        dtype: np.dtype[Any],
        legal: str,
    ) -> None:
        self.path, self.legal = path, legal
        self._shape, self._dtype = low.shape, dtype
        # Python integers: neither the 40 digits of an answer nor uint64 overflow a comparison.
        self._low: list[int] = [int(x) for x in low.ravel().tolist()]
        self._high: list[int] = [int(x) for x in high.ravel().tolist()]

    def write(self, value: Any) -> str:
        """Write integers; floats will do if they are whole."""
        array = _of_shape(value, self._shape, self.path)
        if array.dtype.kind == "f" and not all(x.is_integer() for x in array.ravel().tolist()):
            raise ValueError(f"{self.path} must hold integers, got {value!r}")
        numbers = self._checked([int(x) for x in array.ravel().tolist()])
        return _nested([str(number) for number in numbers], self._shape)

    def read(self, node: Any) -> npt.NDArray[Any]:
        """Read an array of the dtype and shape of the space."""
        leaves = _leaves(node, self._shape, self.path)
        numbers = self._checked([to_int(leaf, self.path) for leaf in leaves])
        return np.array(numbers, dtype=self._dtype).reshape(self._shape)

    def example(self) -> str:
        """Return the legal values that are nearest to zero."""
        bounds = zip(self._low, self._high, strict=True)
        return _nested([str(min(max(low, 0), high)) for low, high in bounds], self._shape)

    def _checked(self, numbers: list[int]) -> list[int]:
        for low, high, number in zip(self._low, self._high, numbers, strict=True):
            if not low <= number <= high:
                raise ValueError(
                    f"{self.path} must hold an integer from {low} to {high}, got {number}"
                )
        return numbers


class TextCodec(Codec):
    """Codec of a Text space: a JSON string.

    Args:
        path: The name that errors give the value.
        space: The space.
    """

    def __init__(self, path: str, space: spaces.Text) -> None:
        self.path, self._space = path, space
        self.legal = describe_text(space)

    def write(self, value: Any) -> str:
        """Write a member of the space."""
        if not isinstance(value, str):
            raise TypeError(f"{self.path} must be a str, got {value!r} ({type(value).__name__})")
        return quoted(self._checked(value))

    def read(self, node: Any) -> str:
        """Read a member of the space."""
        if not isinstance(node, str) or isinstance(node, Number):
            raise ValueError(f"{self.path} must be a string, got {node!r}")
        return self._checked(node)

    def example(self) -> str:
        """Return the first character of the charset, as often as the space asks for."""
        length = min(max(self._space.min_length, 1), self._space.max_length)
        return quoted("".join(self._space.character_list[:1]) * length)

    def _checked(self, text: str) -> str:
        if not self._space.contains(text):
            raise ValueError(f"{self.path} must be {self.legal}, got {text!a}")
        return text


def box_codec(path: str, space: spaces.Box[Any], quantities: tuple[Quantity, ...]) -> Codec:
    """Compile the codec of a Box, whose integers may take any value of their dtype.

    Args:
        path: The name that errors give the value.
        space: The space.
        quantities: What the values of a one-dimensional Box are.

    Returns:
        The codec.
    """
    if space.dtype.kind == "f":
        return FloatCodec(path, space, quantities)
    info = None if space.dtype.kind == "b" else np.iinfo(space.dtype)
    low = np.full(space.shape, info.min if info else False, dtype=space.dtype)
    high = np.full(space.shape, info.max if info else True, dtype=space.dtype)
    return IntegerCodec(path, low, high, space.dtype, describe_box(space, quantities, path))


def multi_codec(path: str, space: spaces.MultiDiscrete[Any] | spaces.MultiBinary) -> Codec:
    """Compile the codec of a MultiDiscrete or MultiBinary space.

    Args:
        path: The name that errors give the value.
        space: The space.

    Returns:
        The codec.
    """
    if isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + (space.nvec - 1)
    else:
        low, high = np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8)
    return IntegerCodec(path, low, high, np.dtype(space.dtype), describe_integers(low, high))


def _of_shape(value: Any, shape: tuple[int, ...], path: str) -> npt.NDArray[Any]:
    array = to_array(value, path)
    if array.shape != shape and not array.size == math.prod(shape) == 1:
        raise ValueError(f"{path} must be of shape {shape}, got {value!r} of shape {array.shape}")
    return array.reshape(shape)


def _nested(parts: list[str], shape: tuple[int, ...]) -> str:
    """Lay out the values of an array as nested JSON arrays, a lone value without any."""
    if len(parts) == 1:
        return parts[0]
    return _brackets(parts, shape)


def _brackets(parts: list[str], shape: tuple[int, ...]) -> str:
    if len(shape) == 1:
        return f"[{', '.join(parts)}]"
    rest = shape[1:]
    size = math.prod(rest)
    rows = [_brackets(parts[i * size : (i + 1) * size], rest) for i in range(shape[0])]
    return f"[{', '.join(rows)}]"


def _leaves(node: Any, shape: tuple[int, ...], path: str) -> list[Any]:
    """Take nested JSON arrays of exactly this shape apart."""
    leaves: list[Any] = [node]
    if math.prod(shape) == 1 and type(node) is not list:
        return leaves
    for length in shape:
        leaves = [row for rows in leaves for row in array_items(rows, path, length)]
    return leaves
