"""The files of a run: the recording, the training data and the snapshot."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kl_proteus.cli.failures import CommandError, describe
from kl_proteus.cli.options import CollectOptions
from kl_proteus.llm.preferences import PreferenceReport, find_preferences
from kl_proteus.llm.recording import jsonl, shards
from kl_proteus.llm.wrapper import LLMTrainingWrapper

__all__ = [
    "File",
    "check_snapshot_path",
    "explain_no_pair",
    "recording",
    "save_snapshot",
    "save_training_data",
]


@dataclass(frozen=True, slots=True)
class File:
    """A file that the command wrote.

    Attributes:
        kind: `recording`, `chat`, `completion`, `preference` or `snapshot`.
        path: As the user would name it.
        rows: Episodes of a recording, rows of training data, pairs of a snapshot.
    """

    kind: str
    path: str
    rows: int


def recording(options: CollectOptions, env_id: str) -> list[File]:
    """The recording's files of an environment, those of earlier runs included."""
    directory = Path(options.output_dir)
    found: list[File] = []
    for _, path in shards.list_shards(directory, env_id):
        try:
            if shards.shard_env_id(path) == env_id:
                found.append(File("recording", str(path), jsonl.count_rows(path)))
        except (OSError, ValueError) as error:
            raise CommandError(f"the recording cannot be read: {describe(error)}") from error
    return found


def save_training_data(
    env: LLMTrainingWrapper[Any, Any], options: CollectOptions
) -> File | PreferenceReport:
    """Exports all completed episodes.

    Args:
        env: The environment, with at least one completed episode.
        options: The command line.

    Returns:
        What was written; or, where not a single preference was found, why.

    Raises:
        CommandError: The file cannot be written or the recording cannot be read.
    """
    path = Path(options.output_dir) / options.file_name
    try:
        rows = jsonl.count_rows(env.save_all_trajectories(options.file_name))
    except Exception as error:
        if isinstance(error, ValueError) and options.format == "preference":
            report = _no_pair(options, env.env_id)
            if report is not None:
                return report
        raise CommandError(f"cannot export to {path}: {describe(error)}") from error
    return File(options.format, str(path), rows)


def explain_no_pair(report: PreferenceReport, options: CollectOptions) -> str:
    """Why there is no preference, and what that means for the file."""
    path = Path(options.output_dir) / options.file_name
    left = f"{path} is left as it was" if path.exists() else f"{path} is not written"
    margin = f" by at least {options.min_margin:g}" if options.min_margin > 0 else ""
    return (
        f"no preference pair: among {report.steps} steps of {report.episodes} episodes, no two in "
        f"one observation cell have different actions and returns that differ{margin}; {left}"
    )


def check_snapshot_path(options: CollectOptions) -> None:
    """Looks before a long run whether the snapshot can be written after it.

    Raises:
        CommandError: It cannot, or it would replace a file of the run.
    """
    if options.save_snapshot is None:
        return
    path = Path(options.save_snapshot)
    training_data = Path(options.output_dir) / options.file_name
    reason = None
    if path.exists() and not path.is_file():
        reason = "it is no regular file"
    elif shards.is_recording(path) or os.path.realpath(path) == os.path.realpath(training_data):
        reason = "the run writes that file itself"
    else:
        try:
            # Access bits lie on some file systems; creating a file does not.
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        except OSError as error:
            reason = error.strerror
    if reason is not None:
        raise CommandError(f"cannot save the snapshot as {path}: {reason}")


def save_snapshot(env: LLMTrainingWrapper[Any, Any], path: str) -> File:
    """Writes the current distribution as JSON, as a whole or not at all.

    Raises:
        CommandError: The file cannot be written.
    """
    try:
        snapshot = env.snapshot()
        jsonl.write_atomic(path, [snapshot])
    except Exception as error:
        raise CommandError(f"cannot save the snapshot as {path}: {describe(error)}") from error
    pairs = sum(sum(actions.values()) for actions in snapshot["counts"].values())
    return File("snapshot", path, pairs)


def _no_pair(options: CollectOptions, env_id: str) -> PreferenceReport | None:
    """Whether an export failed only because no two steps make a preference."""
    try:
        pairs, report = find_preferences(
            shards.read_episodes(options.output_dir, env_id),
            gamma=options.gamma,
            min_margin=options.min_margin,
        )
    except (OSError, ValueError):
        return None
    return None if pairs else report
