"""Copies go on bit for bit, and go their own way."""

import copy
import json
import pickle

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from environments.named_encoders import Coarse, parity
from environments.scripted import (
    INFO_KEYS,
    Scripted,
    Walk,
    make_walk,
    play,
    proceed,
    random_actions,
    shown,
    values,
)
from kl_proteus import JointKLDivergenceWrapper

COPIES = {
    "pickle": lambda wrapper: pickle.loads(pickle.dumps(wrapper)),
    "pickle protocol 2": lambda wrapper: pickle.loads(pickle.dumps(wrapper, protocol=2)),
    "cloudpickle": lambda wrapper: cloudpickle.loads(cloudpickle.dumps(wrapper)),
    "deepcopy": copy.deepcopy,
    "copy of a copy": lambda wrapper: copy.deepcopy(pickle.loads(pickle.dumps(wrapper))),
}
SETTINGS = {
    "adjacent": {"window": 7, "min_window": 2},
    "lag": {"window": 6, "lag": 3},
    "lifetime": {"window": None},
    "reference": {"window": 6, "min_window": 2, "reference": play},
    "encoder": {"window": 6, "min_window": 2, "encoder": "environments.named_encoders:parity"},
    "detector": {"window": 6, "drift_detector": {"false_alarm_every": 30, "window": 2}},
    "prefix": {"window": 6, "min_window": 2, "info_prefix": "kl/", "info_on_reset": True},
}


@pytest.fixture(params=SETTINGS)
def settings(request):
    found = dict(SETTINGS[request.param])
    if "reference" in found:
        recorded = make_walk()
        play(recorded, [2, 2, 1] * 9)
        found["reference"] = recorded.snapshot()
    return found


# Before the first step, before and after values are reported, in mid-episode, and at its end
# (episodes have 9 steps).
@pytest.mark.parametrize("at", [0, 1, 5, 9, 40])
@pytest.mark.parametrize("method", COPIES)
def test_a_copy_continues_bit_for_bit(method, at, settings):
    wrapper = make_walk(**settings)
    play(wrapper, [0, 1, 2, 2, 0] * 8, seed=3) if at == 40 else play(wrapper, [0, 2] * at, seed=3)
    twin = COPIES[method](wrapper)
    assert twin is not wrapper
    assert twin.kl_state_dict() == wrapper.kl_state_dict()
    actions = random_actions(wrapper.action_space, 40, seed=at)
    assert proceed(twin, actions) == proceed(wrapper, actions)
    assert twin.kl_state_dict() == wrapper.kl_state_dict()
    assert twin.kl_history == wrapper.kl_history
    assert twin.spec == wrapper.spec


@pytest.mark.parametrize("method", COPIES)
def test_a_copy_goes_its_own_way(method):
    wrapper = make_walk()
    play(wrapper, [0, 1, 2] * 7)
    before = wrapper.kl_state_dict()
    twin = COPIES[method](wrapper)
    proceed(twin, [1, 1, 1])
    twin.reset_kl()
    assert wrapper.kl_state_dict() == before


@pytest.mark.parametrize("method", COPIES)
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_gymnasiums_environments_copied_in_mid_episode(name, method):
    env = JointKLDivergenceWrapper(gym.make(name), window=10, min_window=2)
    actions = random_actions(env.action_space, 60)
    play(env, actions[:25])
    twin = COPIES[method](env)
    got, expected = proceed(twin, actions[25:]), proceed(env, actions[25:])
    assert [values(info) for info in got] == [values(info) for info in expected]


def test_encoders_that_have_no_name_need_cloudpickle():
    shift = 1
    wrapper = make_walk(encoder=lambda observation: np.array([observation + shift]))
    play(wrapper, [0, 1, 2] * 4)
    twin = cloudpickle.loads(cloudpickle.dumps(wrapper))
    assert proceed(twin, [2, 2, 1] * 4) == proceed(wrapper, [2, 2, 1] * 4)
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(wrapper)


@pytest.mark.parametrize("encoder", [parity, Coarse(3), Coarse.by_three])
def test_encoders_with_a_name_are_pickled(encoder):
    wrapper = make_walk(encoder=encoder)
    play(wrapper, [0, 1, 2] * 4)
    twin = pickle.loads(pickle.dumps(wrapper))
    assert proceed(twin, [2, 2, 1] * 4) == proceed(wrapper, [2, 2, 1] * 4)


def test_a_copy_after_a_terminal_nan_goes_on_too():
    env = Scripted([[0, 0], [1, 1], [np.nan, 0]])
    wrapper = JointKLDivergenceWrapper(env, window=4)
    wrapper.reset()
    wrapper.step(0)
    wrapper.step(1)
    for method in COPIES.values():
        twin = method(wrapper)
        with pytest.raises(ValueError, match=r"observation\[0\] is NaN"):
            twin.step(0)
        twin.reset()
        twin.step(0)
        assert twin.get_kl_statistics()["steps"] == 3


# State dictionaries ---------------------------------------------------------------------------


def test_a_state_continues_in_another_process_of_its_life(settings):
    first = make_walk(**settings)
    play(first, [0, 1, 2] * 9, seed=5)
    state = json.loads(json.dumps(first.kl_state_dict(), allow_nan=False))
    second = make_walk(**settings)
    second.load_kl_state_dict(state)
    second.env = copy.deepcopy(first.env)
    assert second.kl_history == first.kl_history
    actions = random_actions(first.action_space, 40)
    assert proceed(second, actions) == proceed(first, actions)
    assert second.kl_state_dict() == first.kl_state_dict()


def test_a_state_is_a_copy():
    wrapper = make_walk()
    play(wrapper, [0, 1, 2] * 5)
    state = wrapper.kl_state_dict()
    before = copy.deepcopy(state)
    proceed(wrapper, [1, 1])
    assert state == before
    other = make_walk()
    other.load_kl_state_dict(state)
    proceed(other, [])
    other.reset_kl()
    assert state == before


@pytest.mark.parametrize(
    "others",
    [
        {"window": 9},
        {"window": None},
        {"lag": 2},
        {"epsilon": 0.25},
        {"history_size": 10},
        {"min_window": 3},
        {"encoder": parity},
        {"encoder": "environments.named_encoders:halves"},
    ],
    ids=shown,
)
def test_a_state_of_other_arguments_is_refused(others):
    source = make_walk(**others)
    play(source, [0, 1, 2] * 6)
    target = make_walk()
    play(target, [2, 1] * 6)
    before = target.kl_state_dict()
    with pytest.raises(ValueError, match=r"state|axes|encoder"):
        target.load_kl_state_dict(source.kl_state_dict())
    assert target.kl_state_dict() == before


def test_a_state_on_other_axes_is_refused_by_name():
    source = JointKLDivergenceWrapper(Walk(states=7), window=8, min_window=2)
    target = make_walk()
    before = target.kl_state_dict()
    with pytest.raises(ValueError, match="observation"):
        target.load_kl_state_dict(source.kl_state_dict())
    assert target.kl_state_dict() == before


# Processes ------------------------------------------------------------------------------------


def walk_with_a_named_encoder():
    return make_walk(min_window=1, encoder="environments.named_encoders:parity")


def test_async_vector_environments_under_spawn():
    """Nothing native is shared with, or lost in, a process that starts from nothing."""
    factories = [walk_with_a_named_encoder, make_walk]
    workers = AsyncVectorEnv(factories, context="spawn", shared_memory=True)
    try:
        local = SyncVectorEnv(factories)
        workers.reset(seed=7)
        local.reset(seed=7)
        for step in range(25):
            got = workers.step(np.array([step % 3, 2]))[4]
            expected = local.step(np.array([step % 3, 2]))[4]
            for key in INFO_KEYS:
                assert (key in got) == (key in expected)
                if key in got:
                    assert got[key].tolist() == expected[key].tolist()
                    assert got["_" + key].tolist() == expected["_" + key].tolist()
        assert workers.call("get_kl_statistics") == local.call("get_kl_statistics")
        assert workers.get_attr("kl_history") == local.get_attr("kl_history")
        assert workers.call("kl_state_dict") == local.call("kl_state_dict")
    finally:
        workers.close()
    assert max(values(play(make_walk(), [0, 1, 2] * 6)[-1])) > 0.0
