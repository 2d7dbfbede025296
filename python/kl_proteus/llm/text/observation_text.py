"""Observations of any Gymnasium space as compact text with named values.

A renderer is an immutable callable that is compiled once from a space, so that a step costs
little more than its number formatting. Renderers hold no closures and can be pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector.utils import iterate

from kl_proteus.llm.text.coercion import to_array, to_integer, to_items, to_mapping
from kl_proteus.llm.text.space_names import LARGE, box_labels, item_path, key_path, parts
from kl_proteus.llm.text.wording import quoted, rounded

__all__ = ["observation_renderer"]

Renderer = Callable[[Any], str]

_ROOT = "observation"


def observation_renderer(space: spaces.Space[Any], labels: tuple[str, ...] = ()) -> Renderer:
    """Compile the function that writes observations of a space.

    Args:
        space: Any space. Observations of a space that Gymnasium does not define are written by
            their type: strings, numbers, arrays, and sequences and mappings of these.
        labels: What to call the values of a one-dimensional array; "observation[0]" and so on
            where left out.

    Returns:
        A picklable callable from an observation to text, which raises a `TypeError` or
        `ValueError` that names the value where an observation does not have the space's form.
    """
    if labels and isinstance(space, spaces.Box):
        return _Vector(_ROOT, space.shape, _prefixes(labels))
    return _compiled(space, _ROOT)


def _compiled(space: spaces.Space[Any], path: str) -> Renderer:
    whole = space  # keeps its static type, which a match of a generic class takes away
    match space:
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return _array(path, space.shape)
        case spaces.Discrete():
            return _Integer(path, int(space.start), int(space.n))
        case spaces.Text():
            return _String(path)
        case spaces.Tuple():
            return _Items(
                path, tuple(_compiled(child, item_path(path, i)) for i, child in parts(whole))
            )
        case spaces.Dict():
            return _Entries(
                path,
                tuple(
                    (key, _compiled(child, key_path(path, key, root=_ROOT)))
                    for key, child in parts(whole)
                ),
            )
        case spaces.OneOf():
            return _Choice(path, tuple(_compiled(child, path) for _, child in parts(whole)))
        case spaces.Sequence():
            return _Series(path, space)
        case spaces.Graph():
            return _Network(path)
        case _:
            return _Untyped(path)


def _prefixes(labels: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{label}=" for label in labels)


def _array(path: str, shape: tuple[int, ...]) -> Renderer:
    labels = box_labels(path, shape)
    if len(shape) == 1 and len(labels) == shape[0]:
        return _Vector(path, shape, _prefixes(labels))
    return _Array(path, shape)


@dataclass(frozen=True, slots=True)
class _Vector:
    """Write a short vector, every value under its own name."""

    path: str
    shape: tuple[int, ...]
    prefixes: tuple[str, ...]

    def __call__(self, value: Any) -> str:
        numbers = _of_shape(value, self.shape, self.path).tolist()
        return ", ".join(
            [prefix + _digits(x) for prefix, x in zip(self.prefixes, numbers, strict=True)]
        )


@dataclass(frozen=True, slots=True)
class _Array:
    """Write a scalar, a matrix or more as nested lists, and a summary of a large array."""

    path: str
    shape: tuple[int, ...]

    def __call__(self, value: Any) -> str:
        return f"{self.path}={_array_text(_of_shape(value, self.shape, self.path))}"


@dataclass(frozen=True, slots=True)
class _Integer:
    """Write an element of a Discrete space."""

    path: str
    start: int
    n: int

    def __call__(self, value: Any) -> str:
        number = to_integer(value, self.path)
        if not 0 <= number - self.start < self.n:
            raise ValueError(
                f"{self.path} must be an integer from {self.start} to "
                f"{self.start + self.n - 1}, got {number}"
            )
        return f"{self.path}={number}"


@dataclass(frozen=True, slots=True)
class _String:
    """Write a string in quotes, which keeps an empty one visible."""

    path: str

    def __call__(self, value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError(f"{self.path} must be a str, got {type(value).__name__} ({value!r})")
        return f"{self.path}={quoted(value)}"


@dataclass(frozen=True, slots=True)
class _Items:
    """Write the items of a Tuple space."""

    path: str
    children: tuple[Renderer, ...]

    def __call__(self, value: Any) -> str:
        items = to_items(value, self.path, len(self.children))
        texts = [child(item) for child, item in zip(self.children, items, strict=True)]
        return ", ".join(texts) or f"{self.path}=()"


@dataclass(frozen=True, slots=True)
class _Entries:
    """Write the entries of a Dict space, in the order of the space."""

    path: str
    children: tuple[tuple[Any, Renderer], ...]

    def __call__(self, value: Any) -> str:
        entries = to_mapping(value, self.path)
        try:
            texts = [child(entries[key]) for key, child in self.children]
        except KeyError as error:
            keys = [key for key, _ in self.children]
            raise ValueError(
                f"{self.path} must have the keys {keys}, got {list(entries)}"
            ) from error
        return ", ".join(texts) or f"{self.path}={{}}"


@dataclass(frozen=True, slots=True)
class _Choice:
    """Write an element of a OneOf space: which of its spaces, and the value."""

    path: str
    children: tuple[Renderer, ...]

    def __call__(self, value: Any) -> str:
        number, inner = to_items(value, self.path, 2)
        option = to_integer(number, f"{self.path} option")
        if not 0 <= option < len(self.children):
            raise ValueError(
                f"{self.path} option must be 0 to {len(self.children) - 1}, got {option}"
            )
        return f"{self.path} option={option}, {self.children[option](inner)}"


@dataclass(frozen=True, slots=True)
class _Series:
    """Write the items of a Sequence space, whose number is not known in advance."""

    path: str
    space: spaces.Sequence

    def __call__(self, value: Any) -> str:
        if self.space.stack:
            items = list(iterate(self.space.stacked_feature_space, value))
        else:
            items = to_items(value, self.path)
        texts = [f"{self.path} length={len(items)}"]
        for index, item in enumerate(items[:LARGE]):
            texts.append(_compiled(self.space.feature_space, item_path(self.path, index))(item))
        if len(items) > LARGE:
            texts.append(f"({len(items) - LARGE} more items not listed)")
        return ", ".join(texts)


@dataclass(frozen=True, slots=True)
class _Network:
    """Write the nodes, edges and edge links of a Graph space."""

    path: str

    def __call__(self, value: Any) -> str:
        try:
            arrays = {"nodes": value.nodes, "edges": value.edges, "links": value.edge_links}
        except AttributeError as error:
            raise TypeError(
                f"{self.path} must be a GraphInstance, got {value!r} ({type(value).__name__})"
            ) from error
        return ", ".join([_untyped(f"{self.path} {name}", part) for name, part in arrays.items()])


@dataclass(frozen=True, slots=True)
class _Untyped:
    """Write a value whose space says nothing about its form."""

    path: str

    def __call__(self, value: Any) -> str:
        return _untyped(self.path, value)


def _untyped(path: str, value: Any) -> str:
    if value is None:
        return f"{path}=none"
    if isinstance(value, str):
        return f"{path}={quoted(value)}"
    if _is(value, Mapping):
        entries = to_mapping(value, path).items()
        texts = [_untyped(key_path(path, key, root=_ROOT), entry) for key, entry in entries]
        return ", ".join(texts) or f"{path}={{}}"
    if _is(value, tuple, list):
        items = to_items(value, path)
        if not all(isinstance(item, int | float) for item in items):
            return ", ".join([_untyped(item_path(path, i), item) for i, item in enumerate(items)])
        value = items
    try:
        return f"{path}={_array_text(to_array(value, path))}"
    except TypeError as error:
        raise TypeError(
            f"{path} must be strings, numbers, arrays, or sequences and mappings of these, got "
            f"{type(value).__name__}; give observation_formatter to write it"
        ) from error


def _is(value: object, *kinds: type) -> bool:
    """Stand in for isinstance where its narrowing would lose the type of the items."""
    return isinstance(value, kinds)


def _of_shape(value: Any, shape: tuple[int, ...], path: str) -> npt.NDArray[Any]:
    array = value if type(value) is np.ndarray else to_array(value, path)
    if array.shape != shape:
        raise ValueError(f"{path} must be of shape {shape}, got shape {array.shape}")
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{path} must be real numbers, got dtype {array.dtype}")
    return array


def _digits(x: Any) -> str:
    # A longdouble stays a NumPy scalar in `tolist`.
    return rounded(float(x) if _is(x, np.floating) else x)


def _array_text(array: npt.NDArray[Any]) -> str:
    return _nested(array.tolist()) if array.size <= LARGE else _summary(array)


def _nested(values: Any) -> str:
    if _is(values, list):
        return f"[{', '.join(map(_nested, to_items(values, _ROOT)))}]"
    return _digits(values)


def _summary(array: npt.NDArray[Any]) -> str:
    """Describe a large array, such as "(96x96x3 uint8 array, min=0, mean=12.5, max=255, ...)"."""
    shape = "x".join(map(str, array.shape))
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    facts = [f"{shape} {array.dtype} array"]
    if finite.size:
        with np.errstate(over="ignore"):
            mean = float(finite.mean(dtype=np.float64))
        facts += [
            f"min={_digits(finite.min().item())}",
            f"mean={rounded(mean)}",
            f"max={_digits(finite.max().item())}",
        ]
    if finite.size < array.size:
        nan = int(np.isnan(array).sum())
        facts += [f"NaN={nan}", f"infinite={array.size - finite.size - nan}"]
    facts.append(f"{array.size} values not listed")
    return f"({', '.join(facts)})"
