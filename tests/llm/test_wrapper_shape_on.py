"""Rewards shaped on the excess over the noise floor."""

import gymnasium as gym
import numpy as np
import pytest

from kl_proteus import LLMTrainingWrapper, VectorLLMTrainingWrapper
from llm.wrapper_harness import Line, play

WEIGHTS = {"kl_penalty_weight": 0.3, "kl_bonus_weight": 0.2, "kl_threshold": 0.05}


class Controller:
    """Remembers what it was told."""

    unit = "nats/step"
    value = 0.1

    def __init__(self):
        self.seen = []

    def update(self, current, n_steps=1):
        self.seen.append(current)
        return self.value


def wrapped(tmp_path, **settings):
    """A wrapper around a short line."""
    return LLMTrainingWrapper(Line((4, 7)), tmp_path, window=10, **(WEIGHTS | settings))


@pytest.mark.parametrize(("mode", "sign"), [("fine_tuning", 1.0), ("exploration", -1.0)])
def test_penalty_and_bonus_go_by_the_excess(tmp_path, mode, sign):
    env = wrapped(tmp_path, shape_on="excess", mode=mode)
    infos = [result[4] for result in play(env, 12)]
    assert min(info["kl_excess"] for info in infos) < 0.0 < max(i["kl_excess"] for i in infos)
    for n, info in enumerate(infos, start=1):
        excess = max(0.0, info["kl_excess"])
        ready = n >= 20
        penalty = 0.3 * max(0.0, excess - 0.05) if ready else 0.0
        bonus = 0.2 * max(0.0, 1.0 - excess / 0.05) if ready else 0.0
        assert info["kl_penalty"] == pytest.approx(sign * penalty, abs=1e-15)
        assert info["kl_bonus"] == pytest.approx(sign * bonus, abs=1e-15)
        # Luck below the floor is not paid for.
        assert abs(info["kl_bonus"]) <= 0.2


def test_the_default_is_the_divergence(tmp_path):
    plain = [result[1] for result in play(wrapped(tmp_path / "a"), 12)]
    named = [result[1] for result in play(wrapped(tmp_path / "b", shape_on="kl"), 12)]
    excess = [result[1] for result in play(wrapped(tmp_path / "c", shape_on="excess"), 12)]
    assert plain == named != excess


def test_monitor_only_watches(tmp_path):
    results = play(wrapped(tmp_path, shape_on="excess", mode="monitor"), 12)
    assert all(info["kl_penalty"] == info["kl_bonus"] == 0.0 for *_, info in results)


def test_a_controller_measures_the_excess(tmp_path):
    controller = Controller()
    env = wrapped(tmp_path, shape_on="excess", kl_penalty_weight=controller)
    infos = [result[4] for result in play(env, 12)]
    assert len(controller.seen) >= 5
    assert 0.0 <= max(controller.seen) < max(info["kl_divergence"] for info in infos)


@pytest.mark.parametrize("settings", [{"window": None}, {"window": 10, "lag": 9}])
def test_without_a_floor_it_is_refused(tmp_path, settings):
    with pytest.raises(ValueError, match="shape_on='excess' needs two distributions"):
        LLMTrainingWrapper(Line(), tmp_path, shape_on="excess", **settings)
    LLMTrainingWrapper(Line(), tmp_path, shape_on="excess", window=10, lag=10)


@pytest.mark.parametrize(("value", "error"), [("joint", ValueError), (None, TypeError)])
def test_other_values_are_refused(tmp_path, value, error):
    with pytest.raises(error, match="shape_on must be"):
        LLMTrainingWrapper(Line(), tmp_path, shape_on=value)


def test_the_spec_keeps_it(tmp_path):
    env = LLMTrainingWrapper(gym.make("CartPole-v1"), tmp_path, shape_on="excess")
    assert env.spec.additional_wrappers[-1].kwargs["shape_on"] == "excess"


def test_vector_rows_are_shaped_like_single_ones(tmp_path):
    settings = {"window": 10, "shape_on": "excess", **WEIGHTS}
    venv = VectorLLMTrainingWrapper(
        gym.vector.SyncVectorEnv([lambda: gym.make("FrozenLake-v1")] * 2), tmp_path, **settings
    )
    venv.reset(seed=1)
    venv.action_space.seed(1)
    shaped = 0
    for _ in range(80):
        _, rewards, _, _, infos = venv.step(venv.action_space.sample())
        for row in np.flatnonzero(infos["_kl_penalty"]):
            excess = max(0.0, infos["kl_excess"][row])
            if infos["kl_penalty"][row] or infos["kl_bonus"][row]:
                shaped += 1
                penalty = 0.3 * max(0.0, excess - 0.05)
                bonus = 0.2 * max(0.0, 1.0 - excess / 0.05)
                assert infos["kl_penalty"][row] == pytest.approx(penalty, abs=1e-15)
                assert infos["kl_bonus"][row] == pytest.approx(bonus, abs=1e-15)
                assert rewards[row] == infos["shaped_reward"][row]
    assert shaped > 50
