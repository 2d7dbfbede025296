"""The noise floor is the mean over all ways to divide the pairs, and what follows from it."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from gymnasium import spaces

from drift.harness import assert_close
from kl_proteus._core import PairTracker
from kl_proteus.spaces import layout_from_space
from reference import noise_floor

FLOOR, EXCESS = 5, 6


def tracker_of(observations, actions=1, **settings):
    """A tracker of two categories."""
    layouts = [
        layout_from_space(spaces.Discrete(n), name=name)
        for n, name in ((observations, "observation"), (actions, "action"))
    ]
    return PairTracker(*layouts, **settings)


def fed(tracker, pairs):
    """The last report."""
    for pair in pairs[:-1]:
        tracker.update(*pair)
    return tracker.update(*pairs[-1])


def iid(rng, cells, pairs, power):
    """Independent pairs over (observation, 0), uniform or heavy-tailed."""
    weights = np.arange(1, cells + 1) ** -power
    return [(int(o), 0) for o in rng.choice(cells, pairs, p=weights / weights.sum())]


def counts(tracker, which):
    """The counts of a distribution by cell."""
    rows = json.loads(tracker.snapshot_json(which))["counts"]
    return Counter({(o, a): count for o, row in rows.items() for a, count in row.items()})


def shuffled_mean(rng, pooled, current, epsilon):
    """The mean divergence over random divisions of the pooled pairs, and its relative error."""
    pooled = np.array(pooled)
    repeats = max(1_500, 600_000 // len(pooled))
    c = rng.multivariate_hypergeometric(pooled, current, size=repeats, method="marginals")
    p, q = c + epsilon, pooled - c + epsilon
    p, q = p / p[0].sum(), q / q[0].sum()
    values = (p * np.log(p / q)).sum(axis=1)
    return values.mean(), values.std() / math.sqrt(repeats) / values.mean()


SETTINGS = [
    (window, reference, cells, power)
    for window, reference in [(1000, 0), (1000, 4000), (400, 150)]
    for cells, power in [(20, 0.0), (300, 0.0), (3000, 0.0), (1500, 1.0)]
]


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
@pytest.mark.parametrize(("window", "reference", "cells", "power"), SETTINGS)
def test_the_floor_is_the_mean_of_shuffled_pairs(window, reference, cells, power, epsilon):
    rng = np.random.default_rng([window, reference, cells])
    settings = {"window": window, "epsilon": epsilon}
    if reference:
        source = tracker_of(cells, window=None)
        fed(source, iid(rng, cells, reference, power))
        settings["reference"] = source.snapshot_json("current")
    tracker = tracker_of(cells, **settings)
    report = fed(tracker, iid(rng, cells, 2 * window, power))
    p, q = counts(tracker, "current"), counts(tracker, "previous")
    assert (p.total(), q.total()) == (window, reference or window)
    pooled = noise_floor.pooled_counts(p, q)
    assert 0.015 <= len(pooled) / window <= 4.0
    mean, error = shuffled_mean(rng, pooled, window, epsilon)
    assert error < 0.003
    assert report[FLOOR] == pytest.approx(mean, rel=0.01)
    assert report[EXCESS] == report[0] - report[FLOOR]


def test_the_excess_of_independent_pairs_is_zero_on_average():
    rng = np.random.default_rng(7)
    tracker = tracker_of(60, window=200)
    values = []
    for n, pair in enumerate(iid(rng, 60, 60_000, 0.5)):
        report = tracker.update(*pair)
        if n >= 400 and n % 200 == 0:
            values.append((report[0], report[EXCESS]))
    joint, excess = np.array(values).T
    assert abs(excess.mean()) < 3.5 * excess.std() / math.sqrt(len(values))
    assert abs(excess.mean()) < 0.02 * joint.mean()


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("reference", [0, 300])
def test_while_windows_grow_the_floor_is_near_the_exact_one(reference, epsilon):
    rng = np.random.default_rng(3)
    settings = {"window": 700, "epsilon": epsilon}
    if reference:
        source = tracker_of(40, window=None)
        fed(source, iid(rng, 40, reference, 0.5))
        settings["reference"] = source.snapshot_json("current")
    tracker = tracker_of(40, **settings)
    for n, pair in enumerate(iid(rng, 40, 1500, 0.5), start=1):
        floor = tracker.update(*pair)[FLOOR]
        if tracker.reported and n % 37 == 0:
            exact = noise_floor.full(
                counts(tracker, "current"), counts(tracker, "previous"), epsilon
            )
            assert floor == pytest.approx(exact, rel=0.012)


def test_every_pair_against_a_reference_has_a_floor_at_any_length():
    rng = np.random.default_rng(4)
    source = tracker_of(30, window=None)
    fed(source, iid(rng, 30, 400, 0.5))
    reference = source.snapshot_json("current")
    tracker = tracker_of(30, window=None, reference=reference)
    for n, pair in enumerate(iid(rng, 30, 4000, 0.5), start=1):
        floor = tracker.update(*pair)[FLOOR]
        if n in (32, 100, 399, 1000, 4000):
            exact = noise_floor.full(counts(tracker, "current"), counts(tracker, "previous"), 0.5)
            assert floor == pytest.approx(exact, rel=0.006)


@pytest.mark.parametrize("epsilon", [1e-10, 0.5, 1e6])
@pytest.mark.parametrize("share", [0.5, 0.97])
def test_cells_of_many_pairs(share, epsilon):
    # More pairs than the table of single terms has.
    rng = np.random.default_rng(5)
    tracker = tracker_of(3, window=3500, epsilon=epsilon)
    draws = rng.choice(3, 7000, p=[share, 0.999 - share, 0.001])
    report = fed(tracker, [(int(o), 0) for o in draws])
    exact = noise_floor.full(counts(tracker, "current"), counts(tracker, "previous"), epsilon)
    assert_close(report[FLOOR], exact, 1e-12, "kl_noise_floor")


@pytest.mark.parametrize(
    "settings", [{"window": None}, {"window": 9, "lag": 4}, {"window": 9, "lag": 8}]
)
def test_distributions_that_share_pairs_have_no_floor(settings):
    tracker = tracker_of(5, 2, **settings)
    for n in range(80):
        report = tracker.update(n * n % 5, n % 2)
        assert report[FLOOR] == 0.0
        assert report[EXCESS] == report[0]
    statistics = tracker.statistics()
    assert not statistics["floor_available"]
    assert statistics["kl_policy_floor"] == statistics["kl_policy_z"] == 0.0
    assert statistics["kl_policy_pvalue"] == 1.0


def test_nothing_is_said_before_a_value_is():
    tracker = tracker_of(5, 2, window=50, min_window=20)
    for n in range(40):
        assert not tracker.statistics()["floor_available"]
        report = tracker.update(n % 5, n % 2)
        assert report == (0.0,) * 7 or n == 39
    assert tracker.statistics()["floor_available"]
    assert report[FLOOR] > 0.0


def test_the_floor_of_the_policy_part_is_the_mean_of_shuffled_actions():
    rng = np.random.default_rng(11)
    tracker = tracker_of(12, 3, window=500)
    pairs = list(
        zip(rng.integers(0, 12, 1000).tolist(), rng.integers(0, 3, 1000).tolist(), strict=True)
    )
    fed(tracker, pairs)
    statistics = tracker.statistics()
    pairs = np.array(pairs)
    values = []
    for _ in range(600):
        shuffled = pairs.copy()
        for o in range(12):
            rows = np.flatnonzero(pairs[:, 0] == o)
            shuffled[rows, 1] = rng.permutation(pairs[rows, 1])
        cells = shuffled[:, 0] * 3 + shuffled[:, 1]
        c = np.bincount(cells[500:], minlength=36).reshape(12, 3) + 0.5
        d = np.bincount(cells[:500], minlength=36).reshape(12, 3) + 0.5
        joint = (c / c.sum() * np.log(c / c.sum() / (d / d.sum()))).sum()
        p, q = c.sum(1) / c.sum(), d.sum(1) / d.sum()
        values.append(joint - (p * np.log(p / q)).sum())
    error = np.std(values) / math.sqrt(len(values))
    assert abs(statistics["kl_policy_floor"] - np.mean(values)) < 4 * error
    # 24 degrees of freedom: the deviation is that of the shuffled values.
    deviation = statistics["kl_policy_excess"] / statistics["kl_policy_z"]
    assert deviation == pytest.approx(np.std(values), rel=0.15)
    share_above = np.mean(np.array(values) > tracker.report()[4])
    assert statistics["kl_policy_pvalue"] == pytest.approx(share_above, abs=0.1)


def test_a_new_policy_in_the_same_places_is_found_and_a_new_place_is_no_policy():
    rng = np.random.default_rng(12)
    places = rng.integers(0, 12, 1000).tolist()
    tracker = tracker_of(24, 3, window=500)
    fed(tracker, [(o, n % 3 if n < 500 else 0) for n, o in enumerate(places)])
    found = tracker.statistics()
    assert found["kl_policy_z"] > 20.0
    assert found["kl_policy_pvalue"] < 1e-9
    assert 0.0 < found["kl_detectable"] < found["kl_policy_excess"]
    moved = tracker_of(24, 3, window=500)
    fed(moved, [(o + 12 * (n >= 500), n % 3) for n, o in enumerate(places)])
    statistics = moved.statistics()
    assert statistics["kl_policy_z"] == 0.0
    assert statistics["support"] == 0.0
    # No change of the policy would show: what is detectable is the most that counts can say.
    assert statistics["kl_detectable"] == pytest.approx(math.log(500 / 0.5 + statistics["cells"]))


def test_a_value_is_expected_from_twenty_windows_of_its_own_past():
    rng = np.random.default_rng(13)
    tracker = tracker_of(50, 2, window=50)
    for n in range(1, 50 * 23):
        tracker.update(int(rng.integers(50)), int(rng.integers(2)))
        statistics = tracker.statistics() if n % 50 in (0, 49) else None
        # The windows are full at 100; the 21st value is taken at 1100, and 20 are the past then.
        if statistics is not None:
            assert (
                (statistics["kl_pvalue"] < 1.0) == (statistics["kl_expected"] > 0.0) == (n >= 1100)
            )
    assert statistics["kl_expected"] == pytest.approx(statistics["mean"], rel=0.1)
    assert statistics["kl_pvalue"] > 1e-4
    for _ in range(50):
        tracker.update(0, 0)
    assert tracker.statistics()["kl_pvalue"] < 1e-6


@pytest.mark.parametrize("settings", [{"window": 20}, {"window": 20, "lag": 30}, {"window": None}])
def test_a_constant_stream_stays_finite(settings):
    tracker = tracker_of(3, 2, **settings)
    for n in range(1200):
        report = tracker.update(1, 1)
        assert all(map(math.isfinite, report))
        if n % 50 == 0:
            statistics = tracker.statistics()
            assert all(math.isfinite(value) for value in statistics.values())
            assert statistics["kl_pvalue"] in (0.5, 1.0)
    assert json.loads(json.dumps(tracker.statistics(), allow_nan=False)) == tracker.statistics()
