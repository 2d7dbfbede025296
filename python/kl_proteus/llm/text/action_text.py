"""Actions as the text a model answers with, and the answer back as an action."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from kl_proteus.llm.tasks.quantities import Quantity
from kl_proteus.llm.text.action_codecs import action_codec
from kl_proteus.llm.text.coercion import to_integer
from kl_proteus.llm.text.json_nodes import parse_json, parse_number
from kl_proteus.llm.text.leaf_codecs import TextCodec
from kl_proteus.llm.text.wording import quoted

__all__ = ["ActionText", "JsonActions", "NumberedActions", "WordActions", "action_text"]

_PREFIX = re.compile(r"(?:the\s+)?(?:next\s+)?(?:action|answer)\s*(?:[:=]|is\b)\s*:?", re.I)
_NUMBERED = re.compile(r"(?:action\s*)?([+-]?[0-9]{1,40})")
# Straight, typographic and Markdown quotes; an asterisk pair is Markdown's bold.
_QUOTES = "\"'`*\u201c\u201d\u2018\u2019\u00ab\u00bb"
_MOST_LAYERS = 8
_LISTED = 32
_LONGEST_EXAMPLE = 200
_LONGEST_ECHO = 80


class ActionText(ABC):
    """How the actions of one space are written and read."""

    @abstractmethod
    def write(self, action: Any) -> str:
        """Return the text of an action; raise `TypeError` or `ValueError` if it is none."""

    @abstractmethod
    def parse(self, text: str) -> Any:
        """Return the action of a text; raise `ValueError` with the legal answers if it has none."""

    @abstractmethod
    def legal(self) -> str:
        """Return the legal answers as a phrase."""

    def instruction(self) -> str:
        """Return the sentence of a prompt that says how to answer."""
        return f"Answer with nothing but {self.legal()}."


class WordActions(ActionText):
    """The actions of a Discrete space under a name each.

    Args:
        space: The space.
        words: The names, in the order of the actions.

    Raises:
        ValueError: If there is not exactly one name an action, each different from the others.
    """

    def __init__(self, space: spaces.Discrete[Any], words: Sequence[str]) -> None:
        if len(words) != int(space.n) or len(set(words)) != len(words):
            raise ValueError(
                f"action names must be {space.n} different words, got {_shown(repr(list(words)))}"
            )
        self._space, self._words = space, tuple(words)
        values = [_discrete_value(space, index) for index in range(len(words))]
        self._exact: dict[str, Any] = dict(zip(words, values, strict=True))
        self._folded: dict[str, Any] = {}
        for word, value in self._exact.items():
            # Two names that differ in case only have no folded form.
            known = _folded(word) in self._folded
            self._folded[_folded(word)] = None if known else value

    @property
    def words(self) -> tuple[str, ...]:
        """The names, in the order of the actions."""
        return self._words

    def write(self, action: Any) -> str:
        """Return the name of an action, which may be any kind of integer."""
        return self._words[_discrete_index(self._space, action)]

    def parse(self, text: str) -> Any:
        """Return the action of a name, in any case and with the usual decoration around it."""
        if text in self._exact:
            return self._exact[text]
        for reading in _readings(text):
            value = self._exact.get(reading, self._folded.get(_folded(reading)))
            if value is not None:
                return value
        raise ValueError(f"text must be {self.legal()}; got {_shown(text)}")

    def legal(self) -> str:
        """Return the names."""
        plain = all(word.isprintable() and "," not in word for word in self._words)
        words = self._words if plain else map(quoted, self._words)
        return f"one of these actions: {', '.join(words)}"


class NumberedActions(ActionText):
    """The actions of a Discrete space without names: "action 3".

    Args:
        space: The space.
    """

    def __init__(self, space: spaces.Discrete[Any]) -> None:
        self._space = space
        self._first, self._last = int(space.start), int(space.start) + int(space.n) - 1

    def write(self, action: Any) -> str:
        """Return "action " and the number, which may be any kind of integer."""
        return f"action {self._first + _discrete_index(self._space, action)}"

    def parse(self, text: str) -> Any:
        """Return the action of "action 3" or "3", with the usual decoration around it."""
        for reading in _readings(text):
            match = _NUMBERED.fullmatch(_folded(reading))
            if match and self._first <= int(match[1]) <= self._last:
                return _discrete_value(self._space, int(match[1]) - self._first)
        raise ValueError(f"text must be {self.legal()}; got {_shown(text)}")

    def legal(self) -> str:
        """Return the actions, or the first and last of many."""
        if self._last - self._first >= _LISTED:
            return (
                f'the word "action" and a number from {self._first} to {self._last}, '
                f"such as: action {self._first}"
            )
        numbers = range(self._first, self._last + 1)
        return f"one of these actions: {', '.join([f'action {number}' for number in numbers])}"


class JsonActions(ActionText):
    """The actions of any other space as JSON; a lone number is written plainly.

    Args:
        space: A space that Gymnasium defines.
        quantities: What the values of a one-dimensional Box are.

    Raises:
        TypeError: If the space, or a part of it, is of another class.
        ValueError: If two keys of a Dict space are the same text.
    """

    def __init__(self, space: spaces.Space[Any], quantities: tuple[Quantity, ...]) -> None:
        self._codec = action_codec(space, quantities)

    def write(self, action: Any) -> str:
        """Return the action as JSON that `parse` reads back exactly."""
        return self._codec.write(action)

    def parse(self, text: str) -> Any:
        """Return the action of a text, with the dtype and shape of the space."""
        reason: ValueError | None = None
        for reading in _readings(text):
            for parse in (_number_or_json, _bare_list):
                try:
                    return self._codec.read(parse(reading))
                except ValueError as error:
                    # The first complaint says more than those about further attempts.
                    reason = reason or error
        if isinstance(self._codec, TextCodec):
            for reading in _readings(text):
                try:
                    return self._codec.read(reading)
                except ValueError as error:
                    reason = error
        raise ValueError(f"text must be {self.legal()}; got {_shown(text)}") from reason

    def legal(self) -> str:
        """Return what the codec of the space takes."""
        return self._codec.legal

    def instruction(self) -> str:
        """Return the sentence of a prompt that says how to answer, with an example."""
        example = self._codec.example()
        if parse_number(example) or len(example) > _LONGEST_EXAMPLE:
            return super().instruction()
        return f"{super().instruction()} An example of the form: {example}"


def action_text(
    space: spaces.Space[Any],
    words: Sequence[str] = (),
    quantities: tuple[Quantity, ...] = (),
) -> ActionText:
    """Choose how to write the actions of a space.

    Args:
        space: A space that Gymnasium defines.
        words: The names of the actions of a Discrete space, if they have names.
        quantities: What the values of a one-dimensional Box are, if that is known.

    Returns:
        An object that writes and reads actions and can be pickled.

    Raises:
        TypeError: If the space, or a part of it, is of another class.
        ValueError: If the names do not fit, or two keys of a Dict space are the same text.
    """
    if isinstance(space, spaces.Discrete):
        return WordActions(space, words) if words else NumberedActions(space)
    return JsonActions(space, quantities)


def _discrete_index(space: spaces.Discrete[Any], action: Any) -> int:
    index = to_integer(action, "action") - int(space.start)
    if not 0 <= index < space.n:
        raise ValueError(f"action must be an element of {space}, got {action!r}")
    return index


def _discrete_value(space: spaces.Discrete[Any], index: int) -> Any:
    return np.dtype(space.dtype).type(int(space.start) + index)


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()


def _readings(text: str) -> Iterator[str]:
    """Yield the text, then what is left as one layer of decoration after the other comes off."""
    yield text
    for _ in range(_MOST_LAYERS):
        inner = text.strip()
        if inner == text:
            inner = _PREFIX.sub("", text, count=1) if _PREFIX.match(text) else text
        if inner == text:
            inner = text.rstrip(".")
        if inner == text and len(text) > 1 and text[0] in _QUOTES and text[-1] in _QUOTES:
            inner = text[1:-1]
        if inner == text:
            return
        text = inner
        yield text


def _number_or_json(text: str) -> Any:
    return parse_number(text.strip()) or parse_json(text)


def _bare_list(text: str) -> Any:
    return parse_json(f"[{text}]")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_ECHO else f"{text[:_LONGEST_ECHO]}...")
