"""The compiled tracker equals its slow twin, in every mode, at every step."""

from hypothesis import given

from drift.harness import DIVERGENCES, FLOORS, INFO_KEYS, assert_close, compiled, feed, twin
from drift.strategies import Run, runs

EXACT = ("count", "cells", "steps", "ready", "floor_available", "episodes_in_window")
MEASURED = ("current", "mean", "std", "min", "max", "observation_mean", "policy_mean", "flow")
TRUST = (
    "kl_noise_floor",
    "kl_excess",
    "kl_policy_floor",
    "kl_policy_excess",
    "coverage",
    "support",
)
# Quotients of small numbers, whose last digits are those of the divergences.
PROBABILITIES = ("kl_expected", "kl_pvalue", "kl_policy_z", "kl_policy_pvalue", "kl_detectable")


def assert_equal_at_every_step(run: Run) -> None:
    """Feeds both and compares everything that is said, after every pair."""
    tracker, slow = compiled(run), twin(run)
    for step, pair in enumerate(run.pairs):
        info = dict(zip(INFO_KEYS, tracker.update(*pair), strict=True))
        expected = slow.update(*pair)
        for key in INFO_KEYS:
            tolerance = 1e-12 if key in DIVERGENCES + FLOORS else 1e-9
            assert_close(info[key], expected[key], tolerance, f"{key} at step {step}")
            assert type(info[key]) is float
            assert info[key] >= 0.0 or key == "kl_excess"
        joint, observation, policy = (info[key] for key in DIVERGENCES)
        assert_close(joint, observation + policy, 1e-12, f"the split at step {step}")
        assert info["kl_excess"] == joint - info["kl_noise_floor"]
        statistics, expected_statistics = tracker.statistics(), slow.statistics()
        for key in EXACT:
            assert statistics[key] == expected_statistics[key], f"{key} at step {step}"
        for key in MEASURED + TRUST:
            assert_close(statistics[key], expected_statistics[key], 1e-12, f"{key} at step {step}")
        for key in PROBABILITIES:
            assert_close(statistics[key], expected_statistics[key], 1e-8, f"{key} at step {step}")
        assert statistics.keys() == expected_statistics.keys()
        assert len(tracker.history()) == statistics["count"]
    for got, value in zip(tracker.history(), slow.joint.values, strict=True):
        assert_close(got, value, 1e-12, "history")


@given(runs("adjacent"))
def test_adjacent_windows(run):
    assert_equal_at_every_step(run)


@given(runs("lag"))
def test_windows_apart_by_a_lag(run):
    assert_equal_at_every_step(run)


@given(runs("lifetime"))
def test_everything_against_all_but_the_newest(run):
    assert_equal_at_every_step(run)


@given(runs("reference_window"))
def test_window_against_a_reference(run):
    assert_equal_at_every_step(run)


@given(runs("reference_lifetime"))
def test_everything_against_a_reference(run):
    assert_equal_at_every_step(run)


@given(runs("adjacent"))
def test_a_reset_tracker_is_a_new_one(run):
    tracker = compiled(run)
    results = feed(tracker, run.pairs)
    tracker.reset()
    assert tracker.statistics() == compiled(run).statistics()
    assert tracker.history() == []
    assert feed(tracker, run.pairs) == results


@given(runs("reference_window"))
def test_a_reset_keeps_the_reference(run):
    tracker = compiled(run)
    previous = tracker.snapshot_json("previous")
    results = feed(tracker, run.pairs)
    tracker.reset()
    assert tracker.snapshot_json("previous") == previous
    assert feed(tracker, run.pairs) == results
