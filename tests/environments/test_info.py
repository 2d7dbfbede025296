"""What the wrapper adds to info, and what it does not."""

import copy
import json
import math
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from environments.scripted import (
    AUTORESET_MODES,
    INFO_KEYS,
    Scripted,
    Walk,
    assert_reports,
    make_walk,
    pairs_of,
    play,
    random_actions,
    twin_of,
    values,
    vector_of,
)
from kl_proteus import JointKLDivergenceWrapper

MODES = {
    "adjacent": {"window": 10, "min_window": 3},
    "lag": {"window": 8, "lag": 3},
    "overlapping lag": {"window": 8, "lag": 20},
    "lifetime": {"window": None},
    "small epsilon": {"window": 12, "min_window": 1, "epsilon": 1e-10},
}
ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1")


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("mode", MODES)
def test_the_values_are_those_of_the_definitions(name, mode):
    settings = MODES[mode]
    wrapper = JointKLDivergenceWrapper(gym.make(name), obs_bins=4, history_size=30, **settings)
    actions = random_actions(wrapper.action_space, 60)
    twin = twin_of(wrapper, obs_bins=4, history_size=30, **settings)
    assert_reports(play(wrapper, actions), twin, pairs_of(gym.make(name), actions))


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("truncate", [False, True])
def test_every_step_has_finite_floats_under_the_same_keys(name, truncate):
    env = gym.make(name)
    bare = set(play(env, random_actions(env.action_space, 1))[0])
    env = gym.wrappers.TimeLimit(env, 7) if truncate else env
    wrapper = JointKLDivergenceWrapper(env, window=10, min_window=1)
    for info in play(wrapper, random_actions(env.action_space, 60)):
        assert info.keys() - bare == set(INFO_KEYS)
        for key, value in zip(INFO_KEYS, values(info), strict=True):
            assert type(value) is float
            assert math.isfinite(value)
            assert value >= 0.0 or key == "kl_excess"


def test_a_terminal_step_has_every_key():
    # Episode monitors read their keys from the last info and fail where one is missing.
    wrapper = make_walk(min_window=1)
    wrapper.reset(seed=1)
    for step in range(9):
        *_, terminated, _, info = wrapper.step(step % 3)
    assert terminated
    assert set(INFO_KEYS) <= info.keys()
    assert info["kl_divergence"] == wrapper.get_kl_statistics()["current"] > 0.0


def test_too_little_evidence_is_zero_and_not_missing():
    infos = play(make_walk(window=8, min_window=4), [0, 1, 2, 0, 1, 2, 0, 0])
    assert [values(info) for info in infos[:7]] == [(0.0,) * 7] * 7
    assert infos[7]["kl_divergence"] > 0.0


def test_reset_says_nothing_unless_asked():
    wrapper = make_walk()
    play(wrapper, [0, 1, 2] * 5)
    observation, info = wrapper.reset(seed=3)
    assert info == {"state": observation}


def test_reset_repeats_the_last_report_where_asked():
    wrapper = make_walk(info_on_reset=True, info_prefix="kl/")
    _, info = wrapper.reset(seed=3)
    assert values(info, "kl/") == (0.0,) * 7
    assert all(type(value) is float for value in values(info, "kl/"))
    for action in [0, 1, 2, 2, 1, 0, 0]:
        *_, info = wrapper.step(action)
    observation, reset_info = wrapper.reset()
    assert values(reset_info, "kl/") == values(info, "kl/")
    assert values(info, "kl/")[0] > 0.0
    # Recorders that need one tree for both get it.
    assert reset_info.keys() == info.keys()
    assert reset_info["state"] == observation


def test_the_prefix_precedes_every_key_and_nothing_else():
    info = play(make_walk(info_prefix="drift."), [0])[0]
    assert list(info) == ["state", *("drift." + key for key in INFO_KEYS)]


def test_the_environments_dict_is_not_changed():
    infos = []

    def info():
        infos.append({"mine": len(infos)})
        return infos[-1]

    wrapper = JointKLDivergenceWrapper(
        Scripted([[0, 0], [1, 1], [0, 1]], info=info), info_on_reset=True
    )
    play(wrapper, [0, 1, 0])
    assert infos == [{"mine": i} for i in range(len(infos))]


def test_nothing_kept_depends_on_what_was_returned():
    # Outer wrappers add keys to an info that they received and change observations in place.
    def run(meddle):
        wrapper = JointKLDivergenceWrapper(gym.make("Pendulum-v1"), window=6, min_window=1)
        observation, info = wrapper.reset(seed=8)
        reports = []
        for action in random_actions(wrapper.action_space, 30):
            if meddle:
                observation[:] = 1e9
                info.clear()
            observation, _, _, _, info = wrapper.step(action)
            reports.append(values(info))
            if meddle:
                action[:] = -1e9
                info["kl_divergence"] = "changed"
        return reports, wrapper.snapshot()

    assert run(meddle=True) == run(meddle=False)


def test_each_info_is_a_dict_of_its_own():
    shared = {"mine": 1}
    wrapper = JointKLDivergenceWrapper(Scripted([[0, 0], [1, 1], [0, 1]], info=lambda: shared))
    infos = play(wrapper, [0, 1, 0])
    assert len({id(info) for info in infos}) == 3
    assert shared == {"mine": 1}


def test_info_stays_writable_as_strict_json():
    for info in play(make_walk(min_window=1), [0, 1, 2] * 10):
        assert json.loads(json.dumps(info, allow_nan=False)) == info
        assert copy.deepcopy(info) == info


def test_no_floating_point_warning_with_any_value():
    # Trainers turn a RuntimeWarning into an exception.
    extremes = [np.inf, -np.inf, 65504.0, -65504.0, 6e-8, 0.0, -0.0, 1.0, 0.5]
    observations = [np.array([x, y], np.float16) for x in extremes for y in extremes]
    space = spaces.Box(-np.inf, np.inf, (2,), np.float16)
    with np.errstate(all="raise"):
        for settings in MODES.values():
            env = Scripted(observations, space, spaces.Box(-1, 1, (), np.float16))
            wrapper = JointKLDivergenceWrapper(env, **settings)
            for info in play(wrapper, [np.float16(x) for x in extremes] * 10):
                assert all(map(math.isfinite, values(info)))


def test_never_negative_however_close_the_distributions_are():
    # Nearly equal histograms with many empty cells gave -7e-8 elsewhere.
    for epsilon in (0.5, 1e-12, 1e6):
        for window in (1, 2, 50, None):
            wrapper = make_walk(window=window, min_window=1, epsilon=epsilon)
            for info in play(wrapper, [1, 1, 0, 2] * 60):
                *others, excess = values(info)
                assert min(others) >= 0.0
                assert excess <= info["kl_divergence"]


def test_equal_windows_are_exactly_zero():
    env = Scripted([[0, 0], [1, 1], [0, 1], [0.5, 0.5], [0, 0]])
    infos = play(JointKLDivergenceWrapper(env, window=4), [0, 1, 0, 1] * 20)
    assert {info["kl_divergence"] for info in infos[8:]} == {0.0}


# Vector environments --------------------------------------------------------------------------


LENGTHS = (9, 4, 7)


def vector_of_walks(mode):
    return vector_of([partial(make_walk, n, min_window=1, window=6) for n in LENGTHS], mode)


def test_vector_rows_keep_their_decimals():
    # The first row's type fixes the array's: an int 0 next to 0.75 would read [0, 0].
    env = vector_of_walks("NEXT_STEP")
    env.reset(seed=1)
    for step in range(14):
        *_, infos = env.step([step % 3, 2, (step * 2) % 3])
        for key in INFO_KEYS:
            assert infos[key].dtype == np.float64
            assert infos[key].shape == (3,)
    assert len(set(infos["kl_divergence"])) == 3


@pytest.mark.parametrize("mode", AUTORESET_MODES)
def test_only_pairs_are_counted_in_every_autoreset_mode(mode):
    """Each row counts its steps: no reset row (NEXT_STEP), no first step lost (SAME_STEP)."""
    env = vector_of_walks(mode)
    env.reset(seed=2)
    real = np.zeros(3, int)
    done = np.zeros(3, bool)
    for step in range(40):
        if mode == "DISABLED" and done.any():
            env.reset(options={"reset_mask": done.copy()})
        skipped = done if mode == "NEXT_STEP" else np.zeros(3, bool)
        _, _, terminations, truncations, _ = env.step([step % 3, 2, 0])
        done = terminations | truncations
        real += ~skipped
    assert [s["steps"] for s in env.call("get_kl_statistics")] == real.tolist()
    # With NEXT_STEP every episode costs one row that is no pair.
    assert real.tolist() == ([36, 32, 35] if mode == "NEXT_STEP" else [40, 40, 40])


def test_vector_rows_are_the_same_as_single_environments():
    env = vector_of_walks("SAME_STEP")
    env.reset(seed=[4, 5, 6])
    actions = [[step % 3, 2, (step // 2) % 3] for step in range(25)]
    rows = [env.step(action)[4] for action in actions]
    for row in range(3):
        single = make_walk(LENGTHS[row], min_window=1, window=6)
        for step, info in enumerate(play(single, [a[row] for a in actions], seed=4 + row)):
            vector = rows[step]
            if "final_info" in vector and vector["_final_info"][row]:
                vector = vector["final_info"]
            assert tuple(vector[key][row] for key in INFO_KEYS) == values(info)


def test_same_step_autoreset_keeps_the_terminal_value():
    # Keys in the reset info would overwrite the slot of the terminal step with 0.0.
    env = vector_of_walks("SAME_STEP")
    env.reset(seed=2)
    for step in range(7):
        *_, infos = env.step([step % 3, 2, 0])
    assert infos["_final_info"].tolist() == [False, False, True]
    expected = [s["current"] for s in env.call("get_kl_statistics")]
    assert infos["final_info"]["kl_divergence"][2] == expected[2] > 0.0
    assert infos["kl_divergence"].tolist() == [expected[0], expected[1], 0.0]
    assert infos["_kl_divergence"].tolist() == [True, True, False]


def test_episode_statistics_outside_and_inside_agree():
    outer = gym.wrappers.RecordEpisodeStatistics(make_walk())
    inner = JointKLDivergenceWrapper(
        gym.wrappers.RecordEpisodeStatistics(Walk()), window=8, min_window=2
    )
    for a, b in zip(play(outer, [0, 1, 2] * 6), play(inner, [0, 1, 2] * 6), strict=True):
        assert values(a) == values(b)
        assert a.keys() == b.keys()
