"""Numbers and strings as text: free of locale, the same on every platform, valid UTF-8."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

__all__ = ["printable", "quoted", "rounded", "shortest", "single_line"]

_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def rounded(value: float) -> str:
    """Write a number for a reader, with about four significant digits.

    Integers and booleans are exact. Floats keep four significant digits, but are never rounded
    to more than a unit below 10 million, so a price reads 12346 and not 1.235e+04.

    Args:
        value: A Python number.

    Returns:
        The text. It is never "-0"; infinities and NaN are the words "Infinity", "-Infinity", "NaN".
    """
    if not isinstance(value, float):
        return str(int(value))
    if -9999.5 < value < 9999.5:
        return f"{value + 0.0:.4g}"  # adding zero turns -0.0 into 0.0
    if value != value:
        return "NaN"
    if value in (np.inf, -np.inf):
        return "Infinity" if value > 0 else "-Infinity"
    return f"{value:.0f}" if abs(value) < 1e7 else f"{value:.4g}"


def shortest(value: np.floating[Any]) -> str:
    """Write a float with the fewest digits that read back as exactly the same float.

    Args:
        value: A NumPy float of any width; not NaN.

    Returns:
        Decimal text such as "0.1", "-0", "1e-10" or "-Infinity".
    """
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    size = abs(float(value))  # half precision cannot be compared with 1e16
    if value == 0 or 1e-4 <= size < 1e16:
        text = np.format_float_positional(value, unique=True, trim="-")
    else:
        text = np.format_float_scientific(value, unique=True, trim="-", exp_digits=1)
    # Narrow floats are read through float64. Where rounding twice would miss the value, the
    # digits of the float64 that equals it are exact.
    if value.dtype.itemsize < 8 and value.dtype.type(float(text)) != value:
        return repr(float(value))
    return text


def quoted(text: str) -> str:
    r"""Write a string as JSON, with lone surrogates escaped so that the result is valid UTF-8.

    Args:
        text: Any string.

    Returns:
        The JSON string, non-ASCII characters as they are.

    Raises:
        ValueError: If a high and a low surrogate are neighbours: JSON reads the pair back as one
            character.
    """
    if text.isascii():
        return json.dumps(text)
    if _SURROGATE_PAIR.search(text):
        raise ValueError(
            f"text must be Unicode characters, got {text!a} with a surrogate pair in two pieces"
        )
    literal = json.dumps(text, ensure_ascii=False)
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", literal)


def printable(text: str) -> str:
    """Make a string valid UTF-8 where its exact characters do not matter.

    Args:
        text: Any string.

    Returns:
        The text with surrogates as U+FFFD.
    """
    return _SURROGATE.sub("\ufffd", text)


def single_line(text: str) -> str:
    """Make a name fit for a prompt: one line, valid UTF-8.

    Args:
        text: A name such as a dictionary key or an environment id.

    Returns:
        The text with runs of white space as one space and lone surrogates as U+FFFD.
    """
    return printable(" ".join(text.split()))
