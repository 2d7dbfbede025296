"""The files of a recording: their names, whose they are, and reading what is in them.

A recording is a directory of shards, ``episodes-<environment>-0000.jsonl`` and so on. A shard has
at most one writer at a time and holds the episodes of one environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from kl_proteus.llm.recording import jsonl
from kl_proteus.llm.recording.episodes import EPISODE_FORMAT, EPISODE_VERSION, Episode

__all__ = [
    "count_episodes",
    "is_recording",
    "list_shards",
    "read_episodes",
    "shard_env_id",
    "shard_path",
]

_SHARD_NAME = re.compile(r"episodes-(?P<slug>.+)-(?P<number>\d{4,})\.jsonl")
_SLUG_LENGTH = 100


def shard_path(directory: Path, env_id: str, number: int) -> Path:
    """Return the path of a shard.

    Args:
        directory: Directory of the recording.
        env_id: Identifier of the environment. Characters that are not safe in file names become
            ``-``, so two environments can share a name; their episodes never share a file.
        number: Number of the shard, from 0.

    Returns:
        ``directory/episodes-<slug>-<number, four digits or more>.jsonl``.
    """
    return directory / f"episodes-{_slug(env_id)}-{number:04d}.jsonl"


def list_shards(directory: Path, env_id: str | None = None) -> list[tuple[int, Path]]:
    """List the shards in a directory by number.

    Args:
        directory: Directory of the recording.
        env_id: Only names that belong to this environment; None lists all.

    Returns:
        Number and path of each shard, sorted by number and then by name.

    Raises:
        OSError: If the directory cannot be read.
    """
    slug = None if env_id is None else _slug(env_id)
    found: list[tuple[int, Path]] = []
    for path in directory.iterdir():
        match = _SHARD_NAME.fullmatch(path.name)
        if match and slug in (None, match["slug"]) and path.is_file():
            found.append((int(match["number"]), path))
    return sorted(found)


def shard_env_id(path: Path) -> str | None:
    """Return whose episodes a shard holds, judged by its first row.

    Args:
        path: Shard to look into.

    Returns:
        The environment's identifier, or None if there is no whole row yet.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the first row is no episode of the version this release reads.
    """
    row = next(jsonl.read_rows(path, skip_torn_tail=True), None)
    if row is None:
        return None
    kind, version, env_id = (row.get(key) for key in ("format", "version", "env_id"))
    if kind == EPISODE_FORMAT and version == EPISODE_VERSION and isinstance(env_id, str):
        return env_id
    raise ValueError(f"{path} must begin with a row of {EPISODE_FORMAT} version {EPISODE_VERSION}")


def is_recording(path: Path) -> bool:
    """Whether a path is, or by its name would be, a shard of a recording.

    Args:
        path: Any path; it need not exist.

    Returns:
        True if writing something else to it would damage a recording.
    """
    path = Path(os.path.realpath(path))
    if _SHARD_NAME.fullmatch(path.name):
        return True
    try:
        return path.is_file() and shard_env_id(path) is not None
    except (OSError, ValueError):
        return False


def count_episodes(directory: str | os.PathLike[str], env_id: str | None = None) -> int:
    """Count the completed episodes of a recording without parsing them.

    Args:
        directory: Directory of the recording.
        env_id: Only episodes of this environment; None counts all.

    Returns:
        The number of episodes `read_episodes` yields.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If a shard is damaged elsewhere than in its last line.
    """
    return sum(jsonl.count_rows(path) for path in _own_shards(Path(directory), env_id))


def read_episodes(
    directory: str | os.PathLike[str], env_id: str | None = None
) -> Iterator[Episode]:
    """Stream the completed episodes of a recording, one in memory at a time.

    Other processes may be writing to the recording: an episode they are in the middle of writing
    is left out.

    Args:
        directory: Directory of the recording.
        env_id: Only episodes of this environment; None yields all.

    Yields:
        The episodes, shard by shard in the order of their numbers.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If a row is not an episode; the message has the path and the line number.
    """
    for path in _own_shards(Path(directory), env_id):
        for number, row in enumerate(jsonl.read_rows(path, skip_torn_tail=True), start=1):
            try:
                episode = Episode.from_row(row)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            yield episode


def _own_shards(directory: Path, env_id: str | None) -> list[Path]:
    """Return the shards that hold episodes of ``env_id``, or of any environment."""
    paths = [path for _, path in list_shards(directory, env_id)]
    owners = [(path, shard_env_id(path)) for path in paths]
    return [path for path, owner in owners if owner is not None and env_id in (None, owner)]


def _slug(env_id: str) -> str:
    """Return ``env_id`` with only those characters that every file system takes in a name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", env_id)[:_SLUG_LENGTH]
