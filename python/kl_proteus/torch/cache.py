"""Log-probabilities of a frozen reference on disk, so that a second epoch runs no forward pass.

A row of a batch is a file of its own, named by a hash of everything that decides its content:

    <directory>/v1/<model, 16 digits>/<first 2 digits of the key>/<key>.safetensors

Files appear whole or not at all, equal names have equal content, and nothing is ever changed in
place, so any number of processes may read and write one directory.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from kl_proteus import _checks
from kl_proteus.llm.recording.jsonl import sync_directory, write_all

__all__ = ["CacheSize", "CachedRow", "LogprobCache", "row_key"]

_VERSION = "v1"
_SUFFIX = ".safetensors"
_TENSOR = "logprobs"
_O_BINARY: int = getattr(os, "O_BINARY", 0)
# A writer needs seconds; what is older was left behind by one that was killed.
_STALE_SECONDS = 3600.0


class CacheSize(NamedTuple):
    """What a cache holds.

    Attributes:
        rows: Rows of batches.
        bytes: Their size as files.
        models: Different models, or states of one model.
        leftovers: Files that killed writers left behind; `clear` removes them.
    """

    rows: int
    bytes: int
    models: int
    leftovers: int


class CachedRow(NamedTuple):
    """A row of log-probabilities.

    Attributes:
        logprobs: In nats: float32, of shape (scored tokens,), on the CPU.
        vocab_size: Over how many ids the probabilities sum to one.
    """

    logprobs: torch.Tensor
    vocab_size: int


def row_key(settings: Mapping[str, Any], tokens: Sequence[int]) -> str:
    """The name of a row: a hash of everything that decides its log-probabilities.

    Args:
        settings: JSON values: the model's fingerprint, temperature, slice and so on.
        tokens: Ids of the row's kept tokens, padding left out.

    Returns:
        SHA-256, 64 hexadecimal digits.
    """
    head = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
    body = b"".join(int(token).to_bytes(8, "little", signed=True) for token in tokens)
    return hashlib.sha256(head.encode() + b"\0" + body).hexdigest()


class LogprobCache:
    """A directory of log-probabilities; see the module for its layout.

    A file that is torn, damaged or not what its name says counts as missing and is deleted. A disk
    that is full or read-only never stops a computation: the values are used and not kept, and one
    warning says so.

    Args:
        directory: Created if missing.

    Attributes:
        hits: Rows that were found, since this object was made.
        misses: Rows that were not.
        unsaved: Rows that could not be written.

    Raises:
        OSError: The directory cannot be made, or is a file.
        TypeError: It is not a path.
        ValueError: It is no usable path.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = _checks.path("directory", directory, "a directory")
        self.directory.mkdir(parents=True, exist_ok=True)
        self.hits = 0
        self.misses = 0
        self.unsaved = 0
        self._has_warned = False

    def __repr__(self) -> str:
        return f"LogprobCache({str(self.directory)!r})"

    def get(self, fingerprint: str, key: str) -> CachedRow | None:
        """Reads a row.

        Args:
            fingerprint: Of the model.
            key: From `row_key`.

        Returns:
            The row; None if there is none, or only a damaged one, which is deleted.

        Raises:
            ValueError: A name is not of hexadecimal digits.
        """
        path = self._path(fingerprint, key)
        try:
            found = _read(path, key)
        except FileNotFoundError:
            found = None
        except OSError:  # not a file, or one that cannot be read now
            found = None
        except (ValueError, SafetensorError):
            found = None
            with contextlib.suppress(OSError):
                path.unlink()
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
        return found

    def put(
        self,
        fingerprint: str,
        rows: Mapping[str, torch.Tensor],
        vocab_size: int,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """Writes rows, each whole and on disk or not at all.

        Rows with NaN are not kept, because they are no result.

        Args:
            fingerprint: Of the model.
            rows: Log-probabilities in nats of shape (scored tokens,), by key; kept as float32.
            vocab_size: Over how many ids the probabilities sum to one.
            notes: Text to keep beside them, such as the device they were computed on.

        Raises:
            ValueError: A name is not of hexadecimal digits.
        """
        facts = {**(notes or {}), "vocab_size": str(vocab_size)}
        folders: set[Path] = set()
        left = len(rows)
        try:
            for key, values in rows.items():
                path = self._path(fingerprint, key)
                row = values.detach().to("cpu", torch.float32).contiguous()
                if row.isnan().any():
                    self.unsaved += 1
                    left -= 1
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                _write(path, _encode(row, {**facts, "key": key}))
                folders.add(path.parent)
                left -= 1
        except OSError as error:
            self._give_up(left, error)
        for folder in folders:
            sync_directory(folder)

    def size(self) -> CacheSize:
        """Counts rows and bytes; other processes may be writing meanwhile."""
        rows = total = leftovers = 0
        models: set[str] = set()
        for path in self._files():
            with contextlib.suppress(OSError):
                length = path.stat().st_size
                if path.suffix == _SUFFIX:
                    rows += 1
                    total += length
                    models.add(path.parents[1].name)
                elif _is_stale(path):
                    leftovers += 1
        return CacheSize(rows, total, len(models), leftovers)

    def clear(self, fingerprint: str | None = None) -> int:
        """Deletes rows. Nothing else that lies in the directory is touched.

        Args:
            fingerprint: Only those of this model; None deletes all.

        Returns:
            How many rows were deleted.

        Raises:
            OSError: A file cannot be deleted.
            TypeError: `fingerprint` is not a str.
            ValueError: It is not of hexadecimal digits.
        """
        root = self.directory / _VERSION
        target = root if fingerprint is None else root / _folder(fingerprint)
        rows = sum(path.suffix == _SUFFIX for path in target.rglob("*") if path.is_file())
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(target)
        return rows

    def _path(self, fingerprint: str, key: str) -> Path:
        _check_digits("key", key, 2)
        return self.directory / _VERSION / _folder(fingerprint) / key[:2] / f"{key}{_SUFFIX}"

    def _files(self) -> Iterator[Path]:
        return (path for path in (self.directory / _VERSION).rglob("*") if path.is_file())

    def _give_up(self, rows: int, error: OSError) -> None:
        self.unsaved += rows
        if not self._has_warned:
            self._has_warned = True
            reason = error.strerror or str(error)
            warnings.warn(
                f"the cache in {self.directory} cannot be written ({reason}); log-probabilities "
                "are computed again where they are missing",
                RuntimeWarning,
                stacklevel=4,
            )


def _folder(fingerprint: object) -> str:
    return _check_digits("fingerprint", fingerprint, 16)[:16]


def _check_digits(name: str, value: object, least: int) -> str:
    """Refuses what would lead to another place of the disk."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type(value).__name__}")
    if len(value) < least or not set(value) <= set("0123456789abcdef"):
        raise ValueError(f"{name} must be {least} or more hexadecimal digits, got {value!r}")
    return value


def _encode(row: torch.Tensor, facts: Mapping[str, str]) -> bytes:
    return save({_TENSOR: row}, {**facts, "sha256": _checksum(row, facts["vocab_size"])})


def _read(path: Path, key: str) -> CachedRow:
    # Not mapped into memory: a file that somebody else shortens would kill the process.
    data = path.read_bytes()
    tensors = load(data)
    metadata = _metadata(data)
    if metadata.get("key") != key or list(tensors) != [_TENSOR]:
        raise ValueError(f"{path} holds something else than its name says")
    row = tensors[_TENSOR]
    size = metadata.get("vocab_size", "")
    whole = row.dtype == torch.float32 and row.dim() == 1
    if not whole or metadata.get("sha256") != _checksum(row, size):
        raise ValueError(f"{path} is damaged")
    return CachedRow(row, int(size))


def _metadata(data: bytes) -> dict[str, str]:
    """The text in the header of a file that `load` accepted: its length, then JSON."""
    length = int.from_bytes(data[:8], "little")
    header = cast("dict[str, dict[str, str]]", json.loads(data[8 : 8 + length]))
    return header.get("__metadata__", {})


def _checksum(row: torch.Tensor, vocab_size: str) -> str:
    return hashlib.sha256(vocab_size.encode() + b";" + row.numpy().tobytes()).hexdigest()


def _write(path: Path, data: bytes) -> None:
    """Puts a file in place that is complete and on disk."""
    temporary = path.parent / f"{path.name}.tmp.{os.getpid()}.{secrets.token_hex(8)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _O_BINARY, 0o666)
    try:
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        # Windows refuses to replace a file that is being read; that one has the same content.
        if isinstance(error, PermissionError) and os.name == "nt" and path.exists():
            return
        raise


def _is_stale(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _STALE_SECONDS
