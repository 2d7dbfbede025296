"""What the rules do, by hand-worked numbers and on a simulated policy."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kl_proteus import (
    AdaptiveKLController,
    FixedKLController,
    PIDKLController,
    PPOPenaltyController,
    ScheduledKLController,
    ThresholdKLController,
)

# Fixed -----------------------------------------------------------------------------------------


def test_a_fixed_coefficient_does_not_adapt():
    controller = FixedKLController(0.2)
    for kl in (12.0, 0.0, -3.0, 1e300):
        assert controller.update(kl, 1024) == 0.2
    assert controller.last_change["reason"] == "fixed"
    assert controller.target is None


def test_no_penalty_is_a_legal_fixed_coefficient():
    controller = FixedKLController(0.0)
    assert controller.update(12.0) == 0.0
    assert str(FixedKLController(-0.0).value) == "0.0"


# Band ------------------------------------------------------------------------------------------


def test_the_borders_of_the_band_hold():
    controller = PPOPenaltyController(1.0, 4.0, high=1.5, low=0.5)
    for kl in (6.0, 2.0, 4.0):
        assert controller.update(kl) == 1.0
        assert controller.last_change["reason"] == "inside_band"
    assert controller.update(math.nextafter(6.0, 7)) == 2.0
    assert controller.update(math.nextafter(2.0, 1)) == 1.0


@pytest.mark.parametrize(
    ("high", "low", "increase", "decrease", "answers"),
    [
        (2.0, 0.5, 1.5, 0.5, {2.1: 1.5, 1.9: 1.0, 0.51: 1.0, 0.49: 0.5}),
        (1.3, 0.7, 1.5, 1 / 1.5, {1.31: 1.5, 1.29: 1.0, 0.71: 1.0, 0.69: 1 / 1.5}),
    ],
)
def test_the_other_published_bands_are_arguments(high, low, increase, decrease, answers):
    for kl, answer in answers.items():
        controller = PPOPenaltyController(
            1.0, 1.0, high=high, low=low, increase_factor=increase, decrease_factor=decrease
        )
        assert controller.update(kl) == answer


def test_one_update_a_batch_at_most_doubles():
    # Eight noisy minibatches of one batch: times 256 where each is an update.
    minibatches = [0.9, 3.0, 2.2, 5.0, 1.9, 2.5, 4.0, 2.0]
    each, once = PPOPenaltyController(1.0, 0.5), PPOPenaltyController(1.0, 0.5)
    for kl in minibatches:
        each.update(kl)
    assert each.value == 256.0
    assert once.update(sum(minibatches) / 8, n_steps=8) == 2.0


# Threshold -------------------------------------------------------------------------------------


def test_the_window_has_to_be_full():
    controller = ThresholdKLController(0.1, 1.0, window=3)
    for count in (1, 2):
        assert controller.update(9.0) == 0.1
        assert controller.last_change["reason"] == "window_not_full"
        assert len(controller.state_dict()["memory"]["window"]) == count
    assert controller.update(9.0) == pytest.approx(0.15)
    assert controller.last_change["measured"] == 9.0


def test_all_values_of_a_batch_join_and_adapt_once():
    controller = ThresholdKLController(0.1, 1.0, window=3)
    assert controller.update([9.0] * 8) == pytest.approx(0.15)
    assert controller.update([0.1, 0.2, 0.3]) == pytest.approx(0.12)
    assert controller.last_change["measured"] == pytest.approx(0.2)
    assert controller.update([]) == pytest.approx(0.12)


def test_a_value_outside_the_bounds_can_be_kept_until_the_window_is_full():
    controller = ThresholdKLController(5.0, 1.0, window=2, keep_outside=True)
    assert controller.update(1.0) == 5.0
    assert controller.update(1.0) == 1.0
    assert controller.last_change["bounded"]
    assert ThresholdKLController(0.0, 1.0, window=1, keep_outside=True).update(1.0) == 0.01
    with pytest.raises(ValueError, match="init_kl_coef"):
        ThresholdKLController(5.0, 1.0)


# PID -------------------------------------------------------------------------------------------


@given(
    st.floats(4.81, 7.19) | st.just(6.0),
    st.integers(1, 5000),
    st.floats(0, 3),
    st.floats(0, 3),
    st.floats(0, 3),
)
def test_pid_steps_are_additive_while_the_error_stays(kl, half, kp, ki, kd):
    def controller():
        return PIDKLController(0.2, 6.0, 10000, kp=kp, ki=ki, kd=kd, max_value=1e300)

    once, twice = controller(), controller()
    once.update(kl, 2 * half)
    twice.update(kl, half)
    twice.update(kl, half)
    assert once.value == pytest.approx(twice.value, rel=1e-12)
    once.update(5.0, 10)
    twice.update(5.0, 10)
    assert once.value == pytest.approx(twice.value, rel=1e-12)


@given(st.floats(-100, 100), st.integers(1, 5000), st.floats(0, 3), st.floats(0, 3))
def test_pid_steps_are_additive_without_an_integral(kl, half, kp, kd):
    once, twice = (PIDKLController(0.2, 6.0, 10000, kp=kp, ki=0, kd=kd) for _ in range(2))
    once.update(kl, 2 * half)
    twice.update(kl, half)
    twice.update(kl, half)
    assert once.value == pytest.approx(twice.value, rel=1e-12)


def test_pid_without_integral_and_derivative_is_the_proportional_rule_to_first_order():
    pid = PIDKLController(0.2, 6.0, 1e6, ki=0.0, kd=0.0)
    linear = AdaptiveKLController(0.2, 6.0, 1e6)
    for kl in (0.0, 5.9, 6.3, 100.0):
        assert pid.update(kl, 256) == pytest.approx(linear.update(kl, 256), rel=1e-8)


def test_the_derivative_answers_a_rise_at_once():
    # e goes from 0 to 0.1: kp e dt = 0.001 and kd (0.1 - 0) = 0.05.
    pid = PIDKLController(1.0, 1.0, 100, kp=1.0, ki=0.0, kd=0.5)
    assert pid.update(1.0, 1) == 1.0
    assert pid.update(1.1, 1) == pytest.approx(math.exp(0.001 + 0.05), rel=1e-12)
    assert pid.update(1.1, 1) == pytest.approx(math.exp(0.002 + 0.05), rel=1e-12)


def test_the_integral_by_hand():
    # Errors 0.1 and 0.05 over one horizon each: I goes 0, 0.1, 0.15.
    pid = PIDKLController(1.0, 1.0, 10, kp=0.0, ki=2.0, kd=0.0)
    assert pid.update(1.1, 10) == pytest.approx(math.exp(2 * 0.05), rel=1e-12)
    expected = math.exp(2 * 0.05 + 2 * (0.1 + 0.025))
    assert pid.update(1.05, 10) == pytest.approx(expected, rel=1e-12)


def lagged_policy(controller, *, kl, updates, drift=0.0):
    """Log of KL over the target, with KL = pressure * coef^-2 that answers within a horizon.

    One update is a tenth of a horizon; `drift` is what the pressure grows by in it.
    """
    log_kl, pressure, init = math.log(kl), math.log(kl), controller.value
    trace = []
    for _ in range(updates):
        controller.update(math.exp(log_kl), 1)
        pressure += drift
        wanted = pressure - 2 * math.log(controller.value / init)
        log_kl += 0.1 * (wanted - log_kl)
        trace.append(log_kl)
    return trace


def test_pid_swings_less_than_the_proportional_rule():
    pid = lagged_policy(PIDKLController(0.1, 1.0, 10), kl=3.0, updates=600)
    linear = lagged_policy(AdaptiveKLController(0.1, 1.0, 10), kl=3.0, updates=600)
    assert min(linear) < -0.12
    assert min(pid) > -0.1
    assert abs(pid[-1]) < 1e-3


def test_pid_holds_the_target_under_growing_pressure():
    arguments = {"kl": 1.0, "updates": 1500, "drift": 0.01}
    pid = lagged_policy(PIDKLController(0.1, 1.0, 10, max_value=1e12), **arguments)
    linear = lagged_policy(AdaptiveKLController(0.1, 1.0, 10, max_value=1e12), **arguments)
    assert linear[-1] == pytest.approx(0.0488, abs=1e-3)
    assert abs(pid[-1]) < 1e-4


# Schedule --------------------------------------------------------------------------------------


def test_a_linear_ramp_by_hand():
    controller = ScheduledKLController(0.5, 4, start=0.1)
    assert controller.value == 0.1
    values = [controller.update(3.0) for _ in range(6)]
    assert values == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.5, 0.5])
    assert values[3] == 0.5


def test_a_cosine_ramp_by_hand():
    controller = ScheduledKLController(1.0, 4, start=0.2, shape="cosine")
    values = [controller.update(3.0) for _ in range(4)]
    corner = 0.8 * (1 - math.sqrt(0.5)) / 2
    assert values == pytest.approx([0.2 + corner, 0.6, 1.0 - corner, 1.0])


def test_a_ramp_may_fall():
    controller = ScheduledKLController(0.1, 2, start=0.5)
    assert [controller.update(1.0) for _ in range(3)] == pytest.approx([0.3, 0.1, 0.1])
    assert controller.last_change["action"] == "hold"


def test_the_controller_behind_a_ramp_sees_nothing_of_it():
    inner = PIDKLController(0.2, 6.0, 100)
    fresh = inner.state_dict()
    controller = ScheduledKLController(inner, 1000)
    for _ in range(9):
        controller.update(1e6, 100)
        assert controller.last_change["reason"] == "warm_up"
    assert controller.controller.state_dict() == fresh
    # The update that crosses the end belongs to the ramp as a whole.
    assert controller.update(1e6, 5000) == 0.2
    assert controller.controller.state_dict() == fresh
    assert controller.steps == controller.warmup_steps == 1000
    assert controller.update(7.0, 100) == inner.update(7.0, 100)
    assert controller.last_change == inner.last_change


def test_a_schedule_takes_a_copy():
    inner = AdaptiveKLController(0.2, 6.0, 100)
    controller = ScheduledKLController(inner, 0)
    controller.update(12.0, 10)
    assert inner.value == 0.2
    assert (controller.unit, controller.target) == (inner.unit, inner.target)
    assert type(controller.controller) is AdaptiveKLController


def test_a_schedule_refuses_what_its_controller_refuses():
    controller = ScheduledKLController(AdaptiveKLController(0.2, 6.0, 100), 1000)
    controller.update(0.0, 1024)
    before = controller.state_dict()
    with pytest.raises(ValueError, match="n_steps"):
        controller.update(0.0, 1024)
    assert controller.state_dict() == before


def test_a_window_can_be_fed_through_a_schedule():
    controller = ScheduledKLController(ThresholdKLController(0.1, 1.0, window=2), 1)
    controller.update([5.0, 7.0])
    assert controller.last_change["measured"] == 6.0
    assert controller.update([9.0, 9.0]) == pytest.approx(0.15)


@given(
    st.floats(0.0, 5.0),
    st.floats(0.0, 5.0),
    st.sampled_from([(1.0, 0.2, 0.5), (1.0, 1.0, 0.0), (0.0, 0.5, 0.0), (2.0, 5.0, 1.0)]),
    st.integers(1, 40),
    st.integers(1, 60),
)
def test_a_larger_lasting_divergence_never_ends_in_a_smaller_coefficient(a, b, gains, n, updates):
    kp, ki, kd = gains
    ends = []
    for ratio in sorted((a, b)):
        rule = PIDKLController(1.0, 1.0, 10, kp=kp, ki=ki, kd=kd, min_value=1e-12, max_value=1e12)
        for _ in range(updates):
            rule.update(ratio, n)
        ends.append(rule.value)
    assert ends[0] <= ends[1] * (1 + 1e-12)


def test_a_long_violation_does_not_wind_the_integral_up():
    ends = []
    for violation in (50, 5_000):
        rule = PIDKLController(1.0, 1.0, 10, min_value=1e-300, max_value=1e300)
        for _ in range(violation):
            rule.update(10.0)
        top = rule.value
        for _ in range(20):
            rule.update(0.0)
        ends.append(rule.value / top)
    # What follows does not depend on how long it lasted, and the other sign acts at once.
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)
    assert ends[0] < 0.8


def test_steps_of_a_held_error_add_up_in_pid():
    for ratio in (0.0, 0.9, 1.1, 3.0):
        one = PIDKLController(1.0, 1.0, 100, kd=0.0, min_value=1e-12, max_value=1e12)
        many = PIDKLController(1.0, 1.0, 100, kd=0.0, min_value=1e-12, max_value=1e12)
        one.update(ratio, 1024)
        for _ in range(1024):
            many.update(ratio)
        assert one.value == pytest.approx(many.value, rel=1e-9)
