"""Gymnasium's own checker finds nothing that it did not find without the wrapper."""

import re
import warnings

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

from kl_proteus import JointKLDivergenceWrapper

ENVIRONMENTS = (
    "CartPole-v1",
    "Pendulum-v1",
    "FrozenLake-v1",
    "LunarLander-v3",
    "Blackjack-v1",
    "Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3",
)


def complaints(env):
    """What the checker warns of, without what differs between any two objects."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env, skip_render_check=True)
    texts = (re.sub(r"The environment \(.*?\) is different", "...", str(w.message)) for w in caught)
    # That there is a wrapper at all is what it says of `gym.make` too, twice as long here.
    return sorted(text for text in texts if not text.startswith(("\x1b[33mWARN: ...", "WARN: ...")))


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize(
    "settings", [{}, {"info_on_reset": True}, {"window": 5, "min_window": 5}], ids=str
)
def test_check_env_has_nothing_to_add(name, settings):
    bare = gym.make(name)
    wrapped = JointKLDivergenceWrapper(gym.make(name), **settings)
    assert complaints(wrapped) == complaints(bare)
    wrapped.close()
    bare.close()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_passive_checker_outside_has_nothing_to_add(name):
    def run(env):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            env.reset(seed=1)
            env.action_space.seed(1)
            for _ in range(50):
                _, _, terminated, truncated, _ = env.step(env.action_space.sample())
                if terminated or truncated:
                    env.reset()
        return sorted(str(w.message) for w in caught)

    checker = gym.wrappers.PassiveEnvChecker
    bare = gym.make(name, disable_env_checker=True)
    wrapped = JointKLDivergenceWrapper(gym.make(name, disable_env_checker=True), window=9)
    assert run(checker(wrapped)) == run(checker(bare))


def test_two_seeded_resets_give_the_same_first_info():
    # The checker compares them, so a value that is already reported there must not differ.
    env = JointKLDivergenceWrapper(gym.make("CartPole-v1"))
    infos = []
    for _ in range(2):
        env.reset(seed=123)
        infos.append(env.step(1)[4])
    assert infos[0] == infos[1]


def test_render_modes_are_checked_too():
    env = JointKLDivergenceWrapper(gym.make("CartPole-v1", render_mode="rgb_array"))
    env.reset(seed=1)
    assert env.render().shape == (400, 600, 3)
    made = env.spec.make(render_mode="rgb_array")
    made.reset()
    assert made.render().dtype.name == "uint8"
    made.close()
    env.close()
