"""Everything but info is the environment's own."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from environments.scripted import Scripted, Walk, play, random_actions
from kl_proteus import JointKLDivergenceWrapper

ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1", "LunarLander-v3", "FrozenLake-v1", "Blackjack-v1")


@pytest.mark.parametrize(
    "reward",
    [1, 0.5, np.float32(0.5), np.array([0.0, 1.0]), [0.0, 1.0], (1, 2), {"a": 1.0}, None, "won"],
    ids=repr,
)
def test_any_reward_is_passed_on_as_it_is(reward):
    wrapper = JointKLDivergenceWrapper(Scripted([[0, 0], [1, 1], [0, 1]], reward=reward))
    wrapper.reset()
    assert wrapper.step(0)[1] is reward


def test_observations_and_flags_are_the_very_objects():
    observations = [np.zeros(2), np.ones(2), np.zeros(2)]
    terminated, truncated = np.bool_(False), np.bool_(True)

    class Flags(Scripted):
        def step(self, action):
            observation, reward, _, _, info = super().step(action)
            return observation, reward, terminated, truncated, info

    wrapper = JointKLDivergenceWrapper(Flags(observations))
    observation, _ = wrapper.reset()
    assert observation is observations[0]
    for at in (1, 2):
        observation, _, *flags, _ = wrapper.step(0)
        assert observation is observations[at]
        assert flags[0] is terminated
        assert flags[1] is truncated


def test_the_action_is_passed_on_as_it_is():
    env = Scripted([[0, 0], [1, 1], [0, 1]], action_space=spaces.Box(-1, 1, (2,)))
    wrapper = JointKLDivergenceWrapper(env)
    actions = [np.array([-2.38, 5.0], np.float32), [0.1, 0.2]]
    play(wrapper, actions)
    assert all(got is sent for got, sent in zip(env.actions, actions, strict=True))
    assert actions[0].tolist() == np.array([-2.38, 5.0], np.float32).tolist()


def test_reset_arguments_arrive_unchanged():
    env = Scripted([[0, 0], [1, 1], [0, 1]])
    wrapper = JointKLDivergenceWrapper(env)
    options = {"reset_mask": np.array([True]), "seed": 7}
    wrapper.reset(seed=12, options=options)
    wrapper.reset(options=options)
    wrapper.reset()
    assert env.resets == [(12, options), (None, options), (None, None)]
    assert env.resets[0][1] is options
    assert options.keys() == {"reset_mask", "seed"}


def test_reset_takes_keywords_only():
    with pytest.raises(TypeError, match="positional"):
        JointKLDivergenceWrapper(Walk()).reset(3)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_attributes_are_those_of_the_environment(name):
    env = gym.make(name, render_mode="rgb_array")
    wrapper = JointKLDivergenceWrapper(env)
    wrapper.reset(seed=5)
    assert wrapper.observation_space is env.observation_space
    assert wrapper.action_space is env.action_space
    assert wrapper.metadata is env.metadata
    assert wrapper.render_mode == "rgb_array"
    assert wrapper.reward_range if hasattr(env, "reward_range") else True
    assert wrapper.np_random is env.np_random
    assert wrapper.np_random_seed == env.np_random_seed == 5
    assert wrapper.unwrapped is env.unwrapped
    env.close()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_seeded_run_is_the_same_to_the_bit(name):
    bare, inner = gym.make(name), gym.make(name)
    wrapped = JointKLDivergenceWrapper(inner, window=30, min_window=5)
    actions = random_actions(bare.action_space, 120)
    assert same(bare.reset(seed=9), wrapped.reset(seed=9))
    for action in actions:
        expected, got = bare.step(action), wrapped.step(action)
        # What is new in info is new; all else is the same.
        report = {key: value for key, value in got[4].items() if key in expected[4]}
        assert same(expected, (*got[:4], report))
        if expected[2] or expected[3]:
            assert same(bare.reset(), wrapped.reset())
    state = bare.unwrapped.np_random.bit_generator.state
    assert wrapped.unwrapped.np_random.bit_generator.state == state
    for one, other in zip((bare, wrapped), (wrapped, bare), strict=True):
        assert one.action_space == other.action_space
        assert one.observation_space == other.observation_space


def same(a, b):
    """Equal values of equal types, down to the bytes of arrays."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(itertools.starmap(same, zip(a, b, strict=True)))
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a == b


def test_spaces_are_not_drawn_from():
    env = Walk()
    env.action_space.seed(4)
    before = env.action_space.np_random.bit_generator.state
    play(JointKLDivergenceWrapper(env), [0, 1, 2])
    assert env.action_space.np_random.bit_generator.state == before


def test_renders_what_the_environment_renders():
    env = gym.make("CartPole-v1", render_mode="rgb_array")
    wrapper = JointKLDivergenceWrapper(env)
    wrapper.reset(seed=1)
    assert np.array_equal(wrapper.render(), env.render())
    wrapper.close()
