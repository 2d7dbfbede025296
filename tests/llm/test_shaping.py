"""Reward shaping: the formulas, the signs, and what counts as a scalar reward."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kl_proteus.llm.shaping import MODES, RewardShaping, scalar_reward

finite = st.floats(0.0, 1e6)


class Controller:
    """A coefficient controller that remembers what it was told."""

    def __init__(self, value=0.5, unit="nats/step"):
        self.value = value
        self.unit = unit
        self.updates = []

    def update(self, current, n_steps=1):
        self.updates.append((current, n_steps))
        self.value *= 2
        return self.value


def test_worked_example():
    shaping = RewardShaping(0.1, 0.05, 0.5)
    assert shaping.terms(1.5, True) == (0.1, 0.0)
    assert shaping.terms(0.25, True) == (0.0, 0.025)
    assert shaping.terms(0.0, True) == (0.0, 0.05)
    assert shaping.terms(0.5, True) == (0.0, 0.0)


@given(finite, finite, st.floats(1e-3, 1e3), finite)
def test_formulas_and_signs(penalty_weight, bonus_weight, threshold, kl):
    penalty, bonus = RewardShaping(penalty_weight, bonus_weight, threshold).terms(kl, True)
    assert penalty == penalty_weight * max(0.0, kl - threshold)
    assert bonus == bonus_weight * max(0.0, 1.0 - kl / threshold)
    novelty = RewardShaping(penalty_weight, bonus_weight, threshold, "exploration")
    assert novelty.terms(kl, True) == (-penalty, -bonus)


@given(finite, finite, finite, st.sampled_from(MODES), st.booleans())
def test_terms_are_plain_floats_and_never_negative_zero(weight, bonus, kl, mode, ready):
    for term in RewardShaping(weight, bonus, 0.5, mode).terms(np.float64(kl), ready):
        assert type(term) is float
        assert term != 0.0 or math.copysign(1.0, term) == 1.0


@pytest.mark.parametrize("mode", MODES)
def test_both_terms_are_zero_until_ready(mode):
    assert RewardShaping(1.0, 1.0, 0.5, mode).terms(9.0, False) == (0.0, 0.0)


def test_monitor_never_shapes():
    assert RewardShaping(1.0, 1.0, 0.5, "monitor").terms(9.0, True) == (0.0, 0.0)


def test_negative_zero_weights_become_zero():
    terms = RewardShaping(-0.0, -0.0, 0.5).terms(0.1, True)
    assert [math.copysign(1.0, term) for term in terms] == [1.0, 1.0]


def test_weight_of_one_call():
    shaping = RewardShaping(0.1, 0.05, 0.5)
    assert shaping.terms(1.5, True, penalty_weight=3) == (3.0, 0.0)
    with pytest.raises(ValueError, match="penalty_weight must be >= 0, got -1"):
        shaping.terms(1.5, True, penalty_weight=-1)


def test_controller_gives_the_weight_and_is_updated_per_episode():
    controller = Controller()
    shaping = RewardShaping(controller, 0.0, 0.5)
    assert shaping.terms(1.5, True) == (0.5, 0.0)
    assert shaping.end_episode(0.7, 20) == 1.0
    assert controller.updates == [(0.7, 20)]
    assert shaping.terms(1.5, True) == (1.0, 0.0)
    assert shaping.end_episode(0.7, 0) == 1.0
    assert controller.updates == [(0.7, 20)]
    assert RewardShaping(0.25).end_episode(0.7, 20) == 0.25


def test_controller_of_another_unit_is_refused():
    with pytest.raises(ValueError, match=r"kl_penalty_weight.*'nats/step', got 'nats/token'"):
        RewardShaping(Controller(unit="nats/token"))
    with pytest.raises(ValueError, match=r"kl_penalty_weight\.value must be"):
        RewardShaping(Controller(value=math.nan))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"penalty_weight": -1}, ValueError, "kl_penalty_weight must be >= 0, got -1"),
        ({"penalty_weight": math.nan}, ValueError, "kl_penalty_weight must be a finite number"),
        ({"penalty_weight": "1"}, TypeError, "kl_penalty_weight must be a real number or a contr"),
        ({"penalty_weight": True}, TypeError, "kl_penalty_weight must be a real number, got True"),
        ({"bonus_weight": math.inf}, ValueError, "kl_bonus_weight must be a finite number"),
        ({"bonus_weight": None}, TypeError, "kl_bonus_weight must be a real number, got None"),
        ({"threshold": 0}, ValueError, "kl_threshold must be > 0, got 0"),
        ({"threshold": 10**400}, ValueError, "kl_threshold must be a finite number"),
        ({"mode": "train"}, ValueError, "mode must be one of 'fine_tuning'.* got 'train'"),
        ({"mode": 1}, TypeError, "mode must be a str, got 1"),
    ],
)
def test_bad_arguments_are_named_as_the_wrapper_names_them(arguments, error, message):
    with pytest.raises(error, match=message):
        RewardShaping(**arguments)


@pytest.mark.parametrize("kl", [math.nan, math.inf])
def test_divergence_must_be_finite(kl):
    with pytest.raises(ValueError, match="kl must be a finite number"):
        RewardShaping().terms(kl, True)


def test_penalty_that_overflows_is_refused():
    with pytest.raises(ValueError, match="kl_penalty_weight must give a finite penalty"):
        RewardShaping(1e308).terms(100.0, True)


def test_tiny_thresholds_do_not_overflow():
    assert RewardShaping(0.0, 1.0, 5e-324).terms(1.0, True) == (0.0, 0.0)


@pytest.mark.parametrize(
    "reward",
    [
        1,
        1.0,
        True,
        np.float32(1),
        np.float16(1),
        np.int64(1),
        np.uint8(1),
        np.bool_(True),
        np.array(1.0, np.float32),
        np.array(True),
        Fraction(1),
    ],
)
def test_scalar_rewards(reward):
    value = scalar_reward(reward)
    assert type(value) is float
    assert value == 1.0


@pytest.mark.parametrize(
    ("reward", "got"),
    [
        ([1.0], "a list of 1 items"),
        ((1.0, 2.0), "a tuple of 2 items"),
        (np.array([1.0]), r"ndarray of shape \(1,\)"),
        (np.zeros((2, 3)), r"ndarray of shape \(2, 3\)"),
        (np.array(1 + 2j), r"ndarray of shape \(\)"),
        (np.array("1.5"), r"ndarray of shape \(\)"),
        (np.array(None), r"ndarray of shape \(\)"),
        (np.datetime64("2020-01-01"), "datetime64"),
        (1j, "1j"),
        ("1.0", "'1.0'"),
        (None, "None"),
        ({"agent": 1.0}, "dict"),
    ],
)
def test_rewards_that_are_not_scalars(reward, got):
    with pytest.raises(TypeError, match=f"reward must be one real number, got .*{got}"):
        scalar_reward(reward)


@pytest.mark.parametrize("reward", [math.nan, math.inf, np.float32("-inf"), 10**400])
def test_rewards_that_are_not_finite(reward):
    with pytest.raises(ValueError, match="reward must be a finite number"):
        scalar_reward(reward)
