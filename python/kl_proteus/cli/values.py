"""Values of options, checked while the command line is read."""

import json
import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any, cast

__all__ = [
    "bins",
    "bounds",
    "encoder",
    "environment_arguments",
    "number",
    "path",
    "policy",
    "qualified_name",
    "whole",
]

MOST_BINS = 2**31 - 1


def whole(
    minimum: int, maximum: int | None = None, *, none: bool = False
) -> Callable[[str], int | None]:
    """A reader of integers.

    Args:
        minimum: Smallest legal value.
        maximum: Largest legal value; None is no limit.
        none: The word `none` is legal too, and becomes None.
    """
    upper = "" if maximum is None else f" and at most {maximum}"
    expected = f"an integer of at least {minimum}{upper}{', or none' if none else ''}"

    def read(text: str) -> int | None:
        if none and text.strip().lower() == "none":
            return None
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value < minimum or (maximum is not None and value > maximum):
            raise ArgumentTypeError(f"must be {expected}, got {text!r}")
        return value

    return read


def number(
    minimum: float, maximum: float = math.inf, *, above_minimum: bool = False
) -> Callable[[str], float]:
    """A reader of finite numbers.

    Args:
        minimum: Smallest legal value.
        maximum: Largest legal value.
        above_minimum: The minimum itself is not legal.
    """
    expected = f"a number {'above' if above_minimum else 'of at least'} {minimum:g}"
    if math.isfinite(maximum):
        expected += f" and at most {maximum:g}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        legal = minimum < value if above_minimum else minimum <= value
        if not (legal and value <= maximum and math.isfinite(value)):
            raise ArgumentTypeError(f"must be {expected}, got {text!r}")
        return value

    return read


def bins(text: str) -> int | list[int]:
    """One number of bins, or one per axis, separated by commas."""
    read = whole(1, MOST_BINS)
    try:
        values = [read(part) for part in text.split(",")]
    except ArgumentTypeError:
        raise ArgumentTypeError(
            f"must be an integer from 1 to {MOST_BINS}, or one per axis separated by commas, "
            f"got {text!r}"
        ) from None
    listed = [value for value in values if value is not None]
    return listed if "," in text else listed[0]


def bounds(text: str) -> tuple[float | None, float | None]:
    """A range, `LOW:HIGH`; a side that is `none` has no bound."""
    try:
        low, high = map(_bound, text.split(":"))
    except ValueError:
        raise ArgumentTypeError(f"must be LOW:HIGH, each a number or none, got {text!r}") from None
    if low is not None and high is not None and low > high:
        raise ArgumentTypeError(f"must have a low of at most the high, got {text!r}")
    return low, high


def _bound(text: str) -> float | None:
    if text.strip().lower() == "none":
        return None
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def path(text: str) -> str:
    """The path of a file or directory."""
    if not text:
        raise ArgumentTypeError("must be a path, got ''")
    return text


def qualified_name(text: str) -> str:
    """The name of a function, `module:function`."""
    module, _, function = text.partition(":")
    if not module.strip() or not function.strip():
        raise ArgumentTypeError(f"must look like module:function, got {text!r}")
    return text


def encoder(text: str) -> str | None:
    """`auto`, `none` for None, an encoder of kl_proteus.encoders, or the name of a function."""
    word = text.strip()
    if word.lower() in ("auto", "none"):
        return None if word.lower() == "none" else "auto"
    # Not needed to show the help, and slow.
    from kl_proteus import encoders

    try:
        return text if encoders.named(word) is not None else qualified_name(text)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(str(error)) from None
    except ArgumentTypeError:
        raise ArgumentTypeError(
            "must be auto, none, an encoder such as 'GreyGrid(rows=4)', or module:function, "
            f"got {text!r}"
        ) from None


def policy(text: str) -> str:
    """`random`, or the name of a policy."""
    if text == "random":
        return text
    try:
        return qualified_name(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(f"must be random or module:callable, got {text!r}") from None


def environment_arguments(text: str) -> dict[str, Any]:
    """Keyword arguments of an environment, as a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"must be a JSON object, got {text!r}: {error}") from None
    if not isinstance(value, dict):
        raise ArgumentTypeError(f"must be a JSON object, got {text!r}")
    return cast(dict[str, Any], value)
