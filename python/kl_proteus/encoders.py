"""User-supplied functions, given as callables or by name."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def resolve(function: Callable[..., Any] | str, name: str) -> Callable[..., Any]:
    """The callable that an argument means.

    Args:
        function: A callable, or `"module:function"`, which survives a JSON round trip of the
            environment's spec.
        name: The argument's name, for messages.

    Raises:
        TypeError: It is neither, or the name does not lead to a callable.
        ValueError: The text is not of the form `module:function`, or leads nowhere.
    """
    if isinstance(function, str):
        module_name, _, path = function.partition(":")
        if not module_name or not path:
            raise ValueError(f"{name} must look like 'module:function', got {function!r}")
        try:
            found: Any = import_module(module_name)
            for part in path.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{name}={function!r} cannot be loaded: {error}") from error
    else:
        found = function
    if not callable(found):
        raise TypeError(
            f"{name} must be a callable or 'module:function', got {type(found).__name__}"
        )
    return found


def name_of(function: Callable[..., Any] | str) -> str:
    """The name under which snapshots record a function: `"module:qualified.name"`."""
    if isinstance(function, str):
        return function
    owner = function if hasattr(function, "__qualname__") else type(function)
    return f"{owner.__module__}:{owner.__qualname__}"
