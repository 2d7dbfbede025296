"""What the wrappers that record have in common: their texts, and training data from a recording."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Generic, TypeVar

from kl_proteus import _checks
from kl_proteus.llm.export import FormatType, check_format_type, export
from kl_proteus.llm.recording.recorder import EpisodeRecording
from kl_proteus.llm.text.environment_text import EnvironmentText

__all__ = ["TrainingData", "binning_of"]

# What a snapshot holds besides is data.
_AXES = ("format", "version", "encoder", "observation_axes", "action_axes")

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")


def binning_of(snapshot: dict[str, Any]) -> str:
    """Fingerprint of the axes of a snapshot: steps of one key are alike only under one."""
    axes = {key: snapshot[key] for key in _AXES}
    text = json.dumps(axes, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class TrainingData(Generic[ObsType, ActType]):
    """The part of a recording wrapper that does not step environments."""

    _text: EnvironmentText
    _recording: EpisodeRecording
    _format_type: FormatType
    _gamma: float
    _min_margin: float

    def _set_export(self, format_type: FormatType, gamma: float, min_margin: float) -> None:
        self._format_type = check_format_type(format_type)
        self._gamma = _checks.real_number("gamma", gamma, minimum=0.0, maximum=1.0)
        self._min_margin = _checks.real_number("min_margin", min_margin, minimum=0.0)

    def save_all_trajectories(self, name: str | os.PathLike[str] = "trajectories.jsonl") -> Path:
        """Writes the completed episodes as training data in `format_type`.

        They are all episodes of this environment in `output_dir`, those of earlier runs included.
        The file replaces one of the same name as a whole or not at all.

        Args:
            name: File name; a relative one is meant under `output_dir`. Missing directories are
                created.

        Returns:
            The path of the file.

        Raises:
            OSError: The file cannot be written.
            TypeError: `name` is no path.
            ValueError: `name` is no path of a file, or a file of the recording; or there is nothing
                to write: no completed episode, or no preference.
        """
        path = self._recording.output_dir / _checks.path("name", name, "a file")
        missing = [parent for parent in path.parents if not parent.exists()]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return export(
                self._recording,
                path,
                self._format_type,
                gamma=self._gamma,
                min_margin=self._min_margin,
            )
        except BaseException:
            for directory in missing:
                with contextlib.suppress(OSError):
                    directory.rmdir()
            raise

    @property
    def env_id(self) -> str:
        """What the environment is recorded as: its id; its class's name where it has no spec."""
        return self._recording.env_id

    @property
    def system_prompt(self) -> str:
        """What precedes every observation: the task, and how to answer."""
        return self._text.system_prompt()

    def observation_text(self, observation: ObsType) -> str:
        """An observation as it is written into a prompt."""
        return self._text.observation_text(observation)

    def action_text(self, action: ActType) -> str:
        """An action as it is written as an answer."""
        return self._text.action_text(action)

    def parse_action(self, text: str) -> ActType:
        """The action that an answer means.

        Raises:
            ValueError: The text is no action; the message lists the legal answers.
        """
        return self._text.parse_action(text)
