"""Alarms at a rate the user asked for, when the behaviour changes."""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from kl_proteus import _core, hooks, snapshots
from kl_proteus.snapshots import Snapshot

__all__ = ["CellShare", "DriftAlarm", "DriftDetector", "Part", "make_detector"]

Part = Literal["observation", "policy", "joint"]
"""A part of the divergence: where the agent goes, what it does there, or both together."""

PARTS: tuple[Part, ...] = ("observation", "policy", "joint")


@dataclass(frozen=True, slots=True)
class CellShare:
    """How the share of one cell of (observation, action) has changed."""

    observation_key: int
    """Key of the observation."""
    action_key: int
    """Key of the action."""
    count: int
    """Its pairs in the newest window."""
    reference_count: int
    """Its pairs in the reference."""
    share: float
    """Its smoothed probability in the newest window."""
    reference_share: float
    """Its smoothed probability in the reference."""


@dataclass(frozen=True, slots=True)
class DriftAlarm:
    """Evidence that the behaviour has changed: when, which part, how sure, and what moved."""

    step: int
    """Pairs that the detector had counted."""
    part: Part
    """The part that lies furthest above what it is without change."""
    test: Literal["divergence", "likelihood_ratio"]
    """What raised the alarm; "likelihood_ratio" is the CUSUM that `fast=True` adds."""
    pvalue: float
    """The smallest p-value of the watched parts times their number, at most 1.0."""
    threshold: float
    """What `pvalue` had to fall below (an alarm of "likelihood_ratio" did not need it)."""
    pvalues: dict[Part, float]
    """The p-value of each part; 1.0 before the calibration was complete."""
    divergence: dict[Part, float]
    """KL divergence of the newest window from the reference, in nats."""
    expected: dict[Part, float]
    """What it is without change: the geometric mean over the calibration, in nats."""
    log_likelihood_ratio: float
    """Evidence of the likelihood-ratio CUSUM, in nats; 0.0 without it."""
    cells: tuple[CellShare, ...]
    """The cells whose share has changed most, those that moved most first."""
    axes: tuple[dict[str, Any], ...]
    """The axes that moved most between the two windows of the wrapper, those that moved most first:
    for each its name (`axis`), its divergence (`kl`) and how far that lies above what is `expected`
    (`excess`, in standard deviations), by how much its mean moved (`shift`), the bin that has grown
    most (`grown`), as `get_kl_statistics` has them. Empty where no wrapper feeds the detector."""
    row: int | None = None
    """The sub-environment, where each of a vector environment has a detector of its own."""


class DriftDetector:
    """Watches a stream of (observation, action) pairs and raises an alarm when behaviour changes.

    The first `reference_windows` windows are the reference. Each of the next `calibration_windows`
    windows is compared with it: the logarithms of the KL divergence, one window apart, give a mean
    and a standard deviation for each part. From then on the newest `window` pairs are compared with
    the reference every `every` pairs. A part is judged by the prediction interval of Student's t,

        T = (log KL - mean) / (sd sqrt(1 + 1/m)),    m = calibration_windows,

    and an alarm is raised where the smallest p-value of the parts, times their number, falls below

        min(0.05, 0.5 (false_alarm_every / window)^-1.32),

    a rule whose constants were found on streams without change. After an alarm the detector rests
    for two windows. A change that lasts raises an alarm again and again until `rebase`.

    A KL divergence below 1/window, less than one pair in a new cell makes, counts as 1/window, and
    a standard deviation below half of 1/sqrt(window exp(mean)), half of what counting alone would
    give, counts as that: a constant stream has a p-value like any other, and neither its first odd
    pair nor a calibration that happened to be smooth is an alarm.

    With `fast=True` a likelihood-ratio CUSUM (Page 1954) of the policy between adjacent windows
    watches too, from its first two full windows on: it is quicker on large changes. Each of the two
    tests then gets half of the false alarms.

    Alone, the detector is fed integer keys with `update` or `update_many`. With
    `JointKLDivergenceWrapper(..., drift_detector=detector)`, or a pooled vector wrapper, it counts
    the pairs of the wrapper, and nothing else may feed it. `pickle`, `copy.deepcopy` and
    `state_dict` continue bit for bit.

    Args:
        false_alarm_every: Pairs that should lie between two false alarms, on average at least; from
            1 to 1e15.
        reference: "first" for the first windows of the stream; or what `reference()` or
            `JointKLDivergenceWrapper.snapshot` returned, or the path of such a file. A snapshot
            with a calibration starts as soon as the window is full.
        reference_windows: Windows of pairs in the reference.
        calibration_windows: Windows of the calibration, at least 2. Ten are too few to keep the
            rate of false alarms.
        parts: What is watched: one or more of "observation", "policy" and "joint".
        every: Pairs between two comparisons; None is a fortieth of the window.
        on_alarm: A function of the alarm, or "module:function", that is called after the pair has
            been counted; once a step, with the newest alarm, where pooled environments bring
            several pairs. It may call `rebase`.
        window: Newest pairs that are compared with the reference.
        fast: Whether the likelihood-ratio CUSUM watches as well.
        epsilon: Pseudocount of each occupied cell, above 0 and at most 1e6.
        max_alarms: How many alarms are remembered.

    Raises:
        OSError: The file of the reference cannot be read.
        TypeError: An argument is of another type.
        ValueError: An argument is out of its range, or the reference was calibrated for another
            window or epsilon.
    """

    def __init__(
        self,
        false_alarm_every: float = 100_000,
        *,
        reference: Literal["first"] | Snapshot | str | PathLike[str] = "first",
        reference_windows: int = 4,
        calibration_windows: int = 20,
        parts: Sequence[Part] = ("observation", "policy"),
        every: int | None = None,
        on_alarm: Callable[[DriftAlarm], object] | str | None = None,
        window: int = 1000,
        fast: bool = False,
        epsilon: float = 0.5,
        max_alarms: int = 1000,
    ) -> None:
        self._arguments: dict[str, Any] = {
            "false_alarm_every": _plain(false_alarm_every),
            "reference": reference,
            "reference_windows": _plain(reference_windows),
            "calibration_windows": _plain(calibration_windows),
            "parts": _words(parts),
            "every": _plain(every),
            "on_alarm": on_alarm,
            "window": _plain(window),
            "fast": _flag(fast),
            "epsilon": _plain(epsilon),
            "max_alarms": _plain(max_alarms),
        }
        self._on_alarm = None if on_alarm is None else hooks.Hook("on_alarm", on_alarm)
        text = None
        if not (isinstance(reference, str) and reference == "first"):
            text = snapshots.reference_text(reference)
            # A copy: the dict may change.
            self._arguments["reference"] = (
                _plain(reference) if _is_path(reference) else json.loads(text)
            )
        numbers = dict(self._arguments)
        del numbers["reference"], numbers["on_alarm"]
        for name, value in numbers.items():
            if value is None and name != "every":
                raise TypeError(f"{name} must be a number, got None")
        self._core = _core.DriftDetector(reference=text, **numbers)
        self._row: int | None = None

    def __repr__(self) -> str:
        return (
            f"DriftDetector(false_alarm_every={self._arguments['false_alarm_every']!r}, "
            f"window={self._arguments['window']!r}, phase={self.phase!r}, "
            f"alarms={self.alarm_count})"
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain values: `DriftDetector(**arguments)`."""
        return dict(self._arguments)

    def update(self, observation_key: int, action_key: int) -> bool:
        """Counts one pair.

        Args:
            observation_key: Names the observation or its bin; 0 to 2^128 - 1.
            action_key: Names the action or its bin; 0 to 2^128 - 1.

        Returns:
            Whether this pair raises an alarm, which is then the last of `alarms`.

        Raises:
            TypeError: A key is no integer.
            ValueError: A key is out of its range, or a wrapper feeds the detector.
        """
        alarmed = self._core.update(observation_key, action_key)
        if alarmed:
            self.report_alarm()
        return alarmed

    def update_many(self, observation_keys: ArrayLike, action_keys: ArrayLike) -> list[DriftAlarm]:
        """Counts pairs in order; the same as `update` for each of them, many times faster.

        Args:
            observation_keys: Integers of at least 0, of shape (n,).
            action_keys: Integers of at least 0, of shape (n,).

        Returns:
            The alarms that these pairs raised, at most the last `max_alarms`.

        Raises:
            TypeError: An argument is no array of integers.
            ValueError: The shapes differ, a key is negative, or a wrapper feeds the detector.
                Nothing is counted then.
        """
        before = self.alarm_count
        pairs = _core.KeyPairs(observation_keys, action_keys)
        start = 0
        while start < len(pairs):
            start = self._core.update_many(pairs, start, self._on_alarm is not None)
            if self._core.alarmed:
                self.report_alarm()
        return self._newest(self.alarm_count - before)

    def report_alarm(self) -> None:
        """Calls `on_alarm` with the newest alarm; for whatever feeds the detector."""
        if self._on_alarm is not None:
            self._on_alarm(self._newest(1)[0])

    @property
    def pvalue(self) -> float:
        """The smallest p-value of the watched parts times their number, at most 1.0.

        It is that of the last comparison, and 1.0 before the first.
        """
        return self._core.pvalue

    @property
    def pvalues(self) -> dict[Part, float]:
        """The p-value of every part at the last comparison; 1.0 before the first."""
        return _by_part(self._core.pvalues())

    @property
    def threshold(self) -> float:
        """What `pvalue` must fall below for an alarm."""
        return self._core.threshold

    @property
    def part(self) -> Part | None:
        """The watched part with the smallest p-value; None before the first comparison."""
        return cast("Part | None", self._core.part)

    @property
    def divergence(self) -> dict[Part, float]:
        """KL divergence of the window from the reference at the last comparison, in nats."""
        return _by_part(self._core.divergence())

    @property
    def log_likelihood_ratio(self) -> float:
        """Evidence of the likelihood-ratio CUSUM, in nats; 0.0 unless `fast`."""
        return self._core.log_likelihood_ratio

    @property
    def ready(self) -> bool:
        """Whether the calibration is complete and the window full."""
        return self._core.ready

    @property
    def phase(self) -> Literal["reference", "calibration", "watching"]:
        """What the detector is doing."""
        return cast("Any", self._core.phase)

    @property
    def steps(self) -> int:
        """Pairs counted since the detector was made."""
        return self._core.steps

    @property
    def steps_until_ready(self) -> int:
        """Pairs that are missing until it is ready."""
        return self._core.steps_until_ready

    @property
    def alarms(self) -> list[DriftAlarm]:
        """The newest alarms, oldest first, at most `max_alarms`."""
        return self._newest(None)

    @property
    def alarm_count(self) -> int:
        """Alarms since the detector was made, forgotten ones included."""
        return self._core.alarm_count

    def _newest(self, count: int | None) -> list[DriftAlarm]:
        if count == 0:
            return []
        return [_alarm(alarm, self._row) for alarm in json.loads(self._core.alarms_json(count))]

    def statistics(self) -> dict[str, Any]:
        """What is known at present.

        Returns:
            `ready, phase, steps, steps_until_ready, pvalue, threshold, part`; `pvalues`,
            `divergence` and `expected` (what the divergence is without change; None until it is
            known) by part, in nats; `log_likelihood_ratio`; `alarms`, how many there were; and
            `last_alarm`, the step of the newest, or None.
        """
        expected = self._core.expected()
        last = self._newest(1)
        return {
            "ready": self.ready,
            "phase": self.phase,
            "steps": self.steps,
            "steps_until_ready": self.steps_until_ready,
            "pvalue": self.pvalue,
            "threshold": self.threshold,
            "part": self.part,
            "pvalues": self.pvalues,
            "divergence": self.divergence,
            "expected": None if expected is None else _by_part(expected),
            "log_likelihood_ratio": self.log_likelihood_ratio,
            "alarms": self.alarm_count,
            "last_alarm": last[0].step if last else None,
        }

    def rebase(self) -> None:
        """Accepts the behaviour as it is from now on.

        The next pairs are a new reference and a new calibration; until they are complete, `ready`
        is False. Alarms and `steps` stay.
        """
        self._core.rebase()

    def reference(self) -> Snapshot:
        """The reference, to be saved as JSON and given as `reference=` in a later run.

        Returns:
            A snapshot, with the calibration once it is complete.

        Raises:
            ValueError: The reference is still being collected.
        """
        return json.loads(self._core.reference_json())

    def state_dict(self) -> dict[str, Any]:
        """The full state as a JSON-able dict; `load_state_dict` continues it bit for bit."""
        return json.loads(self._core.state_json())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the state of a detector with the same arguments.

        Args:
            state: What `state_dict` returned.

        Raises:
            TypeError: It is no dict of JSON values.
            ValueError: It belongs to other arguments, or no run can have it. Nothing is changed
                then.
        """
        self._core.load_state_json(snapshots.to_text(state, "state"))

    def attach_to(self, tracker: _core.PairTracker) -> None:
        """Lets a tracker feed the detector, which then lives with it.

        Args:
            tracker: The tracker of a wrapper.

        Raises:
            ValueError: Another one feeds it, or its reference has other axes.
        """
        tracker.attach(self._core)

    def attach_to_rows(self, tracker: _core.VectorTracker) -> list["DriftDetector"]:
        """Lets the tracker of a vector environment feed the detector, or a copy of it for each row.

        Args:
            tracker: The tracker of a wrapper.

        Returns:
            The detectors that are fed: this one where the rows are pooled, else one a row. Copies
            continue from the state of this one, which stays as it is.

        Raises:
            ValueError: Another one feeds it, or its reference has other axes.
        """
        tracker.attach(self._core)
        if tracker.pooled:
            return [self]
        return [self._of_row(tracker, row) for row in range(len(tracker))]

    def _of_row(self, tracker: _core.VectorTracker, row: int) -> "DriftDetector":
        # Shallow: `on_alarm` may belong to an object that is to hear of all rows.
        detector = copy.copy(self)
        detector._core = _core.DriftDetector.of_row(tracker, row)
        detector._row = row
        return detector


def make_detector(value: Any) -> DriftDetector | None:
    """The detector that a `drift_detector=` argument means.

    Args:
        value: None, a detector, a number for `false_alarm_every`, or a mapping of the constructor's
            arguments.

    Raises:
        TypeError: It is none of these.
        ValueError: An argument is out of its range.
    """
    if value is None or isinstance(value, DriftDetector):
        return value
    if isinstance(value, Mapping):
        try:
            return DriftDetector(**cast("Mapping[str, Any]", value))
        except TypeError as error:
            raise TypeError(f"drift_detector: {error}") from None
        except ValueError as error:
            raise ValueError(f"drift_detector: {error}") from None
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            "drift_detector must be None, a DriftDetector, a number of pairs "
            f"(false_alarm_every) or a dict of its arguments, got {value!r}"
        )
    try:
        return DriftDetector(value)
    except ValueError as error:
        raise ValueError(f"drift_detector: {error}") from None


def recorded(value: Any) -> Any:
    """A `drift_detector=` argument as JSON can hold it: a specification makes a fresh detector."""
    if isinstance(value, DriftDetector):
        return value.arguments
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in cast("Mapping[str, Any]", value).items()}
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return cast("Any", value).tolist()
    if isinstance(value, tuple):
        return list(cast("tuple[Any, ...]", value))
    if isinstance(value, PathLike):
        return fspath(cast("PathLike[str]", value))
    return value


def _words(parts: Any) -> list[Any]:
    # A str would be taken for its letters, and a set has no order.
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise TypeError(f"parts must be a sequence of str, got {parts!r}")
    return list(cast("Sequence[Any]", parts))


def _flag(fast: Any) -> bool:
    fast = _plain(fast)
    if not isinstance(fast, bool):
        raise TypeError(f"fast must be True or False, got {fast!r}")
    return fast


def _is_path(reference: Any) -> bool:
    return isinstance(reference, str | PathLike)


def _by_part(values: tuple[float, float, float]) -> dict[Part, float]:
    return dict(zip(PARTS, values, strict=True))


def _alarm(saved: dict[str, Any], row: int | None) -> DriftAlarm:
    def by_part(name: str) -> dict[Part, float]:
        return {part: saved[name][part] for part in PARTS}

    return DriftAlarm(
        step=saved["step"],
        part=saved["part"],
        test=saved["test"],
        pvalue=saved["pvalue"],
        threshold=saved["threshold"],
        pvalues=by_part("pvalues"),
        divergence=by_part("divergence"),
        expected=by_part("expected"),
        log_likelihood_ratio=saved["log_likelihood_ratio"],
        cells=tuple(
            CellShare(
                observation_key=int(cell["observation"]),
                action_key=int(cell["action"]),
                count=cell["count"],
                reference_count=cell["reference_count"],
                share=cell["share"],
                reference_share=cell["reference_share"],
            )
            for cell in saved["cells"]
        ),
        axes=tuple(saved["axes"]),
        row=row,
    )
