"""Arguments that no controller takes: a clear error that names them, and nothing has changed."""

import math

import numpy as np
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

NOT_FINITE = [math.nan, math.inf, -math.inf, np.float32("nan"), 10**400]
NO_NUMBER = [None, "3", b"3", True, 1j, {}, {1.0}, object(), [[1.0]], np.array("x"), ("x",)]


@pytest.mark.parametrize("rule", RULES)
@given(data=st.data())
def test_a_refused_update_changes_nothing(rule, data):
    case = data.draw(cases(rule))
    step = data.draw(st.integers(0, len(case.feed)))
    controller = case.make()
    for current, n_steps in case.feed[:step]:
        controller.update(current, n_steps)
    before = controller.state_dict()
    with pytest.raises(ValueError, match="current"):
        controller.update(data.draw(st.sampled_from(NOT_FINITE)), data.draw(st.integers(0, 9)))
    with pytest.raises(TypeError, match="current"):
        controller.update(data.draw(st.sampled_from(NO_NUMBER)))
    with pytest.raises(ValueError, match="n_steps"):
        controller.update(1.0, data.draw(st.sampled_from([-1, -(2**70), 2**64])))
    with pytest.raises(TypeError, match="n_steps"):
        controller.update(1.0, data.draw(st.sampled_from([1.0, "1", None, True, 2j])))
    assert controller.state_dict() == before


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_value_in_a_batch_is_named_and_nothing_joins(bad):
    controller = ThresholdKLController(0.1, 1.0)
    with pytest.raises(ValueError, match=r"current\[2\]"):
        controller.update([1.0, 2.0, bad, 3.0])
    assert controller.state_dict()["memory"]["window"] == []


@pytest.mark.parametrize(
    "controller",
    [AdaptiveKLController(0.2, 6.0, 100), ScheduledKLController(FixedKLController(0.1), 10)],
)
def test_a_sequence_is_for_the_threshold_rule(controller):
    with pytest.raises(TypeError, match="current must be a number"):
        controller.update([1.0])


@pytest.mark.parametrize(
    "current",
    [7, np.float64(7), np.float32(7), np.int8(7), np.array(7.0), np.uint64(7)],
)
def test_any_real_scalar_is_a_measurement(current):
    expected = AdaptiveKLController(0.2, 6.0, 100).update(7.0, 3)
    assert AdaptiveKLController(0.2, 6.0, 100).update(current, np.int64(3)) == expected


@pytest.mark.parametrize(
    "values",
    [(1.0, 9.0, 5), np.array([1, 9, 5]), np.array([1, 9, 5], np.float32), [np.float64(1), 9, 5]],
)
def test_any_sequence_of_reals_joins_a_window(values):
    controller = ThresholdKLController(0.1, 1.0)
    controller.update(values)
    assert controller.state_dict()["memory"]["window"] == [1.0, 9.0, 5.0]


BUILD = {
    "fixed": lambda **k: FixedKLController(**({"kl_coef": 0.1} | k)),
    "adaptive": lambda **k: AdaptiveKLController(
        **({"init_kl_coef": 0.1, "target": 6.0, "horizon": 100} | k)
    ),
    "ppo": lambda **k: PPOPenaltyController(**({"init_kl_coef": 0.1, "target": 6.0} | k)),
    "threshold": lambda **k: ThresholdKLController(**({"init_kl_coef": 0.1, "target": 6.0} | k)),
    "pid": lambda **k: PIDKLController(
        **({"init_kl_coef": 0.1, "target": 6.0, "horizon": 100} | k)
    ),
    "scheduled": lambda **k: ScheduledKLController(**({"controller": 0.1, "warmup_steps": 9} | k)),
}
NOT_POSITIVE = [0.0, -1.0, math.nan, math.inf, -math.inf, 10**400]
REFUSED = {
    "min_value": (RULES, NOT_POSITIVE),
    "max_value": (RULES, NOT_POSITIVE),
    "target": (("adaptive", "ppo", "threshold", "pid"), NOT_POSITIVE),
    "horizon": (("adaptive", "pid"), NOT_POSITIVE),
    "clip": (("adaptive", "pid"), NOT_POSITIVE),
    "init_kl_coef": (
        ("adaptive", "ppo", "threshold", "pid"),
        [*NOT_POSITIVE, 1e-9, 1e5],
    ),
    "kl_coef": (("fixed",), [-1.0, math.nan, math.inf, 1e-9, 1e5]),
    "high": (("ppo", "threshold"), NOT_POSITIVE),
    "low": (("ppo", "threshold"), [-0.1, math.nan, math.inf, 1.6]),
    "increase_factor": (("ppo", "threshold"), [*NOT_POSITIVE, 0.99]),
    "decrease_factor": (("ppo", "threshold"), [*NOT_POSITIVE, 1.01]),
    "window": (("threshold",), [0, -1, 2**32, 2**64]),
    "kp": (("pid",), [-0.1, math.nan, math.inf, 1e7]),
    "ki": (("pid",), [-0.1, math.nan, math.inf, 1e7]),
    "kd": (("pid",), [-0.1, math.nan, math.inf, 1e7]),
    "unit": (RULES, ["nats", "", "bits/token", "nats/token "]),
    "shape": (("scheduled",), ["square", ""]),
    "start": (("scheduled",), [0.0, -1.0, math.nan, 1e5]),
    "warmup_steps": (("scheduled",), [-1, 2**64]),
    "controller": (("scheduled",), [-1.0, math.nan, 1e5]),
}
NAMES = {"ppo_penalty": "ppo"}


@pytest.mark.parametrize(
    ("rule", "argument", "value"),
    [
        (NAMES.get(rule, rule), argument, value)
        for argument, (rules, values) in REFUSED.items()
        for rule in rules
        for value in values
    ],
)
def test_a_value_out_of_range_is_refused_with_its_name(rule, argument, value):
    # A number as the controller of a schedule is the coefficient of a fixed one.
    name = "kl_coef|controller" if argument == "controller" else argument
    with pytest.raises(ValueError, match=name) as caught:
        BUILD[rule](**{argument: value})
    assert "must be" in str(caught.value)
    assert "got" in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "argument"),
    [
        (NAMES.get(rule, rule), argument)
        for argument, (rules, _) in REFUSED.items()
        for rule in rules
    ],
)
def test_a_value_of_another_type_is_refused_with_its_name(rule, argument):
    text = argument in ("unit", "shape")
    for value in (1.5 if text else "1", True, object(), [1.0]):
        with pytest.raises(TypeError, match=argument):
            BUILD[rule](**{argument: value})


def test_bounds_must_be_in_order():
    with pytest.raises(ValueError, match="min_value must be at most max_value"):
        AdaptiveKLController(0.2, 6.0, 100, min_value=1.0, max_value=0.1)


def test_equal_bounds_freeze_the_coefficient():
    controller = AdaptiveKLController(0.2, 6.0, 100, min_value=0.2, max_value=0.2)
    assert controller.update(100.0, 10) == 0.2
    assert controller.last_change["bounded"]


def test_bounds_and_unit_of_a_scheduled_controller_are_its_own():
    inner = AdaptiveKLController(0.2, 6.0, 100)
    for extra in ({"min_value": 0.1}, {"max_value": 1.0}, {"unit": "nats/token"}):
        with pytest.raises(ValueError, match="min_value, max_value and unit"):
            ScheduledKLController(inner, 10, **extra)


def test_a_schedule_of_a_schedule_is_refused():
    with pytest.raises(ValueError, match="controller"):
        ScheduledKLController(ScheduledKLController(0.1, 10), 10)


def test_a_switch_must_be_a_bool():
    with pytest.raises(TypeError, match="keep_outside"):
        ThresholdKLController(0.1, 1.0, keep_outside=1)


def test_the_base_class_cannot_be_made():
    base = AdaptiveKLController.__mro__[1]
    with pytest.raises(TypeError):
        base()


def test_an_error_of_the_users_own_object_comes_through():
    class Broken:
        def __float__(self):
            raise RuntimeError("the device is gone")

    with pytest.raises(RuntimeError, match="the device is gone"):
        AdaptiveKLController(0.2, 6.0, 100).update(Broken())
