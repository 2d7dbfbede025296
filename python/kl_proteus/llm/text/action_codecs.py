"""Values of spaces with parts, as JSON and back, and the choice of the codec for a space."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from kl_proteus.llm.tasks.quantities import Quantity
from kl_proteus.llm.text.coercion import to_array, to_integer, to_items, to_mapping
from kl_proteus.llm.text.json_nodes import array_items, object_members, to_int
from kl_proteus.llm.text.leaf_codecs import Codec, DiscreteCodec, TextCodec, box_codec, multi_codec
from kl_proteus.llm.text.space_names import item_path, key_path, parts
from kl_proteus.llm.text.wording import quoted

__all__ = ["action_codec"]

_ROOT = "action"

_Parts = list[tuple[Any, spaces.Space[Any]]]


def action_codec(
    space: spaces.Space[Any], quantities: tuple[Quantity, ...] = (), path: str = _ROOT
) -> Codec:
    """Compile the codec of a space.

    Args:
        space: A space that Gymnasium defines.
        quantities: What the values of a one-dimensional Box are.
        path: The name that errors give the value.

    Returns:
        A codec, which can be pickled.

    Raises:
        TypeError: If the space, or a part of it, is of another class.
        ValueError: If two keys of a Dict space are the same text.
    """
    whole = space  # keeps its static type, which a match of a generic class takes away
    match space:
        case spaces.Discrete():
            return DiscreteCodec(path, space)
        case spaces.Box():
            return box_codec(path, space, quantities)
        case spaces.MultiDiscrete() | spaces.MultiBinary():
            return multi_codec(path, space)
        case spaces.Text():
            return TextCodec(path, space)
        case spaces.Tuple():
            return _TupleCodec(path, parts(whole))
        case spaces.Dict():
            return _DictCodec(path, parts(whole))
        case spaces.OneOf():
            return _OneOfCodec(path, parts(whole))
        case spaces.Sequence():
            kind = _StackCodec if space.stack else _SequenceCodec
            return kind(path, space.feature_space)
        case spaces.Graph():
            return _GraphCodec(path, space)
        case _:
            raise TypeError(
                f"action_space must consist of Gymnasium's own spaces, got {space!r} as {path}; "
                "give action_formatter and action_parser to write and read its actions"
            )


class _TupleCodec(Codec):
    def __init__(self, path: str, items: _Parts) -> None:
        self.path = path
        self._children = [action_codec(child, path=item_path(path, i)) for i, child in items]
        each = "; ".join(child.legal for child in self._children)
        self.legal = f"a JSON array of {len(self._children)} items: {each}"

    def write(self, value: Any) -> str:
        items = to_items(value, self.path, len(self._children))
        texts = [child.write(item) for child, item in zip(self._children, items, strict=True)]
        return f"[{', '.join(texts)}]"

    def read(self, node: Any) -> tuple[Any, ...]:
        items = array_items(node, self.path, len(self._children))
        return tuple(child.read(item) for child, item in zip(self._children, items, strict=True))

    def example(self) -> str:
        return f"[{', '.join([child.example() for child in self._children])}]"


class _DictCodec(Codec):
    def __init__(self, path: str, members: _Parts) -> None:
        self.path = path
        self._children = {
            key: action_codec(child, path=key_path(path, key, root=_ROOT)) for key, child in members
        }
        self._names = {key: str(key) for key in self._children}
        if len(set(self._names.values())) != len(self._names):
            raise ValueError(
                f"action_space must have keys that differ as text, got {list(self._children)}"
            )
        each = [f"{quoted(self._names[key])}: {c.legal}" for key, c in self._children.items()]
        self.legal = f"a JSON object with the members {'; '.join(each)}"

    def write(self, value: Any) -> str:
        entries = to_mapping(value, self.path)
        self._check_keys(list(entries), list(self._children))
        return self._object([child.write(entries[key]) for key, child in self._children.items()])

    def read(self, node: Any) -> dict[Any, Any]:
        members = object_members(node, self.path)
        names = list(self._names.values())
        if set(members) != set(names):
            # A model may change the case of a key; where that leaves no doubt, it is no mistake.
            folded = {name.casefold(): member for name, member in members.items()}
            if len(folded) == len(members):
                members, names = folded, [name.casefold() for name in names]
        self._check_keys(list(members), names)
        children = zip(self._children.items(), names, strict=True)
        return {key: child.read(members[name]) for (key, child), name in children}

    def example(self) -> str:
        return self._object([child.example() for child in self._children.values()])

    def _object(self, texts: list[str]) -> str:
        names = map(quoted, self._names.values())
        members = [f"{name}: {text}" for name, text in zip(names, texts, strict=True)]
        return f"{{{', '.join(members)}}}"

    def _check_keys(self, arrived: list[Any], expected: list[Any]) -> None:
        if len(arrived) != len(expected) or set(arrived) != set(expected):
            raise ValueError(
                f"{self.path} must have the keys {list(self._children)}, got {arrived}"
            )


class _OneOfCodec(Codec):
    def __init__(self, path: str, options: _Parts) -> None:
        self.path = path
        self._children = [action_codec(child, path=path) for _, child in options]
        takes = ", or ".join(f"option {i} takes {c.legal}" for i, c in enumerate(self._children))
        self.legal = f"a JSON array [option, value], where {takes}"

    def write(self, value: Any) -> str:
        option, item = to_items(value, self.path, 2)
        number = to_integer(option, f"{self.path} option")
        return f"[{number}, {self._child(number).write(item)}]"

    def read(self, node: Any) -> tuple[Any, Any]:
        option, item = array_items(node, self.path, 2)
        number = to_int(option, f"{self.path} option")
        return np.int64(number), self._child(number).read(item)

    def example(self) -> str:
        return f"[0, {self._children[0].example()}]"

    def _child(self, option: int) -> Codec:
        if not 0 <= option < len(self._children):
            raise ValueError(
                f"{self.path} option must be 0 to {len(self._children) - 1}, got {option}"
            )
        return self._children[option]


class _SequenceCodec(Codec):
    """Items of one space in a tuple."""

    def __init__(self, path: str, space: spaces.Space[Any]) -> None:
        self.path = path
        self._child = action_codec(space, path=f"{path} item")
        self.legal = f"a JSON array of any number of items, each {self._child.legal}"

    def write(self, value: Any) -> str:
        items = to_items(value, self.path)
        return f"[{', '.join([self._child.write(item) for item in items])}]"

    def read(self, node: Any) -> tuple[Any, ...]:
        return tuple(map(self._child.read, array_items(node, self.path)))

    def example(self) -> str:
        return f"[{self._child.example()}]"


class _StackCodec(Codec):
    """Items of one space, stacked into arrays with a leading axis."""

    def __init__(self, path: str, space: spaces.Space[Any]) -> None:
        self.path, self._space = path, space
        self._batch = batch_space(space, 1)
        self._child = action_codec(space, path=f"{path} item")
        self.legal = f"a JSON array of any number of items, each {self._child.legal}"

    def write(self, value: Any) -> str:
        items = [self._child.write(item) for item in iterate(self._batch, value)]
        return f"[{', '.join(items)}]"

    def read(self, node: Any) -> Any:
        items = [self._child.read(item) for item in array_items(node, self.path)]
        empty = create_empty_array(self._space, len(items))
        return concatenate(self._space, items, empty) if items else empty

    def example(self) -> str:
        return f"[{self._child.example()}]"


class _GraphCodec(Codec):
    def __init__(self, path: str, space: spaces.Graph) -> None:
        self.path = path
        self._nodes = _StackCodec(f"{path} nodes", space.node_space)
        edges = space.edge_space
        self._edges = None if edges is None else _StackCodec(f"{path} edges", edges)
        each_edge = "null" if self._edges is None else f"{self._edges.legal}, or null"
        self.legal = (
            f'a JSON object with the members "nodes": {self._nodes.legal}; "edges": {each_edge}; '
            '"edge_links": an array with the numbers of the two nodes of each edge, [from, to], '
            "or null"
        )

    def write(self, value: Any) -> str:
        if not isinstance(value, spaces.GraphInstance):
            raise TypeError(f"{self.path} must be a GraphInstance, got {type(value).__name__}")
        nodes = self._nodes.write(value.nodes)
        if value.edges is None or value.edge_links is None or self._edges is None:
            if value.edges is not None or value.edge_links is not None:
                raise ValueError(f"{self.path} must have edges with links, or none of both")
            return f'{{"nodes": {nodes}, "edges": null, "edge_links": null}}'
        edges = self._edges.write(value.edges)
        links = to_array(value.edge_links, f"{self.path} edge_links").tolist()
        return f'{{"nodes": {nodes}, "edges": {edges}, "edge_links": {links}}}'

    def read(self, node: Any) -> spaces.GraphInstance:
        members = object_members(node, self.path)
        if set(members) != {"nodes", "edges", "edge_links"}:
            raise ValueError(
                f'{self.path} must have "nodes", "edges" and "edge_links", got {list(members)}'
            )
        count = len(array_items(members["nodes"], f"{self.path} nodes"))
        nodes = self._nodes.read(members["nodes"])
        if members["edges"] is None and members["edge_links"] is None:
            return spaces.GraphInstance(nodes, None, None)
        if self._edges is None:
            raise ValueError(f"{self.path} must have no edges, got {members['edges']!r}")
        edges = array_items(members["edges"], f"{self.path} edges")
        path = f"{self.path} edge_links"
        pairs = array_items(members["edge_links"], path, len(edges))
        ends = [to_int(end, path) for pair in pairs for end in array_items(pair, path, 2)]
        if not all(0 <= end < count for end in ends):
            raise ValueError(f"{path} must name nodes below {count}, got {ends}")
        links = np.array(ends, dtype=np.int32).reshape(-1, 2)
        return spaces.GraphInstance(nodes, self._edges.read(edges), links)

    def example(self) -> str:
        return f'{{"nodes": {self._nodes.example()}, "edges": null, "edge_links": null}}'
