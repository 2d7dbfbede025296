r"""Strict JSON Lines: UTF-8, ``\n`` after every row, finite numbers only, no BOM.

Rows written here load in strict parsers: NaN, infinity and lone surrogates never get into a file.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import math
import os
import secrets
import stat
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn, cast

from kl_proteus import _checks

__all__ = [
    "count_rows",
    "encode_row",
    "read_rows",
    "repair_tail",
    "sync_directory",
    "write_all",
    "write_atomic",
]

_logger = logging.getLogger(__name__)

_BLOCK = 1 << 16
_BATCH = 1 << 20
_MAX_DEPTH = 64
_O_BINARY: int = getattr(os, "O_BINARY", 0)

# Legal inside JSON strings, but `str.splitlines` and other readers take them for the end of a row.
_LINE_BREAKS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def encode_row(row: Mapping[str, object]) -> bytes:
    r"""Encode one row as a line of strict JSON.

    Args:
        row: Field names and JSON values (str, bool, int, float, None, lists, dicts).

    Returns:
        The UTF-8 line, its ``\n`` included; no other line break occurs in it.

    Raises:
        TypeError: If a value has no JSON form; the message names the field.
        ValueError: If a number is NaN or infinite, or text holds a lone surrogate; the message
            names the field.
    """
    row = dict(row)
    try:
        line = json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        if not line.isascii():
            for character, escape in _LINE_BREAKS.items():
                line = line.replace(character, escape)
        return line.encode("utf-8") + b"\n"
    except (TypeError, ValueError):
        # The encoder does not say where, so look for the culprit; only a failure pays for it.
        _raise_for_field(row, "")
        raise


def read_rows(
    path: str | os.PathLike[str], *, skip_torn_tail: bool = False
) -> Iterator[dict[str, object]]:
    """Stream the rows of a JSON Lines file in constant memory.

    Rows that are appended after reading began are not read.

    Args:
        path: File to read.
        skip_torn_tail: Whether a last line that is no JSON object (its writer was killed, is
            writing at this moment, or has reserved the space) ends the stream instead of raising.

    Yields:
        The rows, first to last.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If a line is not an object in strict JSON; the message has the path and the
            line number.
    """
    with Path(path).open("rb", buffering=0) as raw, io.BufferedReader(raw) as file:
        end = os.fstat(raw.fileno()).st_size
        if skip_torn_tail and end > 0:
            # A writer may change what follows the last line break at any moment, so that is
            # looked at once, and before anything is in the buffer.
            start, last = _last_line(raw, end)
            if not last.endswith(b"\n") and not _is_object(last):
                end = start
            raw.seek(0)
        position = 0
        for number, line in enumerate(file, start=1):
            if position >= end:
                return
            position += len(line)
            try:
                row = _parse(line)
            except ValueError as error:
                if skip_torn_tail and position >= end and not _is_object(line):
                    return
                raise ValueError(f"{os.fspath(path)}, line {number}: {error}") from None
            yield row


def count_rows(path: str | os.PathLike[str]) -> int:
    """Count the whole rows of a JSON Lines file; a torn last line is not one.

    Args:
        path: File to read.

    Returns:
        The number of rows.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the file ends in more than one line that is not a row.
    """
    # Without a buffer: a writer may change the tail between two looks at it.
    with Path(path).open("rb", buffering=0) as file:
        end, unterminated = _whole_rows(file, path)
        file.seek(0)
        rows = int(unterminated)
        while end > 0 and (block := file.read(min(_BLOCK, end))):
            rows += block.count(b"\n")
            end -= len(block)
    return rows


def repair_tail(path: str | os.PathLike[str]) -> int:
    r"""Make the end of a JSON Lines file whole again after its writer was killed.

    A last line that is not a JSON object is cut off. A last line that is a whole object and lacks
    only its ``\n`` gets it, because nothing of that row is missing. The caller makes sure that
    nobody else is writing to the file.

    Args:
        path: File to repair, in place.

    Returns:
        The number of bytes dropped; 0 when no row was torn.

    Raises:
        OSError: If the file cannot be read or changed.
        ValueError: If the line before the last is no JSON object either. That is not what a killed
            writer leaves behind, so the file stays as it was.
    """
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        end, unterminated = _whole_rows(file, path)
    if unterminated:
        with Path(path).open("ab", buffering=0) as file:
            write_all(file.fileno(), b"\n")
    elif end < size:
        os.truncate(path, end)
        _logger.warning("%s: dropped a torn last line of %d bytes", os.fspath(path), size - end)
    return size - end


def write_atomic(path: str | os.PathLike[str], rows: Iterable[Mapping[str, object]]) -> int:
    """Write a whole JSON Lines file, or leave what was there untouched.

    The rows go to a temporary file in the same directory, which replaces ``path`` once it is
    complete and on disk. Whatever fails on the way (a row, the disk, an interrupt), the temporary
    file is removed. Rows are consumed one at a time. A symbolic link is followed, and the
    permissions of an existing file are kept.

    Args:
        path: File to create or replace. Its directory must exist.
        rows: Rows as `encode_row` takes them.

    Returns:
        The number of rows written.

    Raises:
        OSError: If the file cannot be written.
        TypeError: If a row has a value without a JSON form.
        ValueError: If there are no rows (trainers fail on an empty file), if a row is not strict
            JSON, or if ``path`` is something other than a regular file.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"path must be a file to write, got the directory {target}")
    if target.exists() and not target.is_file():
        raise ValueError(f"path must be a regular file, got {target}")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path must lie in an existing directory, got {target}")
    remaining = iter(rows)
    first = next(remaining, None)
    if first is None:
        raise ValueError(f"rows must hold at least one row, got none; {target} was left as it was")
    temporary = target.parent / f".kl-proteus-{secrets.token_hex(8)}.tmp"
    try:
        count = _write_new(temporary, target, first, remaining)
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)
    return count


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``, in one system call unless the system takes only a part of it.

    Args:
        descriptor: File descriptor that is open for writing.
        data: What to write.

    Raises:
        OSError: If the system refuses some of it; an earlier part may have been written.
    """
    remaining = memoryview(data)
    while remaining:
        written = os.write(descriptor, remaining)
        if written <= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        remaining = remaining[written:]


def _write_new(
    temporary: Path,
    target: Path,
    first: Mapping[str, object],
    rest: Iterator[Mapping[str, object]],
) -> int:
    """Create ``temporary`` with the rows in it, synced to disk; return their number."""
    # Not `tempfile`: its files are private (0600), and the result should honour the umask.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _O_BINARY
    with _naming(target):
        descriptor = os.open(temporary, flags, 0o666)
    try:
        buffer = bytearray(encode_row(first))
        count = 1
        for row in rest:
            buffer += encode_row(row)
            count += 1
            if len(buffer) >= _BATCH:
                with _naming(target):
                    write_all(descriptor, bytes(buffer))
                buffer.clear()
        with _naming(target):
            write_all(descriptor, bytes(buffer))
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return count


@contextlib.contextmanager
def _naming(target: Path) -> Generator[None]:
    """Let an error of the system name the file the caller asked for, not the temporary one."""
    try:
        yield
    except OSError as error:
        message = f"{error.strerror}; the file was left as it was"
        raise OSError(error.errno, message, str(target)) from error


def sync_directory(directory: Path) -> None:
    """Put new and renamed files of a directory on disk, where the platform can do that.

    Args:
        directory: Directory whose entries changed.
    """
    if os.name != "posix":
        return
    # The new file is already in place and complete, so a refusal here is no failure.
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _whole_rows(file: IO[bytes], path: str | os.PathLike[str]) -> tuple[int, bool]:
    r"""Find where the whole rows of a file end.

    Returns:
        The length in bytes up to the end of the last whole row, and whether that row lacks ``\n``.

    Raises:
        ValueError: If more than the last line is not a row.
    """
    size = os.fstat(file.fileno()).st_size
    if size == 0:
        return 0, False
    start, line = _last_line(file, size)
    if _is_object(line):
        return size, not line.endswith(b"\n")
    if start > 0 and not _is_object(_last_line(file, start)[1]):
        raise ValueError(
            f"{os.fspath(path)} must be JSON Lines with at most one torn row at its end, got "
            f"several lines that are not JSON objects before byte {size}"
        )
    return start, False


def _last_line(file: IO[bytes], end: int) -> tuple[int, bytes]:
    """Return the offset and the bytes of the line that ends at ``end``."""
    start = end
    blocks: list[bytes] = []
    # The newline that ends this very line does not begin it.
    skip = 1
    while start > 0:
        step = min(_BLOCK, start)
        file.seek(start - step)
        block = file.read(step)
        cut = block.rfind(b"\n", 0, step - skip)
        skip = 0
        blocks.append(block[cut + 1 :])
        start -= step
        if cut >= 0:
            start += cut + 1
            break
    return start, b"".join(reversed(blocks))


def _is_object(line: bytes) -> bool:
    """Whether a line holds one whole JSON object, strict or not."""
    try:
        # Lenient about NaN: repairing a tail must not drop a row that is merely not strict.
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _parse(line: bytes) -> dict[str, object]:
    """Parse one line of strict JSON."""
    try:
        row = cast(object, json.loads(line.decode("utf-8"), parse_constant=_refuse_constant))
    except json.JSONDecodeError as error:
        raise ValueError(f"expected strict JSON, got invalid text ({error})") from None
    except RecursionError:
        raise ValueError("expected strict JSON, got values nested too deeply") from None
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, got a {type(row).__name__}")
    return cast("dict[str, object]", row)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"expected strict JSON, got the literal {name}")


def _raise_for_field(value: object, field: str, depth: int = 0) -> None:
    """Raise for the first value inside ``value`` that has no strict JSON form."""
    if depth > _MAX_DEPTH or value is None or isinstance(value, (bool, int)):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{field} must be finite (strict JSON has no {value}), got {value!r}")
    elif isinstance(value, str):
        _checks.text(field, value)
    elif isinstance(value, dict):
        for key, item in cast("dict[object, object]", value).items():
            inner = f"{field}.{key}" if field else str(key)
            if not isinstance(key, str):
                raise TypeError(f"{inner} must be a str field name, got {key!r}")
            _checks.text(f"the field name {key!a}", key)
            _raise_for_field(item, inner, depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("Sequence[object]", value)):
            _raise_for_field(item, f"{field}[{index}]", depth + 1)
    else:
        raise TypeError(
            f"{field} must be a JSON value (str, bool, int, float, None, list, dict), "
            f"got {value!r} ({type(value).__name__})"
        )
