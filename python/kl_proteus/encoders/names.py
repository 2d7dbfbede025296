"""Encoders by the text of their `repr`, as command lines and saved specs hold them."""

import ast
from typing import Any

from kl_proteus.encoders.exact_content import ExactContent
from kl_proteus.encoders.grey_grid import GreyGrid
from kl_proteus.encoders.leaf import ArrayEncoder
from kl_proteus.encoders.random_projection import RandomProjection

__all__ = ["named"]

_KINDS: dict[str, type[ExactContent | GreyGrid | RandomProjection]] = {
    kind.__name__: kind for kind in (ExactContent, GreyGrid, RandomProjection)
}


def named(text: str) -> ArrayEncoder | None:
    """The encoder that a text like "GreyGrid(rows=4)" means; None where it means none of them.

    Args:
        text: A name of this package, with literal keyword arguments in brackets where wanted.

    Raises:
        TypeError: An argument is unknown or of another type.
        ValueError: The brackets hold something else, or an argument is out of its range.
    """
    name, bracket, _ = text.partition("(")
    kind = _KINDS.get(name.strip())
    if kind is None:
        return None
    if not bracket:
        return kind()
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("expected keyword arguments only")
        arguments: dict[str, Any] = {}
        for keyword in call.keywords:
            if keyword.arg is None:
                raise ValueError("expected keyword arguments only")
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f"encoder must be like {kind()!r}, with literal keyword arguments, "
            f"got {text!r}: {error}"
        ) from None
    try:
        return kind(**arguments)
    except TypeError as error:
        raise TypeError(f"encoder {text!r}: {error}") from None
