"""`get_kl_statistics`, `kl_history`, `reset_kl`, and what a long run may cost."""

import json

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces

from environments.scripted import (
    Scripted,
    Walk,
    make_walk,
    pairs_of,
    play,
    proceed,
    random_actions,
    twin_of,
)
from kl_proteus import JointKLDivergenceWrapper

KEYS = {
    "current": float,
    "mean": float,
    "std": float,
    "min": float,
    "max": float,
    "count": int,
    "observation_mean": float,
    "policy_mean": float,
    "cells": int,
    "steps": int,
    "flow": float,
    "ready": bool,
    "floor_available": bool,
    "kl_noise_floor": float,
    "kl_excess": float,
    "kl_expected": float,
    "kl_pvalue": float,
    "kl_policy_floor": float,
    "kl_policy_excess": float,
    "kl_policy_z": float,
    "kl_policy_pvalue": float,
    "coverage": float,
    "support": float,
    "kl_detectable": float,
    "episodes_in_window": int,
}
ACTIONS = [0, 1, 2, 2, 0, 1] * 10
MODES = {
    "adjacent": ({"window": 9, "min_window": 3}, 18),
    "one pair": ({"window": 1, "min_window": 1}, 2),
    "lag": ({"window": 9, "lag": 4}, 13),
    "lifetime": ({"window": None}, 2),
    "reference": ({"window": 9, "min_window": 3, "reference": True}, 9),
    "lifetime against a reference": ({"window": None, "min_window": 5, "reference": True}, 5),
}


def settings_of(mode):
    settings = dict(MODES[mode][0])
    if settings.get("reference"):
        source = make_walk(window=None)
        play(source, [2, 1] * 20)
        settings["reference"] = source.snapshot()
    return settings


def twin_settings_of(mode):
    settings = dict(MODES[mode][0])
    if settings.get("reference"):
        settings["reference"] = pairs_of(Walk(), [2, 1] * 20)
    return settings


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", [0, 1, 2, 12, 60])
def test_statistics_are_those_of_the_definitions(mode, steps):
    wrapper = make_walk(history_size=20, **settings_of(mode))
    play(wrapper, ACTIONS[:steps])
    twin = twin_of(wrapper, history_size=20, **twin_settings_of(mode))
    for pair in pairs_of(Walk(), ACTIONS[:steps]):
        twin.update(*pair)
    statistics, expected = wrapper.get_kl_statistics(), twin.statistics()
    assert statistics.pop("top_movers") == wrapper.kl_axes()[:3]
    # The twin is fed pairs, and knows nothing of episodes.
    expected["episodes_in_window"] = statistics["episodes_in_window"]
    assert statistics == pytest.approx(expected, abs=1e-10)
    assert {key: type(value) for key, value in statistics.items()} == KEYS
    assert json.loads(json.dumps(statistics, allow_nan=False)) == statistics


@pytest.mark.parametrize("mode", MODES)
def test_ready_from_the_step_on_that_fills_the_windows(mode):
    wrapper = make_walk(**settings_of(mode))
    wrapper.reset(seed=1)
    filled = MODES[mode][1]
    for step in range(1, 25):
        *_, terminated, _, _ = wrapper.step(step % 3)
        assert wrapper.get_kl_statistics()["ready"] == (step >= filled)
        if terminated:
            wrapper.reset()


def test_the_newest_info_and_the_statistics_agree():
    wrapper = make_walk(history_size=7)
    for action in ACTIONS:
        if wrapper.get_kl_statistics()["steps"] % 9 == 0:
            wrapper.reset()
        info = wrapper.step(action)[4]
        statistics = wrapper.get_kl_statistics()
        assert info["kl_divergence"] == statistics["current"]
        assert info["kl_divergence_mean"] == statistics["mean"]
        assert info["kl_divergence_std"] == statistics["std"]


def test_history_holds_the_reported_values_newest_last():
    wrapper = make_walk(window=8, min_window=4, history_size=25)
    infos = play(wrapper, ACTIONS)
    # Seven zeros stand for "no evidence yet" and are no values of the history.
    reported = [info["kl_divergence"] for info in infos[7:]]
    assert type(wrapper.kl_history) is list
    assert all(type(value) is float for value in wrapper.kl_history)
    assert wrapper.kl_history == reported[-25:]
    statistics = wrapper.get_kl_statistics()
    assert statistics["count"] == 25
    assert statistics["min"] == min(reported[-25:])
    assert statistics["max"] == max(reported[-25:])
    assert statistics["mean"] == pytest.approx(np.mean(reported[-25:]), abs=1e-12)
    assert statistics["std"] == pytest.approx(np.std(reported[-25:]), abs=1e-12)


def test_history_of_one_value():
    wrapper = make_walk(history_size=1)
    infos = play(wrapper, ACTIONS)
    last = infos[-1]["kl_divergence"]
    assert wrapper.kl_history == [last]
    statistics = wrapper.get_kl_statistics()
    assert (statistics["mean"], statistics["min"], statistics["max"]) == pytest.approx((last,) * 3)
    assert statistics["std"] == 0.0


def test_history_is_a_copy():
    wrapper = make_walk()
    play(wrapper, ACTIONS)
    before = wrapper.get_kl_statistics()
    wrapper.kl_history.clear()
    wrapper.get_kl_statistics().clear()
    assert wrapper.get_kl_statistics() == before
    assert len(wrapper.kl_history) == before["count"] > 0


def test_history_cannot_be_assigned():
    with pytest.raises(AttributeError):
        make_walk().kl_history = []


def test_reset_clears_nothing():
    wrapper = make_walk()
    play(wrapper, ACTIONS)
    before = wrapper.get_kl_statistics(), wrapper.kl_history, wrapper.snapshot()
    for seed in (None, 1, 2):
        wrapper.reset(seed=seed)
        assert (wrapper.get_kl_statistics(), wrapper.kl_history, wrapper.snapshot()) == before


def test_reset_kl_forgets_windows_and_history():
    wrapper = make_walk()
    play(wrapper, ACTIONS)
    wrapper.reset_kl()
    assert wrapper.get_kl_statistics() == make_walk().get_kl_statistics()
    assert wrapper.kl_history == []
    assert wrapper.snapshot()["counts"] == {}


def test_reset_kl_in_mid_episode_keeps_the_waiting_observation():
    wrapper, other = make_walk(window=None), Walk()
    play(wrapper, ACTIONS[:5])
    other.reset(seed=1)
    for action in ACTIONS[:5]:
        observation = other.step(action)[0]
    wrapper.reset_kl()
    proceed(wrapper, [2])
    assert wrapper.snapshot()["counts"] == {str(observation): {"2": 1}}
    assert wrapper.get_kl_statistics()["steps"] == 1


def test_after_reset_kl_a_run_is_that_of_a_new_wrapper():
    wrapper = make_walk()
    play(wrapper, ACTIONS)
    wrapper.reset_kl()
    assert play(wrapper, ACTIONS, seed=7) == play(make_walk(), ACTIONS, seed=7)


def test_flow_is_a_share_of_the_current_window():
    env = Scripted([[x] for x in (0.5, 1.5, 0.5, 0.5, -1, 2, 0.5)], spaces.Box(0, 1, (1,)))
    wrapper = JointKLDivergenceWrapper(env, window=3)
    wrapper.reset()
    shares = []
    for _ in range(6):
        wrapper.step(0)
        shares.append(wrapper.get_kl_statistics()["flow"])
    # While windows grow, P is the newer half: 1, 1, 2, 2, 3, 3 pairs.
    assert shares == pytest.approx([0, 1, 1 / 2, 0, 1 / 3, 2 / 3], abs=1e-15)


def test_flow_counts_actions_too():
    env = Scripted([[0.5]] * 3, spaces.Box(0, 1, (1,)), spaces.Box(-1, 1, (1,)))
    wrapper = JointKLDivergenceWrapper(env, window=None)
    play(wrapper, [[2.0], [0.0]])
    assert wrapper.get_kl_statistics()["flow"] == 0.5


def test_cells_are_those_of_both_windows():
    env = Scripted([[x / 10] for x in range(9)], spaces.Box(0, 1, (1,), np.float64))
    wrapper = JointKLDivergenceWrapper(env, window=3)
    wrapper.reset()
    cells = []
    for _ in range(8):
        wrapper.step(0)
        cells.append(wrapper.get_kl_statistics()["cells"])
    # Cells that left both windows are gone.
    assert cells == [1, 2, 3, 4, 5, 6, 6, 6]


def test_the_chain_rule_holds_in_every_step():
    env = JointKLDivergenceWrapper(gym.make("LunarLander-v3"), obs_bins=3, window=40)
    for info in play(env, random_actions(env.action_space, 300)):
        parts = info["kl_observation"] + info["kl_policy"]
        assert abs(info["kl_divergence"] - parts) <= 1e-12


def test_a_change_of_policy_alone_is_a_change_of_policy():
    """The observations do not depend on the action, so what changes is what is done there."""
    rng = np.random.default_rng(3)
    env = Scripted(rng.integers(4, size=500).tolist(), spaces.Discrete(4), spaces.Discrete(2))
    wrapper = JointKLDivergenceWrapper(env, window=200)
    wrapper.reset()
    for step in range(400):
        *_, info = wrapper.step(int(step >= 200))
    assert info["kl_policy"] > 10 * info["kl_observation"] > 0.0
    statistics = wrapper.get_kl_statistics()
    assert statistics["ready"]
    assert statistics["current"] == info["kl_divergence"]


def test_no_change_stays_near_its_noise_floor():
    # (K - 1) / (W + K / 2) for independent pairs: 0.5 makes it nearly independent of the counts.
    rng = np.random.default_rng(5)
    cells, window = 40, 500
    env = Scripted(rng.integers(cells // 2, size=6001).tolist(), spaces.Discrete(cells // 2))
    wrapper = JointKLDivergenceWrapper(env, window=window, history_size=5000)
    infos = play(wrapper, rng.integers(2, size=6000).tolist())
    expected = (cells - 1) / (window + cells / 2)
    found = np.mean([info["kl_divergence"] for info in infos[2 * window :]])
    assert found == pytest.approx(expected, rel=0.1)


def test_a_lifetime_histogram_fades_as_it_must():
    # E KL(P_t || P_t-1) of a stationary policy is (K - 1) / (2 S^2) with S pairs.
    rng = np.random.default_rng(7)
    cells, steps = 50, 10_000
    env = Scripted(rng.integers(cells, size=steps + 1).tolist(), spaces.Discrete(cells))
    wrapper = JointKLDivergenceWrapper(env, window=None, epsilon=1e-6, history_size=500)
    infos = play(wrapper, [0] * steps)
    sizes = np.arange(steps - 500, steps)
    found = wrapper.get_kl_statistics()["mean"]
    assert found == pytest.approx(np.mean((cells - 1) / (2 * sizes**2.0)), rel=0.03)
    assert all(info["kl_divergence"] > 0.0 for info in infos[steps // 2 :])


def test_memory_does_not_grow_with_the_steps():
    """A history of infos, or a cell that is never given back, would take 20 MB and more."""

    class Fresh(gym.Env):
        """A new cell in every step."""

        observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        action_space = spaces.Discrete(2)

        def __init__(self):
            self.rng = np.random.default_rng(0)

        def reset(self, *, seed=None, options=None):
            return self.rng.standard_normal(2), {}

        def step(self, action):
            return self.rng.standard_normal(2), 0.0, False, False, {}

    wrapper = JointKLDivergenceWrapper(
        Fresh(), obs_bins=2**31 - 1, action_bins=2, history_size=100, window=100
    )
    wrapper.reset()

    def steps(number):
        for _ in range(number):
            wrapper.step(1)
        return psutil.Process().memory_info().rss

    before = steps(5_000)
    assert steps(200_000) - before < 8 * 2**20
    with pytest.warns(UserWarning, match="blind"):
        assert wrapper.get_kl_statistics()["cells"] == 200
    assert len(wrapper.kl_history) == 100
