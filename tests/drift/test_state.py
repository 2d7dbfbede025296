"""Saved and resumed in the middle of a run: it goes on bit for bit, or says why not."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drift.damage import damaged
from drift.harness import compiled, feed
from drift.strategies import MODES, runs


def through_state(tracker, fresh):
    """A new tracker that loads the state of another."""
    fresh.load_state_json(tracker.state_json())
    return fresh


COPIES = {
    "pickle": lambda tracker, fresh: pickle.loads(pickle.dumps(tracker)),
    "deepcopy": lambda tracker, fresh: copy.deepcopy(tracker),
    "state": through_state,
}


def everything(tracker):
    """All that a tracker says of itself."""
    return (
        tracker.statistics(),
        tracker.history(),
        tracker.snapshot_json("current"),
        tracker.snapshot_json("previous"),
        tracker.state_json(),
    )


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
def test_a_copy_continues_bit_for_bit(mode, how, data):
    run = data.draw(runs(mode))
    step = data.draw(st.integers(0, len(run.pairs)))
    original = compiled(run)
    feed(original, run.pairs[:step])
    used = compiled(run)
    feed(used, run.pairs[::-1])  # what is loaded replaces what was there
    resumed = COPIES[how](original, used)
    assert everything(resumed) == everything(original)
    before = everything(original)
    results = feed(resumed, run.pairs[step:])
    assert everything(original) == before
    assert feed(original, run.pairs[step:]) == results
    assert everything(resumed) == everything(original)


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
def test_damaged_state_is_refused_and_changes_nothing(mode, data):
    run = data.draw(runs(mode))
    tracker = compiled(run)
    feed(tracker, run.pairs[: data.draw(st.integers(1, len(run.pairs)))])
    text = data.draw(damaged(tracker.state_json()))
    target = compiled(run)
    feed(target, run.pairs[:3])
    before = everything(target)
    try:
        target.load_state_json(text)
    except ValueError:
        assert everything(target) == before
    else:
        # Some damage is another legal state; it must then be one that can go on.
        everything(target)
        for result in feed(target, run.pairs):
            *values, excess = result
            assert all(0.0 <= value < 1024.0 for value in values)
            assert -1024.0 < excess < 1024.0


@given(runs("adjacent"), runs("lag"))
def test_state_of_another_tracker_is_refused(run, other):
    tracker, source = compiled(run), compiled(other)
    feed(tracker, run.pairs[:3])
    feed(source, other.pairs)
    before = everything(tracker)
    with pytest.raises(ValueError, match=r".+"):
        tracker.load_state_json(source.state_json())
    assert everything(tracker) == before
