"""Nanoseconds per update: the compiled controllers against plain Python.

    sh scripts/uv run python benches/controllers.py

The peers are a proportional rule in Python, and the threshold rule over a deque and over a list
that is sliced. Answers are compared before anything is timed. Rounds of all contestants alternate,
and the median of the rounds is shown, so that a busy machine slows all alike: read the ratios.
"""

import json
import statistics
import time
from collections import deque

from kl_proteus import AdaptiveKLController, PIDKLController, ThresholdKLController
from kl_proteus._core import DEBUG_BUILD

ROUNDS = 15
UPDATES = 5_000
WINDOWS = (10, 100, 1000)
VALUES = [((i * 2654435761) % 10_007) / 10_007 * 12 for i in range(UPDATES)]


class PythonAdaptive:
    """The proportional rule; without any check of its input."""

    def __init__(self, value, target, horizon):
        self.value, self.target, self.horizon = value, target, horizon

    def update(self, current, n_steps=1):
        error = min(max(current / self.target - 1, -0.2), 0.2)
        self.value *= 1 + error * n_steps / self.horizon
        return self.value


class Band:
    """What the two threshold peers share; without any check of their input."""

    def __init__(self, value, target, window):
        self.value, self.target, self.window = value, target, window

    def adapt(self, mean):
        if mean > 1.5 * self.target:
            self.value *= 1.5
        elif mean < 0.5 * self.target:
            self.value *= 0.8
        self.value = max(0.01, min(1.0, self.value))
        return self.value


class DequeThreshold(Band):
    """The mean of a bounded deque."""

    def __init__(self, value, target, window):
        super().__init__(value, target, window)
        self.seen = deque(maxlen=window)

    def update(self, current, n_steps=1):
        self.seen.append(current)
        if len(self.seen) < self.window:
            return self.value
        return self.adapt(sum(self.seen) / self.window)


class SliceThreshold(Band):
    """The mean of the end of a list that only grows."""

    def __init__(self, value, target, window):
        super().__init__(value, target, window)
        self.seen = []

    def update(self, current, n_steps=1):
        self.seen.append(current)
        if len(self.seen) < self.window:
            return self.value
        recent = self.seen[-self.window :]
        return self.adapt(sum(recent) / len(recent))


def contests():
    """Name, and by contestant a function that makes a controller; ours is first."""
    yield (
        "proportional",
        {
            "AdaptiveKLController": lambda: AdaptiveKLController(0.2, 6.0, 10_000),
            "python": lambda: PythonAdaptive(0.2, 6.0, 10_000),
        },
    )
    yield "pid", {"PIDKLController": lambda: PIDKLController(0.2, 6.0, 10_000)}
    for window in WINDOWS:
        yield (
            f"threshold, window {window}",
            {
                "ThresholdKLController": lambda w=window: ThresholdKLController(0.5, 5.9, window=w),
                "python, deque": lambda w=window: DequeThreshold(0.5, 5.9, w),
                "python, list and slice": lambda w=window: SliceThreshold(0.5, 5.9, w),
            },
        )


def check(makers):
    """Every contestant gives the same coefficients."""
    expected, *others = (make() for make in makers.values())
    for value in VALUES:
        answer = expected.update(value, 3)
        for other in others:
            got = other.update(value, 3)
            assert abs(got - answer) <= 1e-9 * answer, (got, answer)


def nanoseconds(make):
    """One round: the mean of an update on a controller whose window is full."""
    update = make().update
    for value in VALUES[: max(WINDOWS)]:
        update(value, 3)
    start = time.perf_counter_ns()
    for value in VALUES:
        update(value, 3)
    return (time.perf_counter_ns() - start) / UPDATES


def main():
    assert not DEBUG_BUILD, "benchmarks need a release build"
    results = {}
    for name, makers in contests():
        check(makers)
        rounds = {contestant: [] for contestant in makers}
        for _ in range(ROUNDS):
            for contestant, make in makers.items():
                rounds[contestant].append(nanoseconds(make))
        medians = {contestant: statistics.median(times) for contestant, times in rounds.items()}
        ours = next(iter(medians.values()))
        for contestant, median in medians.items():
            print(f"{name:24} {contestant:24} {median:9.0f} ns   x {median / ours:6.2f}")
        results[name] = {contestant: round(median, 1) for contestant, median in medians.items()}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
