"""Saved and resumed in the middle of a run: it goes on bit for bit, or says why not."""

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.strategies import watches
from drift.damage import damaged
from kl_proteus import DriftDetector


def through_state(detector, fresh):
    """A used detector that loads the state of another."""
    fresh.load_state_dict(json.loads(json.dumps(detector.state_dict())))
    return fresh


COPIES = {
    "pickle": lambda detector, fresh: pickle.loads(pickle.dumps(detector)),
    "deepcopy": lambda detector, fresh: copy.deepcopy(detector),
    "state": through_state,
}


def feed(detector, pairs):
    """What every pair says."""
    return [(detector.update(*pair), detector.pvalue, detector.part) for pair in pairs]


def everything(detector):
    """All that a detector says of itself."""
    return detector.statistics(), detector.alarms, detector.state_dict()


@pytest.mark.parametrize("how", COPIES)
@given(watch=watches(), data=st.data())
def test_a_copy_continues_bit_for_bit(how, watch, data):
    at = data.draw(st.integers(0, len(watch.pairs)))
    original, used = DriftDetector(**watch.settings), DriftDetector(**watch.settings)
    feed(original, watch.pairs[:at])
    feed(used, watch.pairs[::-1])  # what is loaded replaces what was there
    resumed = COPIES[how](original, used)
    before = everything(original)
    assert everything(resumed) == before
    rest = feed(resumed, watch.pairs[at:])
    assert everything(original) == before
    assert feed(original, watch.pairs[at:]) == rest
    assert everything(resumed) == everything(original)


@given(watches(), st.data())
def test_a_copy_with_a_reference_continues(watch, data):
    first = DriftDetector(**watch.settings)
    feed(first, watch.pairs)
    if first.phase == "reference":
        return
    original = DriftDetector(**watch.settings, reference=first.reference())
    at = data.draw(st.integers(0, len(watch.pairs)))
    feed(original, watch.pairs[:at])
    if data.draw(st.booleans()):
        original.rebase()
    resumed = pickle.loads(pickle.dumps(original))
    assert feed(resumed, watch.pairs) == feed(original, watch.pairs)
    assert everything(resumed) == everything(original)


@given(watches(), st.data())
def test_damaged_state_is_refused_and_changes_nothing(watch, data):
    detector = DriftDetector(**watch.settings)
    feed(detector, watch.pairs[: data.draw(st.integers(1, len(watch.pairs)))])
    text = data.draw(damaged(json.dumps(detector.state_dict())))
    target = DriftDetector(**watch.settings)
    feed(target, watch.pairs[:3])
    before = everything(target)
    try:
        target.load_state_dict(json.loads(text))
    except (ValueError, TypeError):
        assert everything(target) == before
    else:
        # Some damage is another legal state; it must then be one that can go on.
        for _, pvalue, _ in feed(target, watch.pairs):
            assert 0.0 <= pvalue <= 1.0
        everything(target)


@given(watches(), watches())
def test_state_of_another_detector_is_refused(watch, other):
    detector, source = DriftDetector(**watch.settings), DriftDetector(**other.settings)
    feed(source, other.pairs)
    before = everything(detector)
    if watch.settings == other.settings:
        return
    with pytest.raises(ValueError, match="it was saved with"):
        detector.load_state_dict(source.state_dict())
    assert everything(detector) == before


def test_state_with_another_reference_is_refused():
    first = DriftDetector(window=2, calibration_windows=2)
    first.update_many([0, 1] * 20, [0] * 40)
    bare = DriftDetector(window=2, calibration_windows=2)
    given_one = DriftDetector(window=2, calibration_windows=2, reference=first.reference())
    with pytest.raises(ValueError, match="another reference"):
        given_one.load_state_dict(bare.state_dict())


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_a_callback_goes_with_the_copy(how):
    detector = DriftDetector(window=2, on_alarm="builtins:repr")
    twin = COPIES[how](detector, None)
    assert twin.arguments == detector.arguments
    assert DriftDetector(**twin.arguments).arguments == detector.arguments
