"""What cannot be used says what it is and what was expected, and changes nothing."""

import math

import numpy as np
import pytest

from kl_proteus import DriftDetector

NAN, INF = math.nan, math.inf
NO_NUMBERS = ["1", None, [1], 1j, {}]
TYPES = {
    "false_alarm_every": NO_NUMBERS,
    "reference": [3, None, 1.5, [], b"x"],
    "reference_windows": [*NO_NUMBERS, 1.5, True],
    "calibration_windows": [*NO_NUMBERS, 2.0],
    "parts": ["policy", None, 3, {"policy"}, [1], [None]],
    "every": ["1", [1], 1.5, True],
    "on_alarm": [3, [len]],
    "window": [*NO_NUMBERS, 10.0],
    "fast": [1, "yes", None],
    "epsilon": NO_NUMBERS,
    "max_alarms": [*NO_NUMBERS, 3.5],
}
VALUES = {
    "false_alarm_every": [0, -1, 0.5, NAN, INF, 1e16, 10**400],
    "reference": [{}, {"a": NAN}, "first\0", {"format": "kl_proteus.snapshot"}],
    "reference_windows": [0, -1, 2**70, 10**7],
    "calibration_windows": [0, 1, -3],
    "parts": [[], ["policy", "policy"], ["axes"], ["Policy"], ()],
    "every": [0, -1, 1001],
    "on_alarm": ["", "no_module:f", "math:nothing"],
    "window": [0, -1, 2**32],
    "epsilon": [0, -0.5, NAN, INF, 1.1e6],
    "max_alarms": [0, -1, 10**7],
}
KEYS = [
    (1.0, TypeError),
    ("1", TypeError),
    (None, TypeError),
    (-1, ValueError),
    (2**128, ValueError),
]


def cases(table):
    return [(name, value) for name, values in table.items() for value in values]


@pytest.mark.parametrize(("name", "value"), cases(TYPES), ids=str)
def test_another_type_is_a_type_error(name, value):
    with pytest.raises(TypeError, match=rf"\b{name}\b.*\bgot\b"):
        DriftDetector(**{name: value})


@pytest.mark.parametrize(("name", "value"), cases(VALUES), ids=str)
def test_a_value_out_of_range_is_a_value_error(name, value):
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        DriftDetector(**{name: value})


@pytest.mark.parametrize(("key", "error"), KEYS, ids=str)
def test_keys_are_integers_of_128_bits(key, error):
    detector = DriftDetector(window=2)
    for pair in ((key, 0), (0, key)):
        with pytest.raises(error, match=r"_key must be an integer from 0 to 2\^128 - 1, got"):
            detector.update(*pair)
    assert detector.steps == 0
    detector.update(2**128 - 1, np.uint8(3))
    assert detector.steps == 1


@pytest.mark.parametrize(
    ("observations", "actions", "error", "message"),
    [
        ([0, 1], [0], ValueError, "action_keys"),
        ([0.0, 1.0], [0, 1], TypeError, "observation_keys must be .* got dtype float64"),
        ([0, 1], ["a", "b"], TypeError, "action_keys must be .* got dtype"),
        ([[0, 1]], [[0, 1]], ValueError, r"observation_keys must be .* got one of shape \(1, 2\)"),
        (3, 4, ValueError, r"observation_keys must be .* got one of shape \(\)"),
        ([0, -1], [0, 1], ValueError, "observation_keys must be .* got -1"),
        ([0, 1], np.array([0, -7], np.int8), ValueError, "action_keys must be .* got -7"),
    ],
    ids=str,
)
def test_arrays_are_checked_before_anything_is_counted(observations, actions, error, message):
    for callback in (None, repr):
        detector = DriftDetector(window=2, on_alarm=callback)
        with pytest.raises(error, match=message):
            detector.update_many(observations, actions)
        assert detector.steps == 0


def test_arrays_of_every_integer_type():
    expected = DriftDetector(window=2, calibration_windows=2)
    keys = np.arange(60) * 7 % 5
    expected.update_many(keys.tolist(), (keys % 2).tolist())
    for dtype in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", "<u2"):
        for stride in (1, 2):
            detector = DriftDetector(window=2, calibration_windows=2)
            stored = np.repeat(keys, stride).astype(dtype)[::stride]
            assert detector.update_many(stored, stored % 2 == 1) == []
            assert detector.state_dict() == expected.state_dict()
    assert expected.update_many([], []) == []


def test_a_reference_calibrated_for_another_window():
    first = DriftDetector(window=3, calibration_windows=2)
    first.update_many([0, 1, 2] * 10, [0] * 30)
    for settings in ({"window": 4}, {"window": 3, "epsilon": 0.25}):
        with pytest.raises(ValueError, match="reference must be a snapshot calibrated with window"):
            DriftDetector(reference=first.reference(), **settings)
    bare = first.reference()
    del bare["calibration"]
    assert DriftDetector(reference=bare, window=4).phase == "calibration"


@pytest.mark.parametrize(
    "damage",
    [
        {"windows": 1},
        {"window": 0},
        {"policy": {"mean": 1e9, "sd": 0.1}},
        {"policy": {"mean": 0.0, "sd": -0.1}},
        {"policy": None},
        {"more": 1},
    ],
    ids=str,
)
def test_a_damaged_calibration_is_refused(damage):
    first = DriftDetector(window=3, calibration_windows=2)
    first.update_many([0, 1, 2] * 10, [0] * 30)
    reference = first.reference()
    reference["calibration"] |= damage
    with pytest.raises(ValueError, match=r"reference: .*"):
        DriftDetector(window=3, reference=reference)


def test_the_reference_is_not_there_yet():
    detector = DriftDetector(window=3)
    with pytest.raises(ValueError, match="the reference is not complete yet"):
        detector.reference()


@pytest.mark.parametrize("state", [None, [], "{}", 3])
def test_no_state(state):
    with pytest.raises(TypeError, match="state must be a dict, got"):
        DriftDetector().load_state_dict(state)
