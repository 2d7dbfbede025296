"""The compiled detector against its twin, at every step."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.strategies import watches
from kl_proteus import DriftDetector
from reference.detector import Calibration, ReferenceDetector, student_tail

# SciPy 1.17.1: scipy.stats.t.sf(t, freedom).
SCIPY = [
    (-2.5, 1, 0.8788810584091566),
    (4.0, 1, 0.07797913037736932),
    (0.3, 9, 0.3854953518707624),
    (4.0, 19, 0.0003830961686143225),
    (60.0, 19, 1.9880308423536424e-23),
]


def assert_same(detector, twin):
    """Everything both can say."""
    assert detector.phase == twin.phase
    assert detector.steps == twin.steps
    assert detector.threshold == pytest.approx(twin.threshold, rel=1e-12)
    expected = twin.pvalues()
    for part, pvalue in detector.pvalues.items():
        assert pvalue == pytest.approx(expected[part], rel=1e-7, abs=1e-300), part
    assert detector.pvalue == pytest.approx(twin.pvalue, rel=1e-7, abs=1e-300)
    if twin.values is None:
        assert detector.part is None
    else:
        smallest = min(expected[part] for part in twin.parts)
        assert expected[detector.part] == pytest.approx(smallest, rel=1e-7)
        for part, value in detector.divergence.items():
            assert value == pytest.approx(twin.values[part], abs=1e-12)
    assert detector.log_likelihood_ratio == pytest.approx(twin.evidence, abs=1e-10)


def assert_same_alarms(detector, twin):
    """The alarms: when, why, and how sure."""
    alarms = detector.alarms
    assert [(alarm.step, alarm.test) for alarm in alarms] == [
        (alarm["step"], alarm["test"]) for alarm in twin.alarms
    ]
    for alarm, expected in zip(alarms, twin.alarms, strict=True):
        assert alarm.pvalue == pytest.approx(expected["pvalue"], rel=1e-7, abs=1e-300)


@pytest.mark.parametrize(("t", "freedom", "expected"), SCIPY)
def test_the_tail_of_the_twin(t, freedom, expected):
    assert student_tail(t, freedom) == pytest.approx(expected, rel=1e-11)


@given(watches())
def test_every_step_is_that_of_the_twin(watch):
    detector, twin = DriftDetector(**watch.settings), ReferenceDetector(**watch.settings)
    for pair in watch.pairs:
        assert detector.update(*pair) == twin.update(*pair)
        assert_same(detector, twin)
    assert_same_alarms(detector, twin)


@given(watches(), st.data())
def test_rebased_in_the_middle(watch, data):
    detector, twin = DriftDetector(**watch.settings), ReferenceDetector(**watch.settings)
    at = data.draw(st.integers(0, len(watch.pairs)))
    for i, pair in enumerate(watch.pairs):
        if i == at:
            detector.rebase()
            twin.rebase()
        assert detector.update(*pair) == twin.update(*pair)
        assert_same(detector, twin)
    assert_same_alarms(detector, twin)


@given(watches(), st.booleans(), st.data())
def test_from_the_reference_of_an_earlier_run(watch, calibrated, data):
    first = DriftDetector(**watch.settings)
    for pair in watch.pairs:
        first.update(*pair)
    if first.phase == "reference" or (calibrated and first.phase == "calibration"):
        return
    reference = first.reference()
    if not calibrated:
        reference.pop("calibration", None)
    counts = Counter(
        {
            (int(o), int(a)): count
            for o, actions in reference["counts"].items()
            for a, count in actions.items()
        }
    )
    saved = reference.get("calibration")
    calibration = saved and Calibration(
        {part: saved[part]["mean"] for part in ("observation", "policy", "joint")},
        {part: saved[part]["sd"] for part in ("observation", "policy", "joint")},
        saved["windows"],
    )
    detector = DriftDetector(**watch.settings, reference=reference)
    twin = ReferenceDetector(**watch.settings, given=(counts, calibration))
    for pair in data.draw(st.permutations(watch.pairs)):
        assert detector.update(*pair) == twin.update(*pair)
        assert_same(detector, twin)
    assert_same_alarms(detector, twin)
    assert detector.reference()["counts"] == reference["counts"]
    if calibrated:
        assert detector.reference() == reference


@given(watches())
def test_in_one_call_and_pair_by_pair(watch):
    one, many = DriftDetector(**watch.settings), DriftDetector(**watch.settings)
    for pair in watch.pairs:
        one.update(*pair)
    observations, actions = zip(*watch.pairs, strict=True)
    half = len(watch.pairs) // 2
    alarms = many.update_many(observations[:half], actions[:half])
    alarms += many.update_many(observations[half:], actions[half:])
    assert many.state_dict() == one.state_dict()
    assert many.alarms == one.alarms == alarms[-watch.settings["max_alarms"] :]


@given(watches())
def test_nothing_is_ever_nan_or_infinite(watch):
    detector = DriftDetector(**watch.settings)
    for pair in watch.pairs:
        detector.update(*pair)
        statistics = detector.statistics()
        numbers = [
            statistics["pvalue"],
            statistics["threshold"],
            statistics["log_likelihood_ratio"],
            *statistics["pvalues"].values(),
            *statistics["divergence"].values(),
            *(statistics["expected"] or {}).values(),
        ]
        assert all(math.isfinite(number) and number >= 0.0 for number in numbers)
    for alarm in detector.alarms:
        assert all(math.isfinite(x) for x in (*alarm.pvalues.values(), *alarm.expected.values()))
        assert all(0.0 < cell.share < 1.0 for cell in alarm.cells)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_longer_stream_with_alarms(seed, fast):
    settings = {
        "false_alarm_every": 200,
        "window": 30,
        "reference_windows": 3,
        "calibration_windows": 8,
        "every": 7,
        "fast": fast,
    }
    random = np.random.default_rng(seed)
    observations = random.integers(0, 6, 900)
    actions = (random.random(900) < np.where(np.arange(900) < 500, 0.8, 0.1)).astype(int)
    detector, twin = DriftDetector(**settings), ReferenceDetector(**settings)
    for pair in zip(observations.tolist(), actions.tolist(), strict=True):
        assert detector.update(*pair) == twin.update(*pair)
        assert_same(detector, twin)
    assert_same_alarms(detector, twin)
    late = [alarm for alarm in detector.alarms if alarm.step > 500]
    assert late[0].part == "policy"
    # Two windows of rest lie between alarms.
    steps = [alarm.step for alarm in detector.alarms]
    assert all(b - a >= 60 for a, b in itertools.pairwise(steps))
