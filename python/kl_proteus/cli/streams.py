"""Standard output holds the results only; everything else goes to standard error."""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO

from kl_proteus.cli.failures import CommandError, ReaderGone, one_line

__all__ = [
    "check_output",
    "complain",
    "log_as_lines",
    "only_results",
    "say",
    "warnings_as_lines",
    "write",
]


def check_output() -> None:
    """Refuses to work for nothing.

    Raises:
        CommandError: Standard output is closed.
    """
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise CommandError("cannot write the results: standard output is closed")


def write(text: str) -> None:
    """Writes results to standard output.

    Args:
        text: The text, as it is; what the encoding of the stream lacks is escaped.

    Raises:
        ReaderGone: The other end of a pipe has been closed.
        CommandError: It cannot be written, for instance because a disk is full.
    """
    stream = sys.stdout
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        _discard(stream)
        raise ReaderGone from None
    except OSError as error:
        _discard(stream)
        reason = error.strerror or error
        raise CommandError(f"cannot write the results to standard output: {reason}") from error


def say(text: str) -> None:
    """Tells the user something in one line on standard error, if anybody listens."""
    with contextlib.suppress(OSError, ValueError):
        print(f"kl-proteus: {one_line(text)}", file=sys.stderr, flush=True)


def complain(error: CommandError) -> None:
    """Tells the user why the command ended."""
    if not isinstance(error, ReaderGone):
        say(f"{error.label}{error}")


@contextmanager
def only_results() -> Generator[None]:
    """Sends to standard error what environments and policies print to standard output.

    That includes what compiled simulators and child processes print.
    """
    out, err = sys.stdout, sys.stderr
    with contextlib.ExitStack() as stack:
        if err is None:  # pyright: ignore[reportUnnecessaryComparison]
            err = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123
        stack.enter_context(_same_file(out, err))
        stack.enter_context(contextlib.redirect_stdout(err))
        yield


@contextmanager
def warnings_as_lines(tell: Callable[[str], None]) -> Generator[None]:
    """Tells Python's warnings in a line each, without colours or source code.

    Args:
        tell: What to do with the line.
    """

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        del category, filename, lineno, file, line
        tell(f"warning: {one_line(str(message)).removeprefix('WARN: ')}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def log_as_lines(tell: Callable[[str], None]) -> Generator[None]:
    """Tells what the package logs in a line each, and to nobody else.

    Args:
        tell: What to do with the line.
    """
    logger = logging.getLogger("kl_proteus")
    propagate = logger.propagate
    handler = _Lines(tell)
    logger.addHandler(handler)
    # A policy may have set up logging, and would tell it a second time.
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = propagate
        logger.removeHandler(handler)


class _Lines(logging.Handler):
    """Tells warnings and worse."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def _same_file(out: TextIO, err: TextIO) -> Generator[None]:
    """Lets the descriptor of one stream lead to the file of the other one."""
    try:
        descriptor, target = out.fileno(), err.fileno()
    except (OSError, ValueError):  # a stream in memory
        yield
        return
    out.flush()
    saved = os.dup(descriptor)
    os.dup2(target, descriptor)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            out.flush()
        _flush_c()
        os.dup2(saved, descriptor)
        os.close(saved)


def _flush_c() -> None:
    """Empties the buffers of the C library, which outlive the redirection otherwise."""
    if os.name == "posix":
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).fflush(None)


def _discard(stream: TextIO) -> None:
    """Makes the flush at exit succeed: Python would report the same error once more."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)
