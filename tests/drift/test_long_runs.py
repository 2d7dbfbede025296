"""Long runs with many cells that come and go, compared with the twin at some steps."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from gymnasium import spaces

from drift.harness import assert_close
from kl_proteus._core import PairTracker
from kl_proteus.spaces import layout_from_space
from reference import drift

STEPS = 20_000
CHECKS = 12
OBSERVATIONS, ACTIONS = 600, 40


def tracker_of(**settings):
    """A tracker of two Discrete spaces."""
    return PairTracker(
        layout_from_space(spaces.Discrete(OBSERVATIONS), name="observation"),
        layout_from_space(spaces.Discrete(ACTIONS), name="action"),
        **settings,
    )


def stream(kind: str, steps: int = STEPS, seed: int = 0) -> list[tuple[int, int]]:
    """Pairs whose distribution is heavy-tailed and drifts, or cycles through all cells."""
    rng = np.random.default_rng(seed)
    if kind == "cycle":
        cells = np.arange(steps)
        actions = cells // OBSERVATIONS % ACTIONS
        return list(zip((cells % OBSERVATIONS).tolist(), actions.tolist(), strict=True))
    offset = np.arange(steps) * 300 // steps
    observations = (rng.zipf(1.3, steps) + offset) % OBSERVATIONS
    actions = (rng.integers(0, 30, steps) + observations + offset // 100) % ACTIONS
    return list(zip(observations.tolist(), actions.tolist(), strict=True))


MODES = {
    "adjacent": {"window": 700},
    "adjacent_short": {"window": 31},
    "adjacent_longer_than_the_run": {"window": 10**9},
    "lag_apart": {"window": 500, "lag": 1700},
    "lag_overlapping": {"window": 900, "lag": 1},
    "lifetime": {"window": None},
}


def assert_equals_definition(result, counts, epsilon):
    """The three divergences of a result, from the counts of both distributions."""
    joint, _, _, observation, policy, floor, excess = result
    assert_close(joint, drift.kl_joint(*counts, epsilon), 1e-12, "kl_divergence")
    assert_close(observation, drift.kl_observation(*counts, epsilon), 1e-12, "kl_observation")
    assert_close(policy, drift.kl_policy(*counts, epsilon), 1e-12, "kl_policy")
    assert math.isfinite(floor)
    assert floor >= 0.0
    assert excess == joint - floor


@pytest.mark.parametrize("epsilon", [1e-10, 0.5, 1e6])
@pytest.mark.parametrize("kind", ["drift", "cycle"])
@pytest.mark.parametrize("mode", MODES)
def test_windows_at_some_steps(mode, kind, epsilon):
    settings = MODES[mode]
    tracker = tracker_of(epsilon=epsilon, **settings)
    pairs = stream(kind)
    checks = set(np.linspace(3_000, STEPS, CHECKS, dtype=int).tolist())
    for n, pair in enumerate(pairs, start=1):
        result = tracker.update(*pair)
        if n in checks:
            counts = drift.count_windows(
                pairs[:n], settings["window"], settings.get("lag"), reference=None
            )
            assert_equals_definition(result, counts, epsilon)
            assert tracker.statistics()["cells"] == len(drift.support(*counts))


@pytest.mark.parametrize("epsilon", [1e-10, 0.5, 1e6])
@pytest.mark.parametrize("window", [None, 800])
def test_reference_at_some_steps(window, epsilon):
    known = stream("drift", 5_000, seed=1)
    source = tracker_of(window=None)
    for pair in known:
        source.update(*pair)
    tracker = tracker_of(window=window, reference=source.snapshot_json("current"), epsilon=epsilon)
    pairs = stream("drift", seed=2)
    for n, pair in enumerate(pairs, start=1):
        result = tracker.update(*pair)
        if n % 2_500 == 0:
            counts = drift.count_windows(pairs[:n], window, None, Counter(known))
            assert_equals_definition(result, counts, epsilon)


@pytest.mark.parametrize("epsilon", [1e-10, 0.5, 1e6])
@pytest.mark.parametrize("factor", [10**6, 10**12, 2**50])
def test_a_reference_of_very_many_pairs(factor, epsilon):
    known = stream("drift", 3_000, seed=3)
    source = tracker_of(window=None)
    for pair in known:
        source.update(*pair)
    snapshot = json.loads(source.snapshot_json("current"))
    for row in snapshot["counts"].values():
        row.update({action: count * factor for action, count in row.items()})
    reference = Counter({pair: count * factor for pair, count in Counter(known).items()})
    tracker = tracker_of(window=400, reference=json.dumps(snapshot), epsilon=epsilon)
    pairs = stream("drift", 1_000, seed=4)
    for pair in pairs:
        result = tracker.update(*pair)
    counts = drift.count_windows(pairs, 400, None, reference)
    assert_equals_definition(result, counts, epsilon)


@pytest.mark.parametrize("epsilon", [1e-10, 0.5, 100.0])
def test_the_tiny_values_of_a_lifetime_keep_their_digits(epsilon):
    # Around 1e-9 here: an absolute tolerance alone would accept 0.0.
    tracker = tracker_of(window=None, epsilon=epsilon)
    pairs = stream("drift", 200_000)
    for pair in pairs:
        result = tracker.update(*pair)
    current, previous = Counter(pairs), Counter(pairs[:-1])
    expected = drift.kl_joint(current, previous, epsilon)
    assert 0.0 < expected < 1e-4
    assert result[0] == pytest.approx(expected, rel=1e-6)
    assert result[3] == pytest.approx(drift.kl_observation(current, previous, epsilon), rel=1e-6)


def test_history_equals_numpy_after_level_shifts():
    tracker = tracker_of(window=50, history_size=300, min_window=1)
    pairs = stream("drift", 3_000) + [(0, 0)] * 2_000 + stream("cycle", 3_000)
    for n, pair in enumerate(pairs, start=1):
        tracker.update(*pair)
        if n % 250 == 0:
            history = np.array(tracker.history())
            statistics = tracker.statistics()
            assert len(history) == statistics["count"] <= 300
            assert_close(statistics["mean"], history.mean(), 1e-12, "mean")
            assert_close(statistics["std"], history.std(), 1e-12, "std")
            assert statistics["min"] == history.min()
            assert statistics["max"] == history.max()
