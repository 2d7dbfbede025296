"""Snapshots: the counts of P and Q under the keys of the twin, and their sums."""

import copy
import json
from collections import Counter
from itertools import pairwise, permutations

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from drift.damage import damaged
from drift.harness import compiled, feed, layouts_of, snapshot_of, twin
from drift.strategies import MODES, runs
from kl_proteus import merge_snapshots
from kl_proteus._core import PairTracker
from reference import keys


def key_of(axes, digits):
    """The key of the digits, as it is written."""
    if keys.fits(axes):
        return str(keys.mixed_radix(axes, digits))
    return str(xxhash.xxh3_128_intdigest(keys.hashed_bytes(digits)))


def table(slow, counts):
    """Counts of the twin as a snapshot nests them."""
    nested: dict[str, dict[str, int]] = {}
    for (observation, action), count in counts.items():
        row = nested.setdefault(key_of(slow.observation_axes, observation), {})
        row[key_of(slow.action_axes, action)] = count
    return nested


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
def test_both_distributions_at_any_step(mode, data):
    run = data.draw(runs(mode))
    step = data.draw(st.integers(0, len(run.pairs)))
    tracker, slow = compiled(run), twin(run)
    feed(tracker, run.pairs[:step])
    slow.pairs = slow.cells_of(run.pairs[:step])
    for which, counts in zip(("current", "previous"), slow.distributions(), strict=True):
        snapshot = json.loads(tracker.snapshot_json(which))
        assert snapshot["counts"] == table(slow, +Counter(counts))


@given(runs("lifetime"), st.data())
def test_merging_is_associative_and_order_free(run, data):
    cuts = sorted(data.draw(st.integers(0, len(run.pairs))) for _ in range(2))
    bounds = [0, *cuts, len(run.pairs)]
    parts = [json.loads(snapshot_of(run, run.pairs[low:high])) for low, high in pairwise(bounds)]
    before = copy.deepcopy(parts)
    whole = json.loads(snapshot_of(run, run.pairs))
    for a, b, c in permutations(parts):
        assert merge_snapshots(a, b, c) == whole
        assert merge_snapshots(merge_snapshots(a, b), c) == whole
        assert merge_snapshots(a, merge_snapshots(b, c)) == whole
    assert parts == before


@given(runs("lifetime"), runs("lifetime"))
def test_only_equal_axes_merge(one, other):
    a = json.loads(snapshot_of(one, one.pairs))
    b = json.loads(snapshot_of(other, other.pairs))
    axes = ("observation_axes", "action_axes")
    if all(a[side] == b[side] for side in axes):
        merge_snapshots(a, b)
    else:
        with pytest.raises(ValueError, match=r"observation|action"):
            merge_snapshots(a, b)


@given(runs("reference_window"), st.data())
def test_a_damaged_reference_is_refused_or_legal(run, data):
    text = data.draw(damaged(snapshot_of(run, run.reference)))
    try:
        tracker = PairTracker(*layouts_of(run), reference=text, **run.settings)
    except ValueError:
        return
    # Another legal count; a snapshot of it is then what was given.
    previous = json.loads(tracker.snapshot_json("previous"))
    assert previous["counts"] == json.loads(text)["counts"]
    for *values, excess in feed(tracker, run.pairs):
        assert all(0.0 <= value < 1024.0 for value in values)
        assert -1024.0 < excess < 1024.0  # it alone may be negative


@given(runs("lifetime"), st.data())
def test_a_damaged_snapshot_does_not_merge_or_is_legal(run, data):
    whole = json.loads(snapshot_of(run, run.pairs))
    text = data.draw(damaged(json.dumps(whole)))
    try:
        part = json.loads(text)
        merged = merge_snapshots(whole, part)
    except (TypeError, ValueError):
        return
    for observation, row in merged["counts"].items():
        for action, count in row.items():
            parts = [s["counts"].get(observation, {}).get(action, 0) for s in (whole, part)]
            assert count == sum(parts)
