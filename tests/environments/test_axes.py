"""Which axis moved, as wrappers and the command line say it."""

import json

import gymnasium as gym
import pytest

from kl_proteus import JointKLDivergenceWrapper, LLMTrainingWrapper, VectorJointKLDivergenceWrapper


def played(env, steps=1500):
    """An environment whose policy pushes the cart to the right more and more."""
    env.action_space.seed(0)
    env.reset(seed=0)
    for step in range(steps):
        action = 1 if step % 1000 > 800 else env.action_space.sample()
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return env


def test_axes_have_the_names_of_the_space_and_json_values():
    env = played(JointKLDivergenceWrapper(gym.make("CartPole-v1"), window=500))
    axes = env.kl_axes()
    names = {f"observation[{i}]" for i in range(4)} | {"action"}
    assert {axis["axis"] for axis in axes} == names
    assert env.get_kl_statistics()["top_movers"] == axes[:3]
    json.dumps(axes, allow_nan=False)
    action = next(axis for axis in axes if axis["axis"] == "action")
    assert action["shift"] is None
    env.reset_kl()
    assert env.kl_axes() == []


def test_none_are_kept_where_none_are_wanted(tmp_path):
    env = played(JointKLDivergenceWrapper(gym.make("CartPole-v1"), axis_histograms=False), 200)
    assert env.kl_axes() == env.get_kl_statistics()["top_movers"] == []
    assert "axis_histograms" not in env.snapshot()
    with pytest.raises(TypeError, match="axis_histograms"):
        JointKLDivergenceWrapper(gym.make("CartPole-v1"), axis_histograms="yes")
    env = played(LLMTrainingWrapper(gym.make("CartPole-v1"), tmp_path), 200)
    assert len(env.kl_axes()) == 5


@pytest.mark.parametrize("pooled", [False, True])
def test_rows_of_a_vector_environment_carry_histograms(pooled):
    envs = gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
    env = VectorJointKLDivergenceWrapper(envs, pooled=pooled, window=100)
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(300):
        env.step(env.action_space.sample())
    moves = [env.kl_axes()] if pooled else env.kl_axes()
    assert len(moves) == (1 if pooled else 3)
    assert all(len(own) == 5 for own in moves)
