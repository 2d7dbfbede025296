"""User functions, given as a callable or as "module:function"."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from typing import Any

from kl_proteus import _checks

__all__ = ["Hook", "TextHook", "name_of", "resolve"]


class Hook:
    """A user function under the name of the argument it was passed as.

    A string is resolved at once, so that a mistake shows where it was made. What is copied and
    pickled is the string, and the copy resolves it again on its first call.

    Args:
        argument: The name that errors give the function.
        source: A callable, or a string "module:function" ("module:Class.method" works as well).

    Raises:
        TypeError: If `source`, or what the string names, cannot be called.
        ValueError: If the string has another form, or names nothing that can be imported.
    """

    __slots__ = ("_argument", "_function", "_source")

    def __init__(self, argument: str, source: Callable[..., Any] | str) -> None:
        self._argument = argument
        self._source = source
        self._function: Callable[..., Any] | None = resolve(argument, source)

    def __call__(self, value: Any) -> Any:
        """Call the user's function with one argument and return what it returns."""
        function = self._function
        if function is None:
            function = self._function = resolve(self._argument, self._source)
        return function(value)

    def __getstate__(self) -> tuple[str, Callable[..., Any] | str]:
        return self._argument, self._source

    def __setstate__(self, state: tuple[str, Callable[..., Any] | str]) -> None:
        self._argument, self._source = state
        self._function = None if isinstance(self._source, str) else self._source

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._argument!r}, {self._source!r})"


class TextHook(Hook):
    """A user function that must return text, with the arguments and errors of `Hook`."""

    __slots__ = ()

    def __call__(self, value: Any) -> str:
        """Call the user's function and check that it returned usable text.

        Args:
            value: The observation or action to write.

        Returns:
            The text, as a plain `str`.

        Raises:
            TypeError: If the function returned something else than a string.
            ValueError: If the text is empty, only white space, or not valid UTF-8.
        """
        text = super().__call__(value)
        return str(_checks.text(f"the result of {self._argument}", text, blank=False))


def name_of(source: Callable[..., Any] | str) -> str:
    """Return the name under which files record a function: "module:qualified.name".

    Lambdas share their name, so a fingerprint of what they do is added to it.
    """
    if isinstance(source, str):
        return source
    owner = source if hasattr(source, "__qualname__") else type(source)
    name = f"{owner.__module__}:{owner.__qualname__}"
    code = getattr(source, "__code__", None)
    if code is not None and code.co_name == "<lambda>":
        parts = (code.co_code, code.co_names, code.co_varnames, repr(code.co_consts))
        name += f"#{hashlib.sha256(repr(parts).encode()).hexdigest()[:8]}"
    return name


def resolve(argument: str, source: Callable[..., Any] | str) -> Callable[..., Any]:
    """Return the callable that an argument means.

    Args:
        argument: The name that errors give the function.
        source: A callable, or a string "module:function".

    Raises:
        TypeError: If `source`, or what the string names, cannot be called.
        ValueError: If the string has another form, or names nothing that can be imported.
    """
    if not isinstance(source, str):
        if not callable(source):
            raise TypeError(
                f'{argument} must be a callable or a "module:function" string, '
                f"got {source!r} ({type(source).__name__})"
            )
        return source
    module_name, colon, path = source.partition(":")
    if not (colon and module_name.strip() and path.strip()):
        raise ValueError(f'{argument} must be a "module:function" string, got {source!r}')
    try:
        found: Any = importlib.import_module(module_name)
    except (ImportError, ValueError, TypeError) as error:
        # TypeError: a relative module name, which has no package to be relative to.
        raise ValueError(f"{argument} must name a module, got {source!r}: {error}") from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise ValueError(f"{argument} must name a function, got {source!r}: {error}") from error
    if not callable(found):
        raise TypeError(f"{argument} must name a callable, got {source!r} ({type(found).__name__})")
    return found
