"""The pairs of the rows of a batch of environments: what their vector wrappers have in common."""

import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from kl_proteus import detector, snapshots
from kl_proteus._core import VectorTracker
from kl_proteus.detector import DriftDetector
from kl_proteus.snapshots import Snapshot
from kl_proteus.tracking import ALARM_KEY, INFO_KEYS, TOP_MOVERS, Encoder, Tracking, flag

__all__ = ["DriftOfRows"]


class DriftOfRows:
    """The part of a vector wrapper that counts pairs and reports on them.

    What inherits it says with the attributes below how it was configured, and calls `_track_rows`
    at the end of its constructor.
    """

    _info_on_reset: bool
    _resets_next_step: bool
    _resets_same_step: bool

    def _track_rows(
        self,
        settings: Tracking,
        rows: int,
        observations: gym.Space[Any],
        actions: gym.Space[Any],
        *,
        pooled: bool,
        info_prefix: str,
        drift_detector: DriftDetector | Mapping[str, Any] | float | None,
    ) -> None:
        """Starts to track the rows of batches of two spaces."""
        self._rows = rows
        self._batched_observations = observations
        self._batched_actions = actions
        self._encoder = settings.encoder
        # Of the rows whose observation could not be taken apart or encoded.
        self._observation_errors: dict[int, Exception] = {}
        self._pooled = flag(pooled, "pooled")
        self._tracker = VectorTracker(
            settings.observation,
            settings.action,
            rows,
            pooled=self._pooled,
            **settings.keywords,
        )
        self._chooses_arrays = self._tracker.chooses_arrays
        self._observes_arrays = self._encoder is None and self._tracker.observes_arrays
        # One a row, or one for all of them.
        self._drift_detectors: list[DriftDetector] = []
        self._info_prefix = info_prefix
        self._info_keys = tuple(info_prefix + key for key in INFO_KEYS)
        watching = detector.make_detector(drift_detector)
        if watching is not None:
            self._drift_detectors = watching.attach_to_rows(self._tracker)
            self._info_keys += (info_prefix + ALARM_KEY,)

    @property
    def info_prefix(self) -> str:
        """What precedes every key that this wrapper adds to infos."""
        return self._info_prefix

    @property
    def pooled(self) -> bool:
        """Whether all sub-environments are in one distribution."""
        return self._pooled

    @property
    def kl_encoder(self) -> str | None:
        """How observations are encoded; see `JointKLDivergenceWrapper.kl_encoder`."""
        return self._tracker.encoder

    @property
    def kl_history(self) -> list[list[float]] | list[float]:
        """The reported divergences in nats, newest last: a list a sub-environment, or one list."""
        histories = self._tracker.histories()
        return histories[0] if self._pooled else histories

    def get_kl_statistics(self) -> list[dict[str, Any]] | dict[str, Any]:
        """What is known of the drift.

        Returns:
            What `JointKLDivergenceWrapper.get_kl_statistics` returns, for each sub-environment, or
            once where they are pooled.
        """
        statistics = self._tracker.statistics()
        moves = self._tracker.axis_moves(TOP_MOVERS)
        for own, own_moves in zip(statistics, moves, strict=True):
            own["top_movers"] = own_moves
        for one, watching in zip(statistics, self._drift_detectors, strict=False):
            one["drift_detector"] = watching.statistics()
        return statistics[0] if self._pooled else statistics

    def kl_axes(self) -> list[list[dict[str, Any]]] | list[dict[str, Any]]:
        """Which axis has moved.

        Returns:
            What `JointKLDivergenceWrapper.kl_axes` returns, for each sub-environment, or once where
            they are pooled.
        """
        moves = self._tracker.axis_moves()
        return moves[0] if self._pooled else moves

    @property
    def drift_detector(self) -> list[DriftDetector] | DriftDetector | None:
        """The detector of each sub-environment, or that of all of them, if there is any."""
        if not self._drift_detectors:
            return None
        return self._drift_detectors[0] if self._pooled else list(self._drift_detectors)

    def reset_kl(self) -> None:
        """Forgets windows and history of all sub-environments; keeps the reference.

        Drift detectors go on: they watch the run, and their own `rebase` starts them anew.
        """
        self._tracker.reset()

    def snapshot(self, which: str = "current", index: int | None = None) -> Snapshot:
        """A distribution on its own, to be saved as JSON, merged, or given as `reference=`.

        Args:
            which: "current" for P, "previous" for Q.
            index: A sub-environment; None adds the counts of all of them.

        Returns:
            As `JointKLDivergenceWrapper.snapshot`.

        Raises:
            TypeError: `index` is no integer.
            ValueError: There is no such sub-environment, the sub-environments are pooled and have
                no distribution each, or `which` is neither.
        """
        if index is None:
            return json.loads(self._tracker.snapshot_json(which))
        if self._pooled:
            raise ValueError(
                f"index must be None where the sub-environments are pooled, got {index}"
            )
        try:
            row = operator.index(index)
        except TypeError:
            raise TypeError(f"index must be None or an integer, got {index!r}") from None
        if not 0 <= row < self._rows:
            raise ValueError(f"index must be None or from 0 to {self._rows - 1}, got {row}")
        return json.loads(self._tracker.snapshot_json(which, row))

    def kl_state_dict(self) -> dict[str, Any]:
        """The full state as a JSON-able dict; `load_kl_state_dict` continues it bit for bit."""
        return json.loads(self._tracker.state_json())

    def load_kl_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the state of a wrapper with the same arguments and `num_envs`.

        Args:
            state: What `kl_state_dict` returned.

        Raises:
            TypeError: It is no dict of JSON values.
            ValueError: It belongs to other arguments, or no run can have it. Nothing is changed
                then.
        """
        self._tracker.load_state_json(snapshots.to_text(state, "state"))
        self._observation_errors = {}

    def _choose(self, actions: Any) -> None:
        """Checks the pairs of all rows before the environments are stepped."""
        if self._observation_errors:
            raise self._observation_errors[min(self._observation_errors)]
        tracker = self._tracker
        if self._chooses_arrays:
            tracker.choose(actions)
        else:
            tracker.choose(list(iterate(self._batched_actions, actions)))

    def _advance(
        self, observations: Any, done: NDArray[np.bool_]
    ) -> tuple[Sequence[NDArray[np.float64]], Sequence[NDArray[np.bool_]]]:
        """Counts the pairs that the environments have accepted, and takes the next observations."""
        # The next action of these rows is ignored, so nobody acts on their last observation.
        ended = done if self._resets_next_step else None
        try:
            rows = self._taken(observations, None if ended is None else ~ended)
        except BaseException:
            # The pairs have happened all the same.
            self._tracker.advance([None] * self._rows, ended)
            self._forget()
            raise
        # The rows that have reset in this step: their next pair is the first of an episode.
        reset = self._tracker.ended() if self._resets_next_step else done
        result = self._tracker.advance(rows, ended, every=self._info_on_reset)
        if self._resets_next_step or self._resets_same_step:
            self._tracker.begin_episodes(reset)
        return result

    def _observe(
        self,
        observations: Any,
        mask: NDArray[np.bool_] | None,
        done: NDArray[np.bool_] | None = None,
    ) -> None:
        """Takes the observations that the next actions answer, of the rows of a mask."""
        ended = done if self._resets_next_step else None
        errors = self._observation_errors
        rows = self._taken(observations, mask if ended is None else ~ended)
        if mask is not None:
            kept = {row: error for row, error in errors.items() if not mask[row]}
            self._observation_errors |= kept
        self._tracker.observe(rows, mask, ended)

    def _taken(self, observations: Any, mask: NDArray[np.bool_] | None) -> Any:
        """The observations as the tracker takes them; `mask` says which rows matter."""
        self._observation_errors = {}
        if self._observes_arrays:
            return observations
        try:
            rows: list[Any] = list(iterate(self._batched_observations, observations))
        except Exception as error:  # the error waits, as every other fault of an observation
            self._observation_errors = dict.fromkeys(range(self._rows), error)
            return [None] * self._rows
        return rows if self._encoder is None else self._encoded(self._encoder, rows, mask)

    def _encoded(
        self, encoder: Encoder, rows: list[Any], mask: NDArray[np.bool_] | None
    ) -> list[NDArray[Any] | None]:
        encoded: list[NDArray[Any] | None] = [None] * self._rows
        for row, observation in enumerate(rows):
            if mask is not None and not mask[row]:
                continue
            try:
                encoded[row] = encoder(observation)
            except Exception as error:  # whatever a user's function raises; it waits too
                self._observation_errors[row] = error
        if self._tracker.observation is None:
            first = next((one for one in encoded if one is not None), None)
            if first is not None:
                self._tracker.define_observation(encoder.axes(first))
        return encoded

    def _forget(self) -> None:
        self._observation_errors = {}
        self._tracker.forget()

    def _report_alarms(self, columns: Sequence[NDArray[np.float64]]) -> None:
        """Tells the user's callback of the alarms of a step, which has been counted, row by row."""
        if self._drift_detectors and columns[-1].any():
            for row in [0] if self._pooled else np.flatnonzero(columns[-1]).tolist():
                self._drift_detectors[row].report_alarm()
