r"""Fine-tuning data from episodes, in the forms that TRL and compatible trainers read.

``chat``
    ``{"messages": [system, user, assistant]}``, a row per step.
``completion``
    ``{"prompt": "<system>\n\n<observation>\nAction:", "completion": " <action>"}``, a row per
    step. The space belongs to the completion, so that the prompt ends on a token boundary.
``preference``
    ``{"prompt": [system, user], "chosen": [assistant], "rejected": [assistant]}``, a row per pair
    of steps. The prompt is explicit: trainers that look for a common prefix cut inside a token.

Without a system prompt the system message is left out. A file has one schema from its first row on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from kl_proteus import _checks
from kl_proteus.llm.preferences import PreferencePair, find_preferences
from kl_proteus.llm.recording import jsonl, shards
from kl_proteus.llm.recording.episodes import Episode, check_episode
from kl_proteus.llm.recording.recorder import EpisodeRecording

__all__ = ["FORMAT_TYPES", "FormatType", "check_format_type", "export", "rows"]

FormatType = Literal["chat", "completion", "preference"]
"""Kind of training data."""

FORMAT_TYPES: tuple[FormatType, ...] = get_args(FormatType)
"""The legal kinds."""

_Row: TypeAlias = dict[str, object]


def check_format_type(format_type: object) -> FormatType:
    """Return ``format_type`` if it is one of `FORMAT_TYPES`.

    Args:
        format_type: What arrived.

    Returns:
        The same value.

    Raises:
        TypeError: If it is not a str.
        ValueError: If it is another str.
    """
    if not isinstance(format_type, str):
        raise TypeError(
            f"format_type must be a str, got {format_type!r} ({type(format_type).__name__})"
        )
    if format_type not in FORMAT_TYPES:
        expected = ", ".join(map(repr, FORMAT_TYPES))
        raise ValueError(f"format_type must be one of {expected}, got {format_type!r}")
    return format_type


def rows(
    episodes: Iterable[Episode],
    format_type: str,
    *,
    gamma: float = 0.99,
    min_margin: float = 0.0,
) -> Iterator[_Row]:
    """Return training rows, ready for `kl_proteus.llm.recording.jsonl.write_atomic` or a trainer.

    Chat and completion rows are made one episode at a time. Preferences need all episodes at once;
    `kl_proteus.llm.preferences.find_preferences` says how pairs are found.

    Args:
        episodes: Completed episodes.
        format_type: ``"chat"``, ``"completion"`` or ``"preference"``.
        gamma: Discount factor of the return-to-go that ranks preferences, in [0, 1].
        min_margin: Smallest difference of returns that makes a preference, finite and >= 0.

    Returns:
        An iterator over the rows. The arguments are checked before the first row is asked for.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If ``format_type`` is unknown, or ``gamma`` or ``min_margin`` is outside its
            range.
    """
    kind = check_format_type(format_type)
    _checks.real_number("gamma", gamma, minimum=0.0, maximum=1.0)
    _checks.real_number("min_margin", min_margin, minimum=0.0)
    if kind == "preference":
        pairs, _ = find_preferences(episodes, gamma=gamma, min_margin=min_margin)
        return map(_preference_row, pairs)
    return _step_rows(episodes, kind)


def export(
    source: EpisodeRecording | Iterable[Episode],
    path: str | os.PathLike[str],
    format_type: str,
    *,
    gamma: float = 0.99,
    min_margin: float = 0.0,
) -> Path:
    """Write a training file; it replaces an existing one as a whole or not at all.

    Args:
        source: A recording, or completed episodes.
        path: File to create or replace. Its directory must exist.
        format_type: ``"chat"``, ``"completion"`` or ``"preference"``.
        gamma: Discount factor of the return-to-go that ranks preferences, in [0, 1].
        min_margin: Smallest difference of returns that makes a preference, finite and >= 0.

    Returns:
        The path that was written.

    Raises:
        OSError: If the file cannot be written, or a recording cannot be read.
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is illegal, ``path`` is a file of a recording, or there is
            nothing to write: no completed episode, or no preference. An existing file is then
            left as it was, because trainers fail on an empty one.
    """
    kind = check_format_type(format_type)
    target = Path(path)
    if shards.is_recording(target):
        raise ValueError(f"path must not be a file of a recording, got {target}")
    episodes = source.episodes() if isinstance(source, EpisodeRecording) else source
    if kind == "preference":
        made = _some_preferences(episodes, gamma, min_margin)
    else:
        made = _some_steps(rows(episodes, kind, gamma=gamma, min_margin=min_margin), kind)
    jsonl.write_atomic(target, made)
    return target


def _some_steps(made: Iterator[_Row], kind: FormatType) -> Iterator[_Row]:
    """Pass on the rows, or say that there are none in the caller's words."""
    first = next(made, None)
    if first is None:
        raise ValueError(
            f"source must hold at least one completed episode to export as {kind}, got none"
        )
    yield first
    yield from made


def _some_preferences(
    episodes: Iterable[Episode], gamma: float, min_margin: float
) -> Iterator[_Row]:
    """Return the preference rows, or say why there are none."""
    pairs, report = find_preferences(episodes, gamma=gamma, min_margin=min_margin)
    if not pairs:
        raise ValueError(
            "source must hold two steps of one observation cell with different actions and "
            f"returns that differ by min_margin={min_margin:g}, got none in {report.steps} steps "
            f"of {report.episodes} episodes ({report.groups} cells, {report.ties} steps tied, "
            f"{report.unmatched} without another action)"
        )
    return map(_preference_row, pairs)


def _step_rows(episodes: Iterable[Episode], kind: FormatType) -> Iterator[_Row]:
    make = _chat_row if kind == "chat" else _completion_row
    for episode in map(check_episode, episodes):
        texts = zip(episode.observation_texts, episode.action_texts, strict=True)
        for observation, action in texts:
            yield make(episode.system_prompt, observation, action)


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _prompt(system_prompt: str, observation: str) -> list[dict[str, str]]:
    user = _message("user", observation)
    return [_message("system", system_prompt), user] if system_prompt else [user]


def _chat_row(system_prompt: str, observation: str, action: str) -> _Row:
    return {"messages": [*_prompt(system_prompt, observation), _message("assistant", action)]}


def _completion_row(system_prompt: str, observation: str, action: str) -> _Row:
    head = f"{system_prompt}\n\n" if system_prompt else ""
    return {"prompt": f"{head}{observation}\nAction:", "completion": f" {action}"}


def _preference_row(pair: PreferencePair) -> _Row:
    return {
        "prompt": _prompt(pair.system_prompt, pair.observation_text),
        "chosen": [_message("assistant", pair.chosen_text)],
        "rejected": [_message("assistant", pair.rejected_text)],
    }
