"""The drift detector from a list of pairs: every window counted anew, each formula as it stands."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from . import drift

PARTS = ("observation", "policy", "joint")
NODES, WEIGHTS = np.polynomial.legendre.leggauss(200)


@cache
def student_tail(t: float, freedom: float) -> float:
    """P(T > t): the integral of sin(x)^(freedom - 1), where cot x = t / sqrt(freedom)."""

    def integral(end: float) -> float:
        x = (NODES + 1) * end / 2
        return float(WEIGHTS @ np.sin(x) ** (freedom - 1)) * end / 2

    angle = math.atan2(math.sqrt(freedom), t)
    if angle > math.pi / 2:
        return 1.0 - student_tail(-t, freedom)
    return integral(angle) / (2 * integral(math.pi / 2))


def divergences(window: drift.Counts, reference: drift.Counts, epsilon: float) -> dict[str, float]:
    """The divergence of each part, in nats."""
    return {
        "observation": max(0.0, drift.kl_observation(window, reference, epsilon)),
        "policy": max(0.0, drift.kl_policy(window, reference, epsilon)),
        "joint": max(0.0, drift.kl_joint(window, reference, epsilon)),
    }


def log_level(value: float, window: int) -> float:
    """The logarithm of a divergence, which counts as one nat a window at least."""
    return math.log(max(value, 1 / window))


@dataclass(frozen=True)
class Calibration:
    """Mean and deviation of the log divergence of each part."""

    mean: dict[str, float]
    sd: dict[str, float]
    windows: int

    @classmethod
    def of(cls, logs: Sequence[dict[str, float]]) -> "Calibration":
        """From the logarithms of several windows."""
        columns = {part: np.array([log[part] for log in logs]) for part in PARTS}
        return cls(
            {part: float(x.mean()) for part, x in columns.items()},
            {part: float(x.std(ddof=1)) for part, x in columns.items()},
            len(logs),
        )

    def score(self, part: str, value: float, window: int) -> float:
        """How many deviations of a prediction the value lies above the level."""
        counting = 0.5 / math.sqrt(window * math.exp(max(self.mean[part], -math.log(window))))
        deviation = max(self.sd[part], counting) * math.sqrt(1 + 1 / self.windows)
        return (log_level(value, window) - self.mean[part]) / deviation

    def pvalue(self, part: str, value: float, window: int) -> float:
        """P(a window without change has a larger divergence)."""
        return student_tail(self.score(part, value, window), self.windows - 1)


@dataclass
class ReferenceDetector:
    """What the detector must say, at any cost."""

    false_alarm_every: float = 100_000
    reference_windows: int = 4
    calibration_windows: int = 20
    parts: Sequence[str] = ("observation", "policy")
    every: int | None = None
    window: int = 1000
    fast: bool = False
    epsilon: float = 0.5
    max_alarms: int = 1000
    given: tuple[drift.Counts, Calibration | None] | None = None
    steps: int = 0
    alarms: list[dict[str, Any]] = field(default_factory=list)
    quiet_until: int = 0

    def __post_init__(self) -> None:
        self._start(self.given)

    def _start(self, given: tuple[drift.Counts, Calibration | None] | None) -> None:
        self.pairs: list[drift.Cell] = []
        self.reference, self.calibration = given or (None, None)
        self.was_calibrated = self.calibration is not None
        self.frozen_at = 0 if given else self.reference_windows * self.window
        self.watching_from = self.frozen_at + (
            0 if self.was_calibrated else self.calibration_windows * self.window
        )
        self.logs: list[dict[str, float]] = []
        self.values: dict[str, float] | None = None
        self.evidence = 0.0

    def rebase(self) -> None:
        """Start over with what comes next."""
        self._start(None)
        self.quiet_until = self.steps

    @property
    def phase(self) -> str:
        """What it is doing."""
        if len(self.pairs) < self.frozen_at:
            return "reference"
        return "calibration" if len(self.pairs) < self.watching_from else "watching"

    @property
    def stride(self) -> int:
        """Pairs between two comparisons."""
        return self.every or max(1, self.window // 40)

    @property
    def threshold(self) -> float:
        """What the corrected p-value must fall below."""
        asked = min(0.05, 0.5 * (self.false_alarm_every / self.window) ** -1.32)
        return asked / 2 if self.fast else asked

    def is_compared(self) -> bool:
        """Whether the newest pair makes the window be compared."""
        since = len(self.pairs) - self.watching_from
        if self.was_calibrated:
            # The window has to fill first.
            return since >= self.window and (since - self.window) % self.stride == 0
        return since > 0 and since % self.stride == 0

    def pvalues(self) -> dict[str, float]:
        """The p-value of each part at the last comparison."""
        if self.values is None or self.calibration is None:
            return dict.fromkeys(PARTS, 1.0)
        return {
            part: self.calibration.pvalue(part, self.values[part], self.window) for part in PARTS
        }

    @property
    def pvalue(self) -> float:
        """The smallest of the watched parts, corrected for their number."""
        pvalues = self.pvalues()
        return min(1.0, len(self.parts) * min(pvalues[part] for part in self.parts))

    def update(self, observation: Hashable, action: Hashable) -> bool:
        """Count one pair; whether it raises an alarm."""
        if self.fast:
            self._bet(observation, action)
        self.pairs.append((observation, action))
        self.steps += 1
        n = len(self.pairs)
        alarmed = False
        if self.fast and self.steps < self.quiet_until:
            self.evidence = 0.0
        elif self.fast and self.evidence > math.log(2 * self.false_alarm_every):
            alarmed = self._raise("likelihood_ratio")
        if n == self.frozen_at:
            self.reference = Counter(self.pairs)
        calibrates = self.frozen_at < n <= self.watching_from
        if calibrates and (n - self.frozen_at) % self.window == 0:
            values = self._compare()
            self.logs.append({part: log_level(values[part], self.window) for part in PARTS})
            if n == self.watching_from:
                self.calibration = Calibration.of(self.logs)
        if self.is_compared():
            self.values = self._compare()
            if self.pvalue < self.threshold and self.steps >= self.quiet_until:
                alarmed = self._raise("divergence")
        return alarmed

    def _compare(self) -> dict[str, float]:
        assert self.reference is not None
        newest = Counter(self.pairs[max(self.frozen_at, len(self.pairs) - self.window) :])
        return divergences(newest, self.reference, self.epsilon)

    def _bet(self, observation: Hashable, action: Hashable) -> None:
        if len(self.pairs) < 2 * self.window:
            return
        both = self.pairs[-2 * self.window :]
        newest = both[self.window :]

        def count(pairs: Sequence[drift.Cell]) -> tuple[int, int]:
            return pairs.count((observation, action)), sum(o == observation for o, _ in pairs)

        (c, c_o), (t, t_o) = count(newest), count(both)
        actions = len({a for o, a in both if o == observation} | {action})
        q = (t + self.epsilon) / (t_o + self.epsilon * actions)
        p = (c + 20 * q) / (c_o + 20)
        bet = math.log(0.5 + p / (2 * q)) - 2 / self.window
        self.evidence = max(0.0, self.evidence + bet)

    def _raise(self, test: str) -> bool:
        self.alarms.append({"step": self.steps, "test": test, "pvalue": self.pvalue})
        del self.alarms[: -self.max_alarms]
        self.quiet_until = self.steps + 2 * self.window
        self.evidence = 0.0
        return True
