"""The histogram of each axis, and which axis moved, against the twin."""

import copy
import json
import math
import pickle
from collections import Counter

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from drift.harness import compiled, feed, layout_of, layouts_of, snapshot_of
from drift.strategies import MODES, any_space, runs, sides
from kl_proteus._core import PairTracker, merge_snapshots
from kl_proteus.spaces import layout_from_space
from reference import axis_histograms as twin
from reference.axes import width
from reference.drift import count_windows, is_reported

few_axes = any_space.filter(lambda space: width(space) <= 32)
"""More than 64 axes have histograms only on demand."""


@given(sides(), st.data())
def test_a_histogram_bin_is_that_of_the_twin(side, data):
    layout = layout_of(side)
    axes = twin.histogram_axes(side.space, side.settings)
    value = data.draw(st.sampled_from(side.pool))
    row = list(layout.histogram_bins(value))
    assert row == twin.row_of(side.space, axes, value)
    assert all(bin_ < twin.extent(axis) for bin_, axis in zip(row, axes, strict=True))


def rows_of(run, pairs):
    """The rows of pairs, and the axes behind them."""
    sides_ = (run.observation, run.action)
    axes = [twin.histogram_axes(side.space, side.settings) for side in sides_]
    rows = [
        [
            bin_
            for side, own, value in zip(sides_, axes, pair, strict=True)
            for bin_ in twin.row_of(side.space, own, value)
        ]
        for pair in pairs
    ]
    return rows, axes[0] + axes[1]


def windows_of(run, n):
    """Numbers of the pairs in P and in Q; Q is empty where it is frozen."""
    how = run.settings
    frozen = Counter() if run.reference else None
    p, q = count_windows([(i, i) for i in range(n)], how["window"], how["lag"], frozen)
    return sorted(i for i, _ in p), sorted(i for i, _ in q)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25)
@given(data=st.data())
def test_moves_are_those_of_the_definitions(mode, data):
    run = data.draw(runs(mode, few_axes))
    n = data.draw(st.integers(0, len(run.pairs)))
    # More windows, so that there is a past.
    pairs = (run.pairs * 12)[: n * data.draw(st.sampled_from([1, 12]))]
    n = len(pairs)
    tracker = compiled(run)
    for i, pair in enumerate(pairs):
        tracker.update(*pair)
        if i in (n // 3, n // 2):
            tracker.axis_moves()  # asking in between changes nothing
    rows, axes = rows_of(run, pairs)
    p, q = windows_of(run, n)
    now = twin.counts([rows[i] for i in p], axes)
    before = twin.counts([rows[i] for i in q], axes)
    if run.reference:
        before = twin.counts(rows_of(run, run.reference)[0], axes)
    saved = json.loads(tracker.snapshot_json("current"))["axis_histograms"]
    assert saved == now
    assert json.loads(tracker.snapshot_json("previous"))["axis_histograms"] == before
    how = run.settings
    reported = is_reported(n, how["window"], how["lag"], bool(run.reference), how["min_window"])
    moves = tracker.axis_moves()
    if mode == "lifetime" or not reported:
        assert moves == []
        return
    names = [name for layout in layouts_of(run) for name in layout.names]
    assert sorted(move["axis"] for move in moves) == sorted(names)
    assert [m["excess"] for m in moves] == sorted((m["excess"] for m in moves), reverse=True)
    assert tracker.axis_moves(2) == moves[:2]
    window = how["window"] or 1000
    past = twin.past_divergences(rows, axes, window, p[0] if how["window"] else n, how["epsilon"])
    by_name = {move["axis"]: move for move in moves}
    for i, name in enumerate(names):
        move = by_name[name]
        kl = twin.kl(now[i], before[i], how["epsilon"])
        assert move["kl"] == pytest.approx(kl, abs=1e-12)
        expected, excess = twin.standardised(
            move["kl"], now[i], before[i], how["epsilon"], past[i], window
        )
        assert move["past"] == (len(past[i]) if len(past[i]) >= twin.LEAST_PAST else 0)
        # Without a past an expectation is a difference of sums that nearly cancel.
        tolerance = 1e-9 if move["past"] else 1e-11 * (1 + how["epsilon"] ** -0.1)
        assert move["expected"] == pytest.approx(expected, rel=1e-6, abs=tolerance)
        if how["epsilon"] == 0.5 and (move["past"] or expected > 1e-9):
            assert move["excess"] == pytest.approx(excess, rel=1e-4, abs=1e-4)
        if axes[i].flow:
            outside = (now[i][0] + now[i][-1]) / len(p)
            assert move["flow"] == pytest.approx(outside, abs=1e-12)
        assert 0.0 <= move["flow"] <= 1.0
        assert max(now[i]) / len(p) <= move["fullest"] + 1e-12 <= 1.0 + 1e-11
    json.dumps(moves, allow_nan=False)


COPIES = {
    "pickle": lambda tracker, fresh: pickle.loads(pickle.dumps(tracker)),
    "deepcopy": lambda tracker, fresh: copy.deepcopy(tracker),
    "state": lambda tracker, fresh: fresh.load_state_json(tracker.state_json()) or fresh,
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=5)
@given(data=st.data())
def test_a_copy_moves_bit_for_bit(mode, how, data):
    run = data.draw(runs(mode, few_axes))
    pairs = run.pairs * 4
    step = data.draw(st.integers(0, len(pairs)))
    original = compiled(run)
    feed(original, pairs[:step])
    resumed = COPIES[how](original, compiled(run))
    for pair in pairs[step:]:
        assert original.update(*pair) == resumed.update(*pair)
        assert original.axis_moves() == resumed.axis_moves()
        assert original.axis_shares() == resumed.axis_shares()


@pytest.mark.parametrize("batches", [1, 7, 300, 5000])
def test_whoever_asks_often_gets_what_whoever_asks_once_gets(batches):
    rng = np.random.default_rng(0)
    layout = layout_from_space(spaces.Box(-1, 1, (3,)))
    action = layout_from_space(spaces.Discrete(3), "action")
    often, once = (PairTracker(layout, action, window=700) for _ in range(2))
    for i in range(6000):
        pair = rng.normal(i / 6000, 0.3, 3), int(rng.integers(3))
        often.update(*pair)
        once.update(*pair)
        if i % batches == 0:
            moves = often.axis_moves()
    assert often.axis_moves() == once.axis_moves()
    assert once.axis_moves()[0]["past"] == 0  # seven windows are too few
    assert moves


def test_the_axis_that_moved_comes_first():
    rng = np.random.default_rng(1)
    box = spaces.Box(-np.inf, np.inf, (3,))
    tracker = PairTracker(
        layout_from_space(box), layout_from_space(spaces.Discrete(2), "action"), window=500
    )
    walk = 0.0
    for i in range(500 * 24):
        # The first axis moves slowly all the time, which is no change.
        walk = 0.99 * walk + rng.normal(0, 0.2)
        shift = 0.6 * (i >= 500 * 23)
        tracker.update([walk, rng.normal(), rng.normal() + shift], int(rng.integers(2)))
    first, *others = tracker.axis_moves()
    assert first["axis"] == "observation[2]"
    assert first["past"] == 20
    assert first["shift"] == pytest.approx(0.6, abs=0.25)
    assert first["grown"]["now"] > first["grown"]["before"]
    assert first["excess"] > 3 > max(other["excess"] for other in others)
    # A slow axis differs more than independent pairs would, and that is expected.
    (slow,) = (move for move in others if move["axis"] == "observation[0]")
    assert slow["expected"] > 5 * first["expected"]


def test_a_constant_stream_stays_finite():
    tracker = PairTracker(
        layout_from_space(spaces.Box(0, 1, (2,))),
        layout_from_space(spaces.Discrete(1), "action"),
        window=20,
    )
    for i in range(20 * 30):
        tracker.update([0.5, 0.5 if i < 590 else 0.9], 0)
        for move in tracker.axis_moves():
            numbers = (move[key] for key in ("kl", "expected", "excess", "shift") if move[key])
            assert all(math.isfinite(number) for number in numbers)
    assert tracker.axis_moves()[0]["axis"] == "observation[1]"
    assert tracker.axis_shares()[0] == ("observation[0]", 0.0, 1.0)


def test_more_than_64_axes_are_asked_for():
    box = layout_from_space(spaces.Box(0, 1, (64,)))
    action = layout_from_space(spaces.Discrete(2), "action")

    def moves(**how):
        tracker = PairTracker(box, action, window=None, **how)
        for _ in range(40):
            tracker.update(np.full(64, 0.3), 1)
        return json.loads(tracker.snapshot_json("current")).get("axis_histograms")

    assert moves() is None
    assert moves(axis_histograms=False) is None
    assert len(moves(axis_histograms=True)) == 65


@given(runs("reference_window", few_axes))
def test_snapshots_carry_histograms_and_old_ones_do_without(run):
    text = snapshot_of(run, run.reference)
    merged = json.loads(merge_snapshots([text, text]))
    single = json.loads(text)["axis_histograms"]
    assert merged["axis_histograms"] == [[2 * n for n in own] for own in single]
    old = json.loads(text)
    del old["axis_histograms"]
    old = json.dumps(old)
    assert "axis_histograms" not in json.loads(merge_snapshots([text, old]))
    assert "axis_histograms" not in json.loads(merge_snapshots([old, text]))
    tracker = PairTracker(*layouts_of(run), reference=old, **run.settings)
    feed(tracker, run.pairs)
    assert tracker.axis_moves() == []
    assert "axis_histograms" not in json.loads(tracker.snapshot_json("previous"))
    assert "axis_histograms" in json.loads(tracker.snapshot_json("current"))


def test_a_state_without_its_histograms_is_refused():
    layout = layout_from_space(spaces.Discrete(3))
    tracker, other = (PairTracker(layout, layout, window=4, min_window=1) for _ in range(2))
    for i in range(9):
        tracker.update(i % 3, 0)
    state = json.loads(tracker.state_json())
    del state["axes"]
    fresh = other.state_json()
    with pytest.raises(ValueError, match="histograms of its axes are missing"):
        other.load_state_json(json.dumps(state))
    assert other.state_json() == fresh
