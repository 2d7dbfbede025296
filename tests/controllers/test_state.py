"""Saved and resumed anywhere: the run goes on bit for bit, or says why not."""

import copy
import json
import pickle

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.rules import RULES, cases
from kl_proteus import (
    AdaptiveKLController,
    FixedKLController,
    PIDKLController,
    PPOPenaltyController,
    ScheduledKLController,
    ThresholdKLController,
)


def through_json(controller, fresh):
    """A fresh controller that loads the state of another by way of JSON text."""
    fresh.load_state_dict(json.loads(json.dumps(controller.state_dict(), allow_nan=False)))
    return fresh


COPIES = {
    "state": through_json,
    "pickle": lambda controller, fresh: pickle.loads(pickle.dumps(controller)),
    "cloudpickle": lambda controller, fresh: pickle.loads(cloudpickle.dumps(controller)),
    "copy": lambda controller, fresh: copy.copy(controller),
    "deepcopy": lambda controller, fresh: copy.deepcopy(controller),
}


def everything(controller):
    """All that a controller says of itself."""
    return controller.value, controller.last_change, controller.state_dict(), repr(controller)


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("rule", RULES)
@given(data=st.data())
def test_a_copy_continues_bit_for_bit(rule, how, data):
    case = data.draw(cases(rule))
    step = data.draw(st.integers(0, len(case.feed)))
    original = case.make()
    for current, n_steps in case.feed[:step]:
        original.update(current, n_steps)
    used = case.make()
    used.update(1.0, 1)  # what is loaded replaces what was there
    resumed = COPIES[how](original, used)
    assert type(resumed) is type(original)
    assert everything(resumed) == everything(original)
    before = everything(original)
    values = [resumed.update(current, n_steps) for current, n_steps in case.feed[step:]]
    assert everything(original) == before
    assert values == [original.update(current, n_steps) for current, n_steps in case.feed[step:]]
    assert everything(resumed) == everything(original)


@pytest.mark.parametrize("window", [1, 2, 7, 1000, 30_000])
def test_windows_of_any_size_resume_at_any_step(window):
    values = [((i * 2654435761) % 1000) / 7e2 * 10.0 ** (i % 5) for i in range(2 * window + 20)]
    whole = ThresholdKLController(0.5, 300.0, window=window, min_value=1e-6, max_value=1e3)
    straight = [whole.update(value) for value in values]
    stops = {0, 1, window - 1, window, window + 1, len(values) - 1}
    for stop in sorted(stop for stop in stops if stop < len(values)):
        first = ThresholdKLController(0.5, 300.0, window=window, min_value=1e-6, max_value=1e3)
        first.update(values[:stop])
        state = first.state_dict() | {"value": straight[stop - 1] if stop else 0.5}
        second = ThresholdKLController(0.9, 300.0, window=window, min_value=1e-6, max_value=1e3)
        second.load_state_dict(state)
        assert [second.update(value) for value in values[stop:]] == straight[stop:]


def test_values_that_have_left_leave_no_trace():
    # A running sum in floats would keep what 1e17 rounded away.
    used = ThresholdKLController(0.5, 1.0, window=3)
    for value in [0.1, 1e17, -1e17, 0.3, 1e16, 0.5, 0.5, 0.5]:
        used.update(value)
    assert used.last_change["measured"] == 0.5


CONTROLLERS = {
    "fixed": lambda: FixedKLController(0.1),
    "other_fixed": lambda: FixedKLController(0.2),
    "adaptive": lambda: AdaptiveKLController(0.1, 6.0, 10000),
    "other_target": lambda: AdaptiveKLController(0.1, 5.0, 10000),
    "other_unit": lambda: AdaptiveKLController(0.1, 6.0, 10000, unit="nats/sequence"),
    "other_bound": lambda: AdaptiveKLController(0.1, 6.0, 10000, max_value=1.0),
    "ppo": lambda: PPOPenaltyController(0.1, 6.0),
    "threshold": lambda: ThresholdKLController(0.1, 6.0),
    "other_window": lambda: ThresholdKLController(0.1, 6.0, window=11),
    "pid": lambda: PIDKLController(0.1, 6.0, 10000),
    "other_gain": lambda: PIDKLController(0.1, 6.0, 10000, kd=0.4),
    "scheduled": lambda: ScheduledKLController(AdaptiveKLController(0.1, 6.0, 10000), 100),
    "other_inner": lambda: ScheduledKLController(AdaptiveKLController(0.1, 5.0, 10000), 100),
    "other_ramp": lambda: ScheduledKLController(AdaptiveKLController(0.1, 6.0, 10000), 101),
}


@pytest.mark.parametrize("name", CONTROLLERS)
def test_the_state_of_another_is_refused_and_changes_nothing(name):
    controller = CONTROLLERS[name]()
    controller.update(7.0, 10)
    before = everything(controller)
    for other, make in CONTROLLERS.items():
        state = make().state_dict()
        if other == name:
            continue
        with pytest.raises(ValueError, match="state"):
            controller.load_state_dict(state)
        assert everything(controller) == before


def test_a_refusal_names_what_differs():
    with pytest.raises(ValueError, match=r"target is 5\.0, expected 6\.0"):
        CONTROLLERS["adaptive"]().load_state_dict(CONTROLLERS["other_target"]().state_dict())
    with pytest.raises(ValueError, match=r"FixedKLController, expected .*AdaptiveKLController"):
        CONTROLLERS["adaptive"]().load_state_dict(CONTROLLERS["fixed"]().state_dict())


def test_the_initial_coefficient_does_not_matter_to_a_resumed_run():
    saved = AdaptiveKLController(0.3, 6.0, 10000)
    saved.update(9.0, 256)
    resumed = AdaptiveKLController(0.1, 6.0, 10000)
    resumed.load_state_dict(saved.state_dict())
    assert everything(resumed) == everything(saved)


def test_a_json_library_that_drops_the_fraction_is_no_obstacle():
    saved = AdaptiveKLController(0.3, 6.0, 10000)
    state = saved.state_dict()
    state["parameters"] |= {"target": 6, "horizon": 10000}
    AdaptiveKLController(0.3, 6.0, 10000).load_state_dict(state)


def changed(state, path, value):
    """A copy of nested dicts with one entry replaced."""
    state = copy.deepcopy(state)
    *way, last = path
    part = state
    for key in way:
        part = part[key]
    part[last] = value
    return state


DAMAGE = [
    ("adaptive", ("version",), 2),
    ("adaptive", ("version",), "1"),
    ("adaptive", ("class",), None),
    ("adaptive", ("value",), 0.0),
    ("adaptive", ("value",), -0.1),
    ("adaptive", ("value",), 1e5),
    ("adaptive", ("value",), "0.1"),
    ("adaptive", ("memory",), {}),
    ("adaptive", ("more",), 1),
    ("adaptive", ("parameters", "more"), 1),
    ("adaptive", ("last_change",), 3),
    ("adaptive", ("last_change", "measured"), "x"),
    ("adaptive", ("last_change", "measured"), None),
    ("adaptive", ("last_change", "measured"), 10**400),
    ("adaptive", ("last_change", "target"), 5.0),
    ("adaptive", ("last_change", "target"), None),
    ("adaptive", ("last_change", "error"), None),
    ("adaptive", ("last_change", "n_steps"), 0),
    ("adaptive", ("last_change", "before"), -0.1),
    ("adaptive", ("last_change", "after"), -0.1),
    ("adaptive", ("last_change", "reason"), "sideways"),
    ("adaptive", ("last_change", "reason"), "inside_band"),
    ("fixed", ("last_change", "reason"), "warm_up"),
    ("threshold", ("last_change", "error"), 0.1),
    ("ppo", ("last_change", "reason"), "window_not_full"),
    ("pid", ("last_change", "reason"), "fixed"),
    ("scheduled", ("last_change", "reason"), "above_band"),
    ("fixed", ("value",), 0.2),
    ("threshold", ("memory", "window"), [0.0] * 11),
    ("threshold", ("memory", "window"), ["x"]),
    ("threshold", ("memory",), None),
    ("threshold", ("value",), 2.0),
    ("pid", ("memory", "previous_error"), 0.3),
    ("pid", ("memory", "integral"), 1.001),
    ("pid", ("memory", "integral"), -1.001),
    ("scheduled", ("memory", "steps"), 101),
    ("scheduled", ("memory", "steps"), -1),
    ("scheduled", ("value",), 0.05),
    ("scheduled", ("memory", "controller", "value"), 1e9),
]


@pytest.mark.parametrize(("name", "path", "value"), DAMAGE)
def test_damaged_state_is_refused_and_changes_nothing(name, path, value):
    controller = CONTROLLERS[name]()
    controller.update(7.0, 10)
    before = everything(controller)
    with pytest.raises(ValueError, match="state"):
        controller.load_state_dict(changed(controller.state_dict(), path, value))
    assert everything(controller) == before


@pytest.mark.parametrize("key", ["version", "class", "parameters", "value", "memory"])
def test_a_state_with_a_part_missing_is_refused(key):
    controller = CONTROLLERS["adaptive"]()
    state = controller.state_dict()
    del state[key]
    with pytest.raises(ValueError, match="state"):
        controller.load_state_dict(state)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (None, TypeError),
        ("{}", TypeError),
        ([], TypeError),
        ({"value": object()}, TypeError),
        ({"value": float("nan")}, ValueError),
        ({}, ValueError),
    ],
)
def test_what_is_no_state_is_refused(state, error):
    with pytest.raises(error, match="state"):
        CONTROLLERS["adaptive"]().load_state_dict(state)


def test_a_state_dict_is_a_copy():
    controller = CONTROLLERS["threshold"]()
    controller.update([1.0, 2.0])
    controller.state_dict()["memory"]["window"].append(9.0)
    assert controller.state_dict()["memory"]["window"] == [1.0, 2.0]
