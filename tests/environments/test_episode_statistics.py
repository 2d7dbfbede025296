"""`episode_statistics=True`: the statistics, in the info of each episode's last step."""

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from kl_proteus import JointKLDivergenceWrapper, LLMTrainingWrapper

SMALL = {"window": 12, "min_window": 3}


def single(tmp_path, **settings):
    return JointKLDivergenceWrapper(gym.make("CartPole-v1"), **SMALL, **settings)


def recorded(tmp_path, **settings):
    return LLMTrainingWrapper(gym.make("CartPole-v1"), tmp_path, **SMALL, **settings)


def steps(env, count=200):
    """Whether each step ended an episode, its info, and the statistics after it."""
    env.action_space.seed(2)
    env.reset(seed=1)
    for _ in range(count):
        *_, terminated, truncated, info = env.step(env.action_space.sample())
        yield terminated or truncated, info, env.get_kl_statistics()
        if terminated or truncated:
            env.reset()


@pytest.mark.filterwarnings("ignore:the drift:UserWarning")
@pytest.mark.parametrize("make", [single, recorded])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"info_prefix": "a/"},
        {"encoder": lambda observation: np.round(observation, 1)},
        {"drift_detector": {"window": 5, "calibration_windows": 3}},
    ],
    ids=["plain", "prefix", "encoder", "detector"],
)
def test_the_last_step_of_an_episode_has_the_statistics(make, settings, tmp_path):
    env = make(tmp_path, episode_statistics=True, **settings)
    key = settings.get("info_prefix", "") + "kl"
    ended = 0
    for done, info, statistics in steps(env):
        assert (key in info) == done
        if done:
            ended += 1
            assert info[key] == statistics
            assert json.loads(json.dumps(info[key], allow_nan=False)) == statistics
            assert info[key]["current"] == info[key + "_divergence"]
    assert ended > 5
    env.close()


@pytest.mark.parametrize("make", [single, recorded])
def test_nothing_of_it_without_a_request(make, tmp_path):
    env = make(tmp_path)
    assert not any("kl" in info for _, info, _ in steps(env, 60))
    env.close()


def test_the_key_travels_through_vector_environments():
    modes = getattr(gym.vector, "AutoresetMode", None)
    if modes is None:
        pytest.skip("this Gymnasium has no autoreset modes")
    make = lambda: single(None, episode_statistics=True)  # noqa: E731
    envs = SyncVectorEnv([make] * 2, autoreset_mode=modes.SAME_STEP)
    envs.action_space.seed(0)
    envs.reset(seed=0)
    ended = 0
    for _ in range(60):
        *_, infos = envs.step(envs.action_space.sample())
        if "final_info" in infos:
            final = infos["final_info"]
            among = final["_kl"]
            np.testing.assert_array_equal(
                final["kl"]["current"][among], final["kl_divergence"][among]
            )
            ended += among.sum()
    assert ended > 2
    envs.close()
