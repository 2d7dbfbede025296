"""Appending completed episodes to a recording so that a crash at any instant loses none of them."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from kl_proteus import _checks
from kl_proteus.llm.recording import jsonl, locking, shards
from kl_proteus.llm.recording.episodes import Episode, check_episode

__all__ = ["EpisodeRecording"]

_logger = logging.getLogger(__name__)

# Not O_APPEND: rows are written over the space reserved for them.
_OPEN_FLAGS = os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


class _Shard:
    """An open shard that this process alone may write to."""

    def __init__(self, path: Path, descriptor: int, *, locked: bool, rows: int) -> None:
        self.path = path
        self.rows = rows
        self._descriptor = descriptor
        self._locked = locked
        self._owner = os.getpid()
        self._size = os.fstat(descriptor).st_size
        self._reserved = 0

    def is_intact(self) -> bool:
        """Whether the file is still ours, still there, and as long as we left it."""
        if self._owner != os.getpid():
            return False
        try:
            named = self.path.stat()
        except OSError:
            return False
        size = self._size + self._reserved
        return os.path.samestat(named, os.fstat(self._descriptor)) and named.st_size == size

    def reserve(self, size: int) -> None:
        """Allocate space behind the last row, or leave the file without any and raise."""
        if size <= self._reserved:
            return
        # Blanks without a line break: to readers, and after a crash, they are a torn last line.
        try:
            self._write(b" " * size)
        except BaseException:
            self._cut_tail()
            raise
        self._reserved = size

    def append(self, line: bytes, *, sync: bool) -> None:
        """Write a line, or leave the file as it was and raise.

        An interrupt may come after the last byte; a row that is whole stays then.
        """
        try:
            self._write(line)
            if sync:
                os.fsync(self._descriptor)
        except OSError:
            self._cut_tail()
            raise
        except BaseException:
            if self._ends_in(line):
                self._keep(line)
            else:
                self._cut_tail()
            raise
        self._keep(line)

    def release(self) -> None:
        """Give up the space that is reserved."""
        # A forked child shares the file with its parent.
        if self._reserved > 0 and self._owner == os.getpid():
            self._cut_tail()

    def _write(self, data: bytes) -> None:
        """Write behind the last row."""
        os.lseek(self._descriptor, self._size, os.SEEK_SET)
        jsonl.write_all(self._descriptor, data)

    def _ends_in(self, line: bytes) -> bool:
        """Whether a line stands behind the last row."""
        os.lseek(self._descriptor, self._size, os.SEEK_SET)
        return os.read(self._descriptor, len(line)) == line

    def _keep(self, line: bytes) -> None:
        """Make a line that was written the last row."""
        self._size += len(line)
        self.rows += 1
        self._cut_tail()

    def _cut_tail(self) -> None:
        self._reserved = 0
        # If even this fails, the next open repairs the tail.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, self._size)

    def close(self) -> None:
        self.release()
        # A forked child shares the lock with its parent and must not give it up.
        if self._locked and self._owner == os.getpid():
            with contextlib.suppress(OSError):
                locking.unlock(self._descriptor)
        os.close(self._descriptor)


class EpisodeRecording:
    """A recording of one environment: completed episodes in append-only JSON Lines shards.

    Every writer has a shard of its own: ``episodes-<environment>-0000.jsonl``, and so on. The
    first append continues the first shard that nobody is writing to, after repairing a torn last
    line, or creates the next one. An episode is handed to the operating system in one write before
    `append` returns, so a killed process loses at most the episode that was running.

    A copied, unpickled or forked recording is another writer and gets its own shard. On a file
    system without locks every writer creates a new shard.

    Args:
        output_dir: Directory of the recording; created, with its parents, if missing. A relative
            path is resolved now.
        env_id: Identifier of the environment, such as ``"CartPole-v1"``.
        fsync: Whether to wait for the disk after each episode. Protects against a power failure,
            not only against a crash of the process, at the price of milliseconds per episode.

    Raises:
        OSError: If ``output_dir`` cannot be created or written to, or is not a directory.
        TypeError: If an argument has the wrong type.
        ValueError: If ``output_dir`` or ``env_id`` is empty, or cannot be encoded as UTF-8.
    """

    def __init__(
        self, output_dir: str | os.PathLike[str], env_id: str, *, fsync: bool = False
    ) -> None:
        self._shard: _Shard | None = None
        self._appended = 0
        self._env_id = _checks.text("env_id", env_id, blank=False)
        self._fsync = _check_fsync(fsync)
        self._output_dir = _writable_directory(output_dir)

    @property
    def output_dir(self) -> Path:
        """Directory of the recording, absolute."""
        return self._output_dir

    @property
    def env_id(self) -> str:
        """Identifier of the environment."""
        return self._env_id

    @property
    def path(self) -> Path | None:
        """Shard this recording writes to, or None while it has none open."""
        return None if self._shard is None else self._shard.path

    @property
    def appended(self) -> int:
        """Number of episodes this object has appended."""
        return self._appended

    @property
    def count(self) -> int:
        """Number of completed episodes of the environment in all shards; reads the files."""
        return shards.count_episodes(self._output_dir, self._env_id)

    def reserve(self, size: int) -> None:
        """Allocate space for the next episode, so that a full disk is found out before it ends.

        Until `append` or `release` the shard ends in blanks, which readers ignore and which are
        removed, like a torn last line, if this process is killed. Where a file system writes a
        changed block to another place, as Btrfs and ZFS do, `append` may find the disk full still.

        Args:
            size: Bytes of the episode's row, at the least.

        Raises:
            OSError: If there is no such space, or no shard. The shard then holds what it held
                before, and nothing is reserved.
        """
        shard = self._open()
        with _not_recorded(shard.path):
            shard.reserve(size)

    def release(self) -> None:
        """Give up the space that is reserved; harmless where there is none."""
        if self._shard is not None:
            self._shard.release()

    def append(self, episode: Episode) -> int:
        """Append a completed episode, into the space that is reserved if there is any.

        Args:
            episode: The episode. Its index is replaced by the next one of the shard.

        Returns:
            The index of the episode within its shard.

        Raises:
            OSError: If it could not be written, for instance because the disk is full. The shard
                then holds what it held before, and the episode is not recorded.
            TypeError: If ``episode`` is not an `Episode`.
            ValueError: If it belongs to another environment.
        """
        if check_episode(episode).env_id != self._env_id:
            raise ValueError(
                f"episode must belong to {self._env_id!r}, got one of {episode.env_id!r}"
            )
        row = episode.to_row()
        shard = self._open()
        row["episode"] = index = shard.rows
        line = jsonl.encode_row(row)
        with _not_recorded(shard.path):
            shard.append(line, sync=self._fsync)
        self._appended += 1
        return index

    def episodes(self) -> Iterator[Episode]:
        """Stream the completed episodes of the environment from all shards.

        See `kl_proteus.llm.recording.shards.read_episodes`, which also lists what is raised.

        Returns:
            An iterator that holds one episode in memory at a time.
        """
        return shards.read_episodes(self._output_dir, self._env_id)

    def close(self) -> None:
        """Release the shard. Closing twice is harmless; a later append opens a shard again."""
        # `__init__` may have failed before there was one.
        shard: _Shard | None = getattr(self, "_shard", None)
        if shard is not None:
            self._shard = None
            shard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # At interpreter exit what `close` needs may be gone; the system then closes the file.
        with contextlib.suppress(Exception):
            self.close()

    def __getstate__(self) -> dict[str, object]:
        # The open shard stays with the original.
        return {
            "output_dir": str(self._output_dir),
            "env_id": self._env_id,
            "fsync": self._fsync,
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        # Nothing touches the disk before the copy writes.
        self._shard = None
        self._appended = 0
        self._output_dir = Path(str(state["output_dir"]))
        self._env_id = str(state["env_id"])
        self._fsync = bool(state["fsync"])

    def __repr__(self) -> str:
        return f"EpisodeRecording({str(self._output_dir)!r}, {self._env_id!r})"

    def _open(self) -> _Shard:
        """Return the shard to write to, opening one if there is none or it is no longer ours."""
        if self._shard is not None and not self._shard.is_intact():
            self.close()
        if self._shard is None:
            _make_directory(self._output_dir)
            self._shard = self._continue_shard() or self._create_shard()
        return self._shard

    def _continue_shard(self) -> _Shard | None:
        """Open the first existing shard that nobody is writing to."""
        for _, path in shards.list_shards(self._output_dir, self._env_id):
            try:
                shard = _open_shard(path, self._env_id)
            except (OSError, ValueError) as error:
                # One file that cannot be continued is no reason to stop recording.
                _logger.warning("%s is not continued: %s", path, error)
                continue
            if shard is not None:
                return shard
        return None

    def _create_shard(self) -> _Shard:
        """Create the shard after the last one."""
        existing = shards.list_shards(self._output_dir, self._env_id)
        number = existing[-1][0] + 1 if existing else 0
        while True:
            path = shards.shard_path(self._output_dir, self._env_id, number)
            number += 1
            try:
                descriptor = os.open(path, _OPEN_FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                continue
            result = locking.try_lock(descriptor)
            if result == "busy":
                # Another writer found the new file before it was locked and continues it.
                os.close(descriptor)
                continue
            if self._fsync:
                jsonl.sync_directory(self._output_dir)
            return _Shard(path, descriptor, locked=result == "held", rows=0)


def _open_shard(path: Path, env_id: str) -> _Shard | None:
    """Open an existing shard for appending; None if it has a writer or belongs elsewhere."""
    descriptor = os.open(path, _OPEN_FLAGS)
    try:
        # Without a lock nobody can tell whether the file has a writer, so it is left alone.
        if (
            stat.S_ISREG(os.fstat(descriptor).st_mode)
            and locking.try_lock(descriptor) == "held"
            and shards.shard_env_id(path) in (None, env_id)
        ):
            jsonl.repair_tail(path)
            rows = jsonl.count_rows(path)
            return _Shard(path, descriptor, locked=True, rows=rows)
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


@contextlib.contextmanager
def _not_recorded(path: Path) -> Generator[None]:
    """Let an error of the system name the shard, and what it means for the episode."""
    try:
        yield
    except OSError as error:
        message = f"{error.strerror}; the episode was not recorded"
        raise OSError(error.errno, message, str(path)) from error


def _check_fsync(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"fsync must be a bool, got {value!r} ({type(value).__name__})")
    return value


def _writable_directory(value: object) -> Path:
    """Return ``output_dir`` as an absolute path of a directory that takes new files."""
    path = _checks.path("output_dir", value, "a directory").absolute()
    _make_directory(path)
    try:
        # Access bits lie on read-only and remote file systems; creating a file does not.
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        message = f"output_dir must be a directory that can be written to ({error.strerror})"
        raise OSError(error.errno, message, str(path)) from error
    return path


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"output_dir must be a directory or a path to create one at ({error.strerror})"
        raise OSError(error.errno, message, str(path)) from error
