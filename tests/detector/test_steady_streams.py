"""Streams without change, some of them without any variation."""

import math

import numpy as np
import pytest

from kl_proteus import DriftDetector

N = 100_000


def constant(random):
    return np.zeros(N, int), np.zeros(N, int)


def periodic(random):
    return np.arange(N) % 7, np.arange(N) % 2


def deterministic_policy(random):
    observations = random.integers(0, 12, N)
    return observations, observations % 3


def rare_pair(random):
    """One pair in 2000 is an odd one."""
    return (random.random(N) < 1 / 2000).astype(int), np.zeros(N, int)


def rare_action(random):
    return random.integers(0, 5, N), (random.random(N) < 1 / 3000).astype(int)


def two_cells(random):
    return np.zeros(N, int), random.integers(0, 2, N)


def never_twice(random):
    return np.arange(N), np.zeros(N, int)


STREAMS = [constant, periodic, deterministic_policy, rare_pair, rare_action, two_cells, never_twice]


@pytest.mark.parametrize("window", [100, 1000])
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("fast", [False, True])
def test_no_storm_of_alarms(stream, window, fast):
    detector = DriftDetector(100 * window, window=window, fast=fast)
    alarms = detector.update_many(*stream(np.random.default_rng(7)))
    allowed = (N / window - 24) / 100
    assert len(alarms) <= allowed + 2 * math.sqrt(allowed)
    assert math.isfinite(detector.pvalue)


@pytest.mark.parametrize("stream", [constant, periodic, deterministic_policy])
def test_a_steady_stream_that_changes_is_found(stream):
    detector = DriftDetector(100_000)
    observations, actions = stream(np.random.default_rng(7))
    detector.update_many(observations[:30_000], actions[:30_000])
    assert detector.alarms == []
    # One pair in five is another.
    changed = np.where(np.arange(2000) % 5 == 0, 9, actions[:2000])
    alarms = detector.update_many(observations[:2000], changed)
    assert alarms[0].step <= 30_500


def test_memory_follows_what_is_occupied():
    detector = DriftDetector(1e6, window=100, calibration_windows=2, fast=True)
    detector.update_many(*never_twice(None))
    assert len(detector.state_dict()["state"]["cells"]) <= 400 + 200 + 1


def test_a_callback_interrupts_the_bulk():
    random = np.random.default_rng(3)
    observations = random.integers(0, 5, 5000)
    actions = np.where(np.arange(5000) < 3000, random.integers(0, 2, 5000), 3)
    settings = {"false_alarm_every": 10_000, "window": 100}
    told = []

    def accept(alarm):
        told.append(alarm)
        many.rebase()

    many = DriftDetector(**settings, on_alarm=accept)
    one = DriftDetector(**settings)
    alarms = many.update_many(observations, actions)
    for pair in zip(observations.tolist(), actions.tolist(), strict=True):
        if one.update(*pair):
            one.rebase()
    assert told == alarms == one.alarms
    assert len(alarms) == 1
    assert many.state_dict() == one.state_dict()
