"""The twin itself, against numbers worked by hand."""

import math
from collections import Counter
from decimal import Decimal, localcontext

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from kl_proteus.tracking import INFO_KEYS
from reference import drift, keys
from reference.axes import axes_of, digits_of
from reference.history import ReferenceHistory
from reference.tracker import ReferenceTracker

LOG3 = math.log(3.0)


def counts_of(**cells):
    """Counts named by two letters: the observation, then the action."""
    return Counter({(name[0], name[1]): count for name, count in cells.items()})


def test_one_pair_moved_to_a_new_cell():
    # p = (3/4, 1/4), q = (1/4, 3/4): 3/4 log 3 - 1/4 log 3.
    current, previous = counts_of(ax=1), counts_of(bx=1)
    assert drift.kl_joint(current, previous, 0.5) == pytest.approx(LOG3 / 2, abs=1e-15)
    assert drift.kl_observation(current, previous, 0.5) == pytest.approx(LOG3 / 2, abs=1e-15)
    assert drift.kl_policy(current, previous, 0.5) == pytest.approx(0.0, abs=1e-15)


def test_another_action_in_the_same_place_is_all_policy():
    current, previous = counts_of(ax=1), counts_of(ay=1)
    assert drift.kl_observation(current, previous, 0.5) == 0.0
    assert drift.kl_policy(current, previous, 0.5) == pytest.approx(LOG3 / 2, abs=1e-15)


def test_three_cells_by_hand():
    # N = M = 4, K = 3, alpha = 1: p = (4, 1, 2)/7 and q = (2, 3, 2)/7.
    current, previous = counts_of(ax=3, bx=1), counts_of(ax=1, ay=2, bx=1)
    joint = (4 * math.log(2.0) - math.log(3.0)) / 7
    observation = (5 * math.log(5 / 5) + 2 * math.log(2 / 2)) / 7
    assert drift.kl_joint(current, previous, 1.0) == pytest.approx(joint, abs=1e-15)
    assert drift.kl_observation(current, previous, 1.0) == observation == 0.0
    # Within a: (4/5, 1/5) against (2/5, 3/5), and a has 5/7 of P.
    policy = 5 / 7 * (4 / 5 * math.log(2.0) + 1 / 5 * math.log(1 / 3))
    assert drift.kl_policy(current, previous, 1.0) == pytest.approx(policy, abs=1e-15)


def test_smoothing_counts_each_cell_of_the_union_once():
    cells = drift.support(counts_of(ax=3), counts_of(bx=1))
    assert drift.smoothed(counts_of(ax=3), cells, 0.5) == {
        ("a", "x"): 3.5 / 4,
        ("b", "x"): 0.5 / 4,
    }


@pytest.mark.parametrize(("pairs", "expected"), [(1, 0.55), (2, 0.80), (5, 1.00), (20, 1.00)])
def test_half_makes_the_contribution_of_a_cell_independent_of_its_count(pairs, expected):
    # Without any change each pair of a cell falls into either window with probability 1/2.
    mean = sum(
        math.comb(pairs, c) / 2**pairs * (c + 0.5) * drift.log_quotient(c, pairs - c, 0.5)
        for c in range(pairs + 1)
    )
    assert mean == pytest.approx(expected, abs=0.03)


count = st.integers(0, 6) | st.integers(0, 10**9)
tables = st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 3)), count, max_size=10)
occupied = tables.filter(lambda table: any(table.values()))
epsilons = st.just(0.5) | st.floats(-10, 6).map(lambda power: 10.0**power)


def exact(current, previous, epsilon):
    """The three divergences with 60 digits, from probabilities and nothing else."""
    with localcontext() as context:
        context.prec = 60
        cells = drift.support(current, previous)
        alpha = Decimal(epsilon)

        def distribution(counts):
            total = sum(counts[cell] for cell in cells) + alpha * len(cells)
            return {cell: (counts[cell] + alpha) / total for cell in cells}

        def marginals(probabilities):
            sums = {}
            for (o, _), probability in probabilities.items():
                sums[o] = sums.get(o, 0) + probability
            return sums

        p, q = distribution(current), distribution(previous)
        p_o, q_o = marginals(p), marginals(q)
        joint = sum(p[cell] * (p[cell] / q[cell]).ln() for cell in cells)
        observation = sum(p_o[o] * (p_o[o] / q_o[o]).ln() for o in p_o)
        policy = sum(
            p[cell] * ((p[cell] / p_o[cell[0]]) / (q[cell] / q_o[cell[0]])).ln() for cell in cells
        )
        return float(joint), float(observation), float(policy)


@given(occupied, tables, epsilons)
def test_twin_equals_sixty_digits(current, previous, epsilon):
    current, previous = Counter(current), Counter(previous)
    got = [f(current, previous, epsilon) for f in (drift.kl_joint, drift.kl_observation)]
    got.append(drift.kl_policy(current, previous, epsilon))
    assert got == pytest.approx(exact(current, previous, epsilon), abs=2e-14)


@given(occupied, tables, epsilons)
def test_chain_rule_and_signs(current, previous, epsilon):
    current, previous = Counter(current), Counter(previous)
    joint = drift.kl_joint(current, previous, epsilon)
    observation = drift.kl_observation(current, previous, epsilon)
    policy = drift.kl_policy(current, previous, epsilon)
    assert joint == pytest.approx(observation + policy, abs=2e-14)
    assert min(joint, observation, policy) > -2e-14
    assert drift.kl_joint(current, current, epsilon) == 0.0


@pytest.mark.parametrize("pairs_in_cell", [50, 5_000, 500_000])
def test_newest_pair_alone_is_the_closed_form_and_near_its_expectation(pairs_in_cell):
    k, epsilon = 10, 0.5
    before = Counter({(0, a): pairs_in_cell for a in range(k)})
    after = before + Counter({(0, 3): 1})
    m, s = pairs_in_cell + epsilon, k * (pairs_in_cell + epsilon)
    closed = (m + 1) / (s + 1) * math.log1p(1 / m) - math.log1p(1 / s)
    value = drift.kl_joint(after, before, epsilon)
    assert value == pytest.approx(closed, rel=1e-7)
    # Uniform cells: every newest cell gives the same, so this is the expectation too.
    assert value == pytest.approx((k - 1) / (2 * s * s), rel=2 / pairs_in_cell)


def pairs(n):
    """The numbers 1 to n as cells."""
    return [(0, number) for number in range(1, n + 1)]


@pytest.mark.parametrize(
    ("n", "window", "lag", "expected"),
    [
        (1, 3, None, ([1], [])),
        (5, 3, None, ([3, 4, 5], [1, 2])),
        (6, 3, None, ([4, 5, 6], [1, 2, 3])),
        (8, 3, None, ([6, 7, 8], [3, 4, 5])),
        (2, 3, 1, ([1, 2], [1])),
        (4, 3, 1, ([2, 3, 4], [1, 2, 3])),
        (9, 3, 5, ([7, 8, 9], [2, 3, 4])),
        (4, None, None, ([1, 2, 3, 4], [1, 2, 3])),
    ],
)
def test_windows(n, window, lag, expected):
    current, previous = drift.count_windows(pairs(n), window, lag, None)
    assert (current, previous) == tuple(
        Counter((0, number) for number in numbers) for numbers in expected
    )


@pytest.mark.parametrize(("window", "expected"), [(3, [3, 4, 5]), (9, [1, 2, 3, 4, 5])])
def test_windows_with_a_reference(window, expected):
    reference = Counter({(7, 7): 2})
    current, previous = drift.count_windows(pairs(5), window, None, reference)
    assert current == Counter((0, number) for number in expected)
    assert previous == reference
    assert drift.count_windows(pairs(5), None, None, reference)[0] == Counter(pairs(5))


@pytest.mark.parametrize(
    ("window", "lag", "has_reference", "min_window", "first", "full"),
    [
        (1000, None, False, 32, 64, 2000),
        (10, None, False, 32, 20, 20),
        (10, 4, False, 32, 14, 14),
        (10, 40, False, 1, 50, 50),
        (None, None, False, 32, 2, 2),
        (1000, None, True, 32, 32, 1000),
        (10, None, True, 32, 10, 10),
        (None, None, True, 32, 32, 32),
    ],
)
def test_first_value_and_full_windows(window, lag, has_reference, min_window, first, full):
    def starts(rule):
        return next(n for n in range(5000) if rule(n, window, lag, has_reference, min_window))

    assert (starts(drift.is_reported), starts(drift.is_ready)) == (first, full)


def digits(space, value, **settings):
    """The digits of one value."""
    return digits_of(space, axes_of(space, **settings), value)


def box(low, high, dtype=np.float64):
    """A Box of one scalar a bound given."""
    low, high = np.array(low, dtype), np.array(high, dtype)
    return spaces.Box(low, high, dtype=low.dtype)


INF = math.inf


@pytest.mark.parametrize(
    ("low", "high", "x", "expected"),
    [
        (-1.0, 1.0, -1.0, 1),
        (-1.0, 1.0, -1.0000001, 0),
        (-1.0, 1.0, 0.0, 6),
        (-1.0, 1.0, 1.0, 10),
        (-1.0, 1.0, 1.0000001, 11),
        (-1.0, 1.0, INF, 11),
        (-1.0, 1.0, -INF, 0),
        (-1e6, 1e6, 5e5, 8),
        (-1e7, 1e6, -INF, 1),  # only the upper bound is usable
        (-INF, INF, 0.0, 6),
        (-INF, INF, 1.0, 8),  # 3/4
        (-INF, INF, -1.0, 3),  # 1/4
        (-INF, INF, INF, 10),
        (-INF, INF, -INF, 1),
        (-1e7, 1e7, 1.0, 8),
        (2.0, INF, 3.0, 6),  # 1/2
        (2.0, INF, 2.0, 1),
        (2.0, INF, 1.9, 0),
        (2.0, INF, INF, 10),
        (-INF, 2.0, 1.0, 6),
        (-INF, 2.0, 2.0, 10),
        (-INF, 2.0, 2.1, 11),
        (-INF, 2.0, -INF, 1),
        (3.0, 3.0, 3.0, 1),
        (3.0, 3.0, 2.9, 0),
        (3.0, 3.0, 3.1, 2),
        (1e7, 1e7, 1e7, 10),  # not usable, hence the whole line
    ],
)
def test_float_rows(low, high, x, expected):
    assert digits(box([low], [high]), [x]) == (expected,)


@pytest.mark.parametrize(
    ("low", "high", "dtype", "x", "expected"),
    [
        (0, 9, np.int64, 4, 5),
        (0, 9, np.int64, -1, 0),
        (0, 9, np.int64, 10, 11),
        (0, 4, np.int8, 4, 5),
        (0, 4, np.int8, 5, 6),
        (0, 255, np.uint8, 25, 1),  # 250 // 256
        (0, 255, np.uint8, 26, 2),  # 260 // 256
        (0, 255, np.uint8, 255, 10),
        (-5, 5, np.int32, 5, 10),  # 11 values: 100 // 11
        (-5, 5, np.int32, -4, 1),  # 10 // 11
        (7, 7, np.int16, 7, 1),
        (7, 7, np.int16, 8, 2),
        (False, True, np.bool_, True, 2),
        (0, 2**40, np.int64, 1, 6),  # only the lower bound is usable: 1/2
        (-(2**40), 2**40, np.int64, -1, 3),
    ],
)
def test_integer_rows(low, high, dtype, x, expected):
    assert digits(box([low], [high], dtype), [x]) == (expected,)


def test_categories_and_order_of_the_space():
    space = spaces.Dict(
        {
            "z": spaces.Discrete(3, start=-3),
            "a": spaces.Tuple(
                (
                    spaces.MultiDiscrete([[2, 3]], start=[[5, -1]]),
                    spaces.MultiBinary((2, 1)),
                    box(0.0, 1.0),
                )
            ),
        }
    )
    value = {"z": np.array([-1]), "a": ([[6, 1]], [[0], [1]], 0.25)}
    # gymnasium sorts the keys of a plain dict.
    assert digits(space, value) == (1, 2, 0, 1, 3, 2)
    with pytest.raises(ValueError, match="outside"):
        digits(space, value | {"z": 0})


def test_settings_are_one_for_all_or_one_for_each_axis():
    space = spaces.Tuple((spaces.Discrete(2), box([0.0, 0.0], [1.0, 1.0])))
    value = (1, [0.5, 0.5])
    assert digits(space, value, bins=4) == (1, 3, 3)
    assert digits(space, value, bins=[1, 2, 100]) == (1, 2, 51)
    assert digits(space, value, value_range=(0, [9, 5.0, 0.5])) == (1, 2, 10)
    assert digits(space, value, value_range=(None, INF), scale=0.5) == (1, 8, 8)
    assert digits(space, (0, [1.5, 2.0]), value_range=([0, 1, None], None)) == (0, 4, 9)
    unbounded = box([-INF], [INF])
    assert digits(unbounded, [1.0], normalized=True) == (10,)
    assert digits(unbounded, [1.1], normalized=True) == (11,)


def test_integer_boxes_with_a_range():
    space = box([0], [255], np.uint8)
    assert digits(space, [7], value_range=(0, 9)) == (8,)
    assert digits(space, [10], value_range=(0, 9)) == (11,)
    assert digits(space, [200], value_range=(0, 9.5)) == (11,)  # float rows
    assert digits(space, [9], value_range=(-0.5, 9.5)) == (10,)
    assert digits(space, [1], value_range=(0, None)) == (6,)
    assert digits(space, [np.float64(26.0)]) == (2,)
    with pytest.raises(ValueError, match="whole"):
        digits(space, [0.5])


def test_keys():
    axes = axes_of(spaces.Tuple((box([0.0], [1.0]), spaces.Discrete(5))), bins=3)
    assert keys.mixed_radix(axes, (4, 2)) == 22
    assert keys.fits(axes_of(spaces.MultiBinary(128)))
    assert not keys.fits(axes_of(spaces.MultiBinary(129)))
    assert keys.hashed_bytes((1, 258)) == b"\x01\x00\x00\x00\x02\x01\x00\x00"


def test_history():
    history = ReferenceHistory(2)
    assert (history.mean(), history.std(), history.min(), history.max()) == (0, 0, 0, 0)
    for value in (9.0, 1.0, 4.0):
        history.push(value)
    assert history.values == [1.0, 4.0]
    assert (history.mean(), history.std(), history.min(), history.max()) == (2.5, 1.5, 1.0, 4.0)


def test_a_run_by_hand():
    tracker = ReferenceTracker(
        spaces.Discrete(2), box([0.0], [1.0]), action_bins=1, window=1, min_window=1
    )
    nothing = dict.fromkeys(INFO_KEYS, 0.0)
    assert tracker.update(0, [0.5]) == nothing
    assert not tracker.statistics()["ready"]
    assert tracker.update(0, [0.5]) == nothing
    moved = tracker.update(1, [2.0])
    assert moved["kl_divergence"] == moved["kl_observation"] == pytest.approx(LOG3 / 2, abs=1e-15)
    assert moved["kl_policy"] == pytest.approx(0.0, abs=1e-15)
    assert moved["kl_divergence_mean"] == pytest.approx(LOG3 / 4, abs=1e-15)
    assert moved["kl_divergence_std"] == pytest.approx(LOG3 / 4, abs=1e-15)
    expected = {
        "current": LOG3 / 2,
        "mean": LOG3 / 4,
        "std": LOG3 / 4,
        "min": 0.0,
        "max": LOG3 / 2,
        "count": 2,
        "observation_mean": LOG3 / 4,
        "policy_mean": 0.0,
        "cells": 2,
        "steps": 3,
        "flow": 1.0,
        "ready": True,
    }
    statistics = tracker.statistics()
    assert {key: statistics[key] for key in expected} == pytest.approx(expected, abs=1e-15)


def test_a_reference_of_pairs_is_its_counts():
    space = spaces.Discrete(3)
    settings = {"window": None, "min_window": 1}
    by_pairs = ReferenceTracker(space, space, reference=[(0, 1), (0, 1), (2, 2)], **settings)
    by_counts = ReferenceTracker(
        space, space, reference={((0,), (1,)): 2, ((2,), (2,)): 1}, **settings
    )
    info = by_pairs.update(0, 1)
    assert info == by_counts.update(0, 1)
    # p = (1.5, 0.5)/2 and q = (2.5, 1.5)/4.
    expected = 0.75 * math.log(1.5 / 2 * 4 / 2.5) + 0.25 * math.log(0.5 / 2 * 4 / 1.5)
    assert info["kl_divergence"] == pytest.approx(expected, abs=1e-15)
