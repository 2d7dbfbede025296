"""A running episode on its way into a recording."""

from __future__ import annotations

import copy
import sys

import numpy as np
from numpy.typing import NDArray

from kl_proteus.llm.recording import jsonl
from kl_proteus.llm.recording.episodes import EpisodeBuilder
from kl_proteus.llm.recording.recorder import EpisodeRecording

__all__ = ["Mean", "Trajectory"]

# No finite float takes more characters. A step has seven, and an index fewer digits than 20.
_LONGEST_NUMBERS = (-sys.float_info.max,) * 7
_INDEX_DIGITS = 20


class Mean:
    """A running mean; 0.0 of nothing. Divided first, so that no sum overflows."""

    def __init__(self) -> None:
        self.count = 0
        self.value = 0.0

    def add(self, value: float) -> None:
        """Takes another value."""
        self.count += 1
        self.value += value / self.count - self.value / self.count

    def add_all(self, values: NDArray[np.float64]) -> None:
        """Takes the values of an array, in their order."""
        for value in values.tolist():
            self.add(value)


class Trajectory:
    """The steps of the running episode of one environment.

    Args:
        recording: Where it goes when it ends.
        system_prompt: Task description that precedes every observation.
    """

    def __init__(self, recording: EpisodeRecording, system_prompt: str) -> None:
        self._recording = recording
        self._episode = EpisodeBuilder(recording.env_id, system_prompt)
        self._records = False
        self._kl = Mean()

    @property
    def records(self) -> bool:
        """Whether the episode has been seen from its beginning and is whole so far."""
        return self._records

    def begin(self) -> None:
        """Begins an episode; one that has not ended is not recorded."""
        self.abandon()
        self._records = True

    def abandon(self) -> None:
        """Forgets the episode; the next one that begins is recorded."""
        self._recording.release()
        self._episode.discard()
        self._kl = Mean()
        self._records = False

    def row_size(self, texts: tuple[str, str, str, str], binning: str) -> int:
        """The most bytes that the episode may take on disk if it ends in its next step.

        Args:
            texts: What is known of that step: its texts and keys.
            binning: Fingerprint of the axes.
        """
        # The drift is known only after counting, so the copy ends in the longest numbers (and says
        # False, which is longer than True).
        longest = copy.deepcopy(self._episode)
        longest.append(*texts, *_LONGEST_NUMBERS)
        episode = longest.finish(terminated=False, truncated=False, binning=binning)
        assert episode is not None  # it has a step
        return len(jsonl.encode_row(episode.to_row())) + _INDEX_DIGITS

    def measure(self, kl: float) -> None:
        """Takes the divergence, in nats, of a step whose windows are full."""
        self._kl.add(kl)

    def append(self, texts: tuple[str, str, str, str], numbers: tuple[float, ...]) -> None:
        """Adds a step.

        Args:
            texts: Texts of observation and action, and their keys.
            numbers: The other arguments of `EpisodeBuilder.append`.
        """
        self._episode.append(*texts, *numbers)  # pyright: ignore[reportCallIssue]

    def end(self, terminated: bool, truncated: bool, binning: str) -> tuple[bool, Mean, int]:
        """Records the episode.

        Returns:
            Whether there was one to record, the mean divergence of its steps whose windows were
            full, and its length.

        Raises:
            OSError: It could not be recorded, and is lost.
        """
        records, kl, length = self._records, self._kl, len(self._episode)
        recorded = False
        try:
            if records and length > 0:
                episode = self._episode.finish(
                    terminated=terminated, truncated=truncated, binning=binning
                )
                assert episode is not None  # it has a step
                self._recording.append(episode)
                recorded = True
        finally:
            self.abandon()
        return recorded, kl, length
