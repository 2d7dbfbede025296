"""What ends a command, and how any error is told in one line."""

import re
from pathlib import Path
from types import FrameType

__all__ = ["CommandError", "Interrupted", "ReaderGone", "describe", "one_line"]

_ANSI = re.compile(r"\x1b\[[0-9;]*m")

# Errors of these packages speak to the user; those of other code need their place.
_OWN = frozenset({"kl_proteus", "gymnasium", "importlib"})

# Their text is a sentence; that of a KeyError, say, is not.
_TALKING = (ValueError, TypeError, OSError, ImportError, AttributeError, AssertionError)


class CommandError(Exception):
    """A failure of the command, told to the user in one line."""

    status = 1
    label = "error: "


class Interrupted(CommandError):
    """The user pressed Ctrl-C."""

    status = 130
    label = ""


class ReaderGone(CommandError):
    """Whoever read standard output has closed it, so that there is nobody to tell."""


def one_line(text: str) -> str:
    """The text without line breaks, runs of blanks and colours."""
    return " ".join(_ANSI.sub("", text).split())


def describe(error: BaseException) -> str:
    """An error in one line: what happened and, in code of the user, what kind and where.

    Args:
        error: Any error, as it was caught.

    Returns:
        The text, never empty.
    """
    kind = type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        named = f": {error.filename}" if error.filename is not None else ""
        return one_line(f"{error.strerror}{named}")
    text = one_line(str(error))
    frame, line = _origin(error)
    package = "" if frame is None else str(frame.f_globals.get("__name__", "")).partition(".")[0]
    if frame is None or package in _OWN:
        talks = isinstance(error, _TALKING) or type(error).__module__.startswith("gymnasium")
        return text if text and talks else f"{kind}: {text}".removesuffix(": ")
    place = f"{Path(frame.f_code.co_filename).name}, line {line}"
    # A SyntaxError says its place itself.
    if isinstance(error, SyntaxError):
        return f"{kind}: {text}"
    return f"{kind}: {text} ({place})" if text else f"{kind} ({place})"


def _origin(error: BaseException) -> tuple[FrameType | None, int]:
    """The frame that raised, and its line."""
    trace = error.__traceback__
    if trace is None:
        return None, 0
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame, trace.tb_lineno
