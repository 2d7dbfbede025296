"""What kind of object the wrapper is."""

import gc
import inspect
import pickle

import gymnasium as gym
import pytest
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import SyncVectorEnv

from environments.scripted import (
    AUTORESET_MODES,
    INFO_KEYS,
    Scripted,
    Walk,
    make_walk,
    play,
    random_actions,
    vector_of,
)
from kl_proteus import JointKLDivergenceWrapper

POSITIONAL = {
    "obs_bins": 10,
    "action_bins": 10,
    "history_size": 1000,
    "epsilon": 0.5,
    "normalize_obs": True,
    "normalize_action": True,
}
KEYWORDS = {
    "window": 1000,
    "lag": None,
    "reference": None,
    "obs_range": None,
    "action_range": None,
    "obs_scale": 1.0,
    "encoder": "auto",
    "min_window": 32,
    "axis_histograms": None,
    "info_prefix": "",
    "info_on_reset": False,
    "drift_detector": None,
    "episode_statistics": False,
}


def test_names_order_and_defaults_of_the_arguments():
    parameters = list(inspect.signature(JointKLDivergenceWrapper).parameters.values())
    assert [p.name for p in parameters] == ["env", *POSITIONAL, *KEYWORDS]
    assert {p.name: p.default for p in parameters[1:]} == POSITIONAL | KEYWORDS
    for parameter in parameters:
        keyword_only = parameter.kind is parameter.KEYWORD_ONLY
        assert keyword_only == (parameter.name in KEYWORDS)


def test_is_a_gymnasium_wrapper_that_records_its_arguments():
    wrapper = make_walk()
    assert isinstance(wrapper, gym.Wrapper)
    assert isinstance(wrapper, gym.Env)
    assert isinstance(wrapper, RecordConstructorArgs)
    assert wrapper.class_name() == "JointKLDivergenceWrapper"
    assert str(wrapper) == "<JointKLDivergenceWrapper<Walk instance>>"


def test_can_be_subclassed_like_any_wrapper():
    class Louder(JointKLDivergenceWrapper):
        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            return observation, 2 * reward, terminated, truncated, info

    wrapper = Louder(Walk(), window=4)
    wrapper.reset(seed=0)
    assert wrapper.step(1)[1] == 2.0
    assert wrapper.get_kl_statistics()["steps"] == 1


def test_refuses_what_is_no_environment():
    # Gymnasium's own check; in older releases it is an assertion.
    with pytest.raises((TypeError, AssertionError)):
        JointKLDivergenceWrapper("CartPole-v1")
    with pytest.raises((TypeError, AssertionError)):
        JointKLDivergenceWrapper(SyncVectorEnv([Walk]))


def test_two_wrappers_need_two_prefixes():
    inner = make_walk(info_prefix="short/")
    between = gym.wrappers.TimeLimit(inner, 100)
    with pytest.raises(ValueError, match=r"info_prefix='short/'"):
        make_walk_around(between, info_prefix="short/")
    outer = make_walk_around(between, info_prefix="long/", window=50)
    info = play(outer, random_actions(outer.action_space, 40))[-1]
    assert info["short/kl_divergence"] != info["long/kl_divergence"]
    assert {p + key for p in ("short/", "long/") for key in INFO_KEYS} <= info.keys()


def test_two_wrappers_without_a_prefix_are_refused():
    with pytest.raises(ValueError, match="info_prefix"):
        make_walk_around(make_walk())


def make_walk_around(env, **settings):
    return JointKLDivergenceWrapper(env, **settings)


def test_a_prefix_must_not_look_like_a_vector_mask():
    # Vector environments drop keys that start with an underscore.
    with pytest.raises(ValueError, match="info_prefix must not start with an underscore, got '_a'"):
        make_walk(info_prefix="_a")
    assert not any(key.startswith("_") for key in INFO_KEYS)


def test_a_shared_info_dict_is_no_second_wrapper():
    shared = {}
    for _ in range(2):
        env = make_walk_around(Scripted([[0, 0], [1, 1], [0, 1]], info=lambda: shared), window=4)
        play(env, [0, 1, 0])
    assert shared == {}


def test_close_reaches_the_environment_and_may_be_repeated():
    class Closing(Walk):
        closed = 0

        def close(self):
            self.closed += 1

    env = Closing()
    with JointKLDivergenceWrapper(env, window=4) as wrapper:
        play(wrapper, [0, 1, 2])
    assert env.closed == 1
    wrapper.close()
    wrapper.close()
    assert wrapper.get_kl_statistics()["steps"] == 3


def test_may_be_dropped_before_it_is_complete():
    # What was constructed halfway is collected without a word on stderr.
    with pytest.raises(ValueError, match="epsilon"):
        make_walk(epsilon=-1.0)
    gc.collect()


def test_forwards_no_unknown_attribute():
    wrapper = make_walk()
    wrapper.env.secret = 7
    with pytest.raises(AttributeError):
        _ = wrapper.secret
    assert wrapper.get_wrapper_attr("secret") == 7


def test_is_read_through_outer_wrappers():
    wrapper = gym.wrappers.RecordEpisodeStatistics(gym.wrappers.TimeLimit(make_walk(), 5))
    play(wrapper, [0, 1, 2, 1])
    assert wrapper.get_wrapper_attr("get_kl_statistics")()["steps"] == 4
    assert wrapper.get_wrapper_attr("kl_history") == wrapper.env.env.kl_history


@pytest.mark.parametrize("mode", AUTORESET_MODES)
def test_is_read_through_a_vector_environment(mode):
    env = vector_of([make_walk] * 2, mode)
    env.reset(seed=3)
    env.step([1, 2])
    statistics = env.call("get_kl_statistics")
    assert [s["steps"] for s in statistics] == [1, 1]
    assert pickle.loads(pickle.dumps(statistics)) == statistics
    assert env.get_attr("kl_history") == ([], [])
