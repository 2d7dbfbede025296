"""What a drift may be blind to: the findings, and the one warning."""

import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from environments.scripted import play, random_actions
from kl_proteus import JointKLDivergenceWrapper, VectorJointKLDivergenceWrapper, diagnostics
from kl_proteus.diagnostics import AxisUse

HEALTHY = {
    "steps": 3000,
    "support": 0.9,
    "coverage": 0.95,
    "episodes_in_window": 40,
    "cells": 200,
    "ready": True,
}
AXIS = AxisUse("observation[0]", True, False, 0.0, 0.3)


def codes(statistics, axes=(AXIS,), pairs=1000):
    """The code and severity of every finding."""
    found = diagnostics.findings(HEALTHY | statistics, axes, pairs)
    assert all(one.message and one.remedy for one in found)
    return [(one.code, one.severity) for one in found]


@pytest.mark.parametrize(
    ("statistics", "expected"),
    [
        ({}, []),
        ({"support": 0.49}, [("low_support", "warning")]),
        ({"coverage": 0.59}, [("low_coverage", "warning")]),
        ({"episodes_in_window": 9}, [("few_episodes", "note")]),
        ({"cells": 1001}, [("many_cells", "note")]),
        ({"steps": 0, "support": 0.0, "coverage": 0.0}, []),
    ],
)
def test_each_finding_has_its_threshold(statistics, expected):
    assert codes(statistics) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"flow": 0.01}, []),
        ({"flow": 0.011}, [("flow", "warning")]),
        ({"fullest": 0.99}, [("one_bin", "warning")]),
        ({"fullest": 1.0, "tells_apart": False}, []),
        ({"flow": 0.995, "fullest": 0.995}, [("flow", "warning")]),
        ({"odd_bins": True}, [("odd_bins", "note")]),
    ],
)
def test_each_axis_is_looked_at(change, expected):
    assert codes({}, (AXIS, AXIS._replace(**change))) == expected


class Uniform(gym.Env):
    """Observations spread over a box; episodes of ten steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, low=-1.0, high=1.0, axes=1):
        self.observation_space = spaces.Box(-1.0, 1.0, (axes,), np.float64)
        self.low, self.high = low, high
        self.resets = self.steps = 0

    def _observation(self):
        return self.np_random.uniform(self.low, self.high, self.observation_space.shape)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        return self._observation(), {}

    def step(self, action):
        self.steps += 1
        return self._observation(), 0.0, self.steps % 10 == 0, False, {}


def run(env, steps, **settings):
    """The wrapper after so many steps, and the warnings that were given."""
    wrapper = JointKLDivergenceWrapper(env, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        play(wrapper, random_actions(env.action_space, steps))
        wrapper.reset()
    return wrapper, [str(one.message) for one in caught if one.category is UserWarning]


def test_a_well_binned_run_gives_no_warning():
    wrapper, said = run(Uniform(), 600, window=200)
    assert said == []
    assert wrapper.kl_diagnostics() == []


def test_cartpole_with_the_defaults_gives_no_warning():
    _, said = run(gym.make("CartPole-v1"), 2500)
    assert said == []


def test_fine_bins_give_one_warning_with_a_remedy():
    wrapper, said = run(Uniform(axes=3), 900, window=200, obs_bins=30)
    assert len(said) == 1
    assert "blind" in said[0]
    assert "fewer obs_bins" in said[0]
    assert "kl_diagnostics()" in said[0]
    found = wrapper.kl_diagnostics()
    assert {"low_support", "low_coverage", "many_cells"} <= {one["code"] for one in found}
    assert all(one.keys() == {"code", "severity", "message", "remedy"} for one in found)


def test_values_outside_the_range_and_in_one_bin_are_named():
    wrapper, said = run(Uniform(0.5, 0.51), 600, window=200)
    assert len(said) == 1
    assert "in one bin of observation[0]" in said[0]
    wrapper, said = run(Uniform(), 600, window=200, obs_range=(-0.9, 0.9), obs_bins=5)
    assert len(said) == 1
    assert "outside the range of observation[0]" in said[0]
    assert [one["code"] for one in wrapper.kl_diagnostics()] == ["flow", "odd_bins"]


def test_short_windows_are_too_short_to_say():
    wrapper, said = run(Uniform(axes=3), 400, window=50, obs_bins=30)
    assert said == []
    assert wrapper.kl_diagnostics()


def test_nothing_is_lost_where_the_warning_is_an_error():
    env = Uniform(axes=3)
    wrapper = JointKLDivergenceWrapper(env, window=200, obs_bins=30)
    wrapper.reset(seed=1)
    for step in range(400):
        wrapper.step(step % 2)
    resets, before = env.resets, wrapper.kl_state_dict()
    with pytest.raises(UserWarning, match="blind"):
        wrapper.reset()
    assert env.resets == resets
    assert wrapper.kl_state_dict() == before
    wrapper.reset()
    assert env.resets == resets + 1
    # A copy has been warned as well.
    pickle.loads(pickle.dumps(wrapper)).reset()


def test_the_statistics_warn_too():
    wrapper = JointKLDivergenceWrapper(Uniform(axes=3), window=200, obs_bins=30)
    wrapper.reset(seed=1)
    for step in range(400):
        wrapper.step(step % 2)
    with pytest.warns(UserWarning, match="blind"):
        wrapper.get_kl_statistics()
    assert wrapper.get_kl_statistics()["support"] < 0.5


def test_episodes_in_the_windows_are_counted():
    wrapper = JointKLDivergenceWrapper(Uniform(), window=20)
    seen = []
    for _ in range(9):
        wrapper.reset()
        wrapper.reset()  # an episode without a pair is none
        for step in range(10):
            wrapper.step(step % 2)
        seen.append(wrapper.get_kl_statistics()["episodes_in_window"])
    assert seen == [1, 2, 3, 4, 4, 4, 4, 4, 4]
    wrapper.step(0)  # without a reset the episode goes on
    assert wrapper.get_kl_statistics()["episodes_in_window"] == 4
    copy = pickle.loads(pickle.dumps(wrapper))
    fresh = JointKLDivergenceWrapper(Uniform(), window=20)
    fresh.load_kl_state_dict(wrapper.kl_state_dict())
    for other in (wrapper, copy, fresh):
        other.reset()
        other.step(1)
        assert other.get_kl_statistics()["episodes_in_window"] == 5
    wrapper.reset_kl()
    assert wrapper.get_kl_statistics()["episodes_in_window"] == 0


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
@pytest.mark.parametrize("pooled", [False, True])
def test_vector_rows_count_their_episodes(mode, pooled):
    if not hasattr(gym.vector, "AutoresetMode"):
        pytest.skip("this Gymnasium has no autoreset modes")
    env = gym.vector.SyncVectorEnv(
        [Uniform] * 3, autoreset_mode=getattr(gym.vector.AutoresetMode, mode)
    )
    wrapper = VectorJointKLDivergenceWrapper(env, window=20, pooled=pooled)
    wrapper.reset(seed=1)
    while True:
        wrapper.step(np.zeros(3, int))
        statistics = wrapper.get_kl_statistics()
        one = statistics if pooled else statistics[0]
        if one["steps"] >= (120 if pooled else 40):
            break
    assert one["episodes_in_window"] == (12 if pooled else 4)
