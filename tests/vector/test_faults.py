"""What goes wrong in one row leaves all rows as they were."""

import functools
import threading

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from environments.scripted import Scripted
from kl_proteus import VectorJointKLDivergenceWrapper, VectorLLMTrainingWrapper
from kl_proteus._core import VectorTracker
from kl_proteus.spaces import layout_from_space
from vector.harness import AUTORESET_MODES, SMALL, Nested, batches, factories, vector_of, wrap

UNIT = spaces.Box(0.0, 1.0, (2,), np.float64)
FINE = [np.full(2, x) for x in (0.1, 0.4, 0.6, 0.9)]


def scripted(*scripts, mode="DISABLED", **settings):
    """A wrapped row for each list of observations."""
    makes = [functools.partial(Scripted, script, UNIT) for script in scripts]
    return wrap(vector_of(makes, mode), **settings)


def steps(env):
    return [one["steps"] for one in env.get_kl_statistics()]


@pytest.mark.parametrize("pooled", [False, True])
def test_a_nan_raises_before_any_environment_is_stepped(pooled):
    bad = [FINE[0], np.array([0.5, np.nan]), FINE[1], FINE[2]]
    env = scripted(FINE, bad, FINE, pooled=pooled)
    env.reset()
    env.step(np.array([0, 1, 0]))
    state = env.kl_state_dict()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"sub-environment 1: observation\[1\] is NaN"):
            env.step(np.array([0, 1, 0]))
    assert env.kl_state_dict() == state
    assert [len(row.actions) for row in env.env.envs] == [1, 1, 1]
    env.reset(options={"reset_mask": np.array([False, True, False])})
    env.step(np.array([0, 1, 0]))
    assert [len(row.actions) for row in env.env.envs] == [2, 2, 2]


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_a_terminal_nan_does_no_harm(mode):
    ends = [FINE[0], FINE[1], np.array([np.nan, 0.0])]
    env = scripted(FINE, ends, mode=mode)
    env.reset()
    for _ in range(12):
        env.step(np.array([1, 0]))
    assert np.isfinite(np.concatenate(env.kl_history)).all()


@pytest.mark.parametrize(
    ("actions", "error", "message"),
    [
        (np.array([0, 1, 2]), ValueError, "sub-environment 2: action is 2, outside the space"),
        (np.array([0, 0.5, 1]), ValueError, "sub-environment 1: action is 0.5"),
        (np.array([0, np.nan, 1]), ValueError, "sub-environment 1: action is NaN"),
        (np.array([0, 1]), ValueError, r"action has shape \(2,\) for all rows; expected \(3,\)"),
        (np.array(["a", "b", "c"]), TypeError, "action has values of type"),
        ([0, 1], ValueError, "actions has 2 rows; expected 3"),
        ([0, 1, "left"], TypeError, "sub-environment 2: action has values of type"),
        (None, TypeError, "action has values of type"),
    ],
)
def test_an_action_outside_its_space_is_refused_for_all_rows(actions, error, message):
    env = scripted(FINE, FINE, FINE)
    env.reset()
    state = env.kl_state_dict()
    with pytest.raises(error, match=message):
        env.step(actions)
    assert env.kl_state_dict() == state
    assert [len(row.actions) for row in env.env.envs] == [0, 0, 0]


def test_the_ignored_action_of_a_row_that_resets_may_be_anything():
    env = scripted(FINE[:2], FINE, mode="NEXT_STEP")
    env.reset()
    env.step(np.array([0, 1]))  # the first row ends
    env.step(np.array([77, 1]))
    assert steps(env) == [1, 2]
    with pytest.raises(ValueError, match="sub-environment 0"):
        env.step(np.array([77, 1]))


def test_a_step_before_the_first_reset_counts_nothing():
    env = wrap(vector_of(factories("cartpole"), "SAME_STEP"))
    with pytest.raises(Exception, match="reset"):
        env.step(np.zeros(3, int))
    assert steps(env) == [0, 0, 0]


@pytest.mark.parametrize("kind", [VectorJointKLDivergenceWrapper, VectorLLMTrainingWrapper])
def test_an_environment_that_raises_counts_nothing(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = kind(vector_of(factories("walk"), "SAME_STEP"), **SMALL)
    env.reset(seed=1)
    env.step(np.zeros(3, int))
    state, step = env.kl_state_dict(), env.env.step
    env.env.step = lambda actions: 1 / 0
    with pytest.raises(ZeroDivisionError):
        env.step(np.zeros(3, int))
    env.env.step = step
    assert env.kl_state_dict() == state
    env.step(np.zeros(3, int))
    assert steps(env) == [2, 2, 2]
    env.close()


@pytest.mark.parametrize("kind", [VectorJointKLDivergenceWrapper, VectorLLMTrainingWrapper])
@pytest.mark.parametrize("pooled", [False, True])
def test_an_interrupted_step_makes_no_pair_in_any_row(kind, pooled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = kind(vector_of(factories("walk"), "SAME_STEP"), pooled=pooled, **SMALL)
    env.reset(seed=1)
    env.step(np.zeros(3, int))
    row, step = env.env.envs[1], env.env.envs[1].step

    def interrupted(action):
        step(action)
        raise KeyboardInterrupt

    row.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        env.step(np.zeros(3, int))
    row.step = step
    count = lambda: env._tracker.statistics()[0]["steps"]  # noqa: E731
    before = count()
    env.step(np.zeros(3, int))  # on observations that nobody has seen
    assert count() == before
    env.step(np.zeros(3, int))
    assert count() == before + (3 if pooled else 1)
    env.close()


@pytest.mark.parametrize("mode", AUTORESET_MODES)
@pytest.mark.parametrize("pooled", [False, True])
def test_an_encoder_that_fails_is_raised_by_the_step_that_needs_it(mode, pooled):
    def encoder(observation):
        if observation[0] > 0.5:
            raise RuntimeError("over")
        return observation

    # The first row fails in its terminal observation, the second in the middle of its episode.
    env = scripted(FINE[:3], [*FINE[:2], *FINE], mode=mode, encoder=encoder, pooled=pooled)
    env.reset()
    env.step(np.zeros(2, int))
    env.step(np.zeros(2, int))
    if mode == "DISABLED":
        with pytest.raises(RuntimeError, match="over"):
            env.step(np.zeros(2, int))
        env.reset(options={"reset_mask": np.array([True, False])})
    before = env._tracker.statistics()
    env.step(np.zeros(2, int))
    env.step(np.zeros(2, int))
    with pytest.raises(RuntimeError, match="over"):
        env.step(np.zeros(2, int))
    after = env._tracker.statistics()
    with pytest.raises(RuntimeError, match="over"):
        env.step(np.zeros(2, int))
    assert env._tracker.statistics() == after != before


def test_an_encoder_that_is_interrupted_loses_what_waits_and_no_pair():
    def encoder(observation):
        if observation[0] > 0.3:
            raise KeyboardInterrupt
        return observation

    env = scripted(FINE, FINE, encoder=encoder)
    env.reset()
    with pytest.raises(KeyboardInterrupt):
        env.step(np.zeros(2, int))
    assert steps(env) == [1, 1]
    assert env._tracker.waiting() == [(None, None)] * 2


def test_observations_that_do_not_come_apart_are_refused_in_the_next_step():
    env = wrap(SyncVectorEnv([functools.partial(Nested, 9)] * 2))
    env.reset(seed=1)
    actions = batches(env, 3)
    step = env.env.step
    env.env.step = lambda actions: (None, *step(actions)[1:])
    env.step(actions[0])
    env.env.step = step
    assert steps(env) == [1, 1]
    for _ in range(2):
        with pytest.raises(TypeError):
            env.step(actions[1])
    assert steps(env) == [1, 1]
    env.reset(seed=1)
    env.step(actions[2])
    assert steps(env) == [2, 2]


@pytest.mark.parametrize(
    ("observations", "error", "message"),
    [
        (np.zeros((2, 3)), ValueError, r"shape \(2, 3\) for all rows; expected \(2, 2\)"),
        (np.zeros(2), ValueError, r"shape \(2,\) for all rows; expected \(2, 2\)"),
        (np.zeros(()), ValueError, r"shape \(\) for all rows"),
        (np.zeros((2, 2), complex), TypeError, "complex"),
        (np.full((2, 2), None), TypeError, "object"),
    ],
)
def test_batches_that_are_none_are_refused_in_the_next_step(observations, error, message):
    env = scripted(FINE, FINE)
    env.reset()
    step = env.env.step
    env.env.step = lambda actions: (observations, *step(actions)[1:])
    env.step(np.zeros(2, int))
    env.env.step = step
    assert steps(env) == [1, 1]
    with pytest.raises(error, match=message):
        env.step(np.zeros(2, int))
    assert steps(env) == [1, 1]


def test_trackers_that_threads_share_lose_no_pair():
    layouts = layout_from_space(UNIT, "observation"), layout_from_space(UNIT, "action")
    rows, rounds, threads = 256, 40, 4
    tracker = VectorTracker(*layouts, rows, window=50)
    batch = np.linspace(0.0, 1.0, 2 * rows).reshape(rows, 2)
    tracker.observe(batch)

    def work():
        for _ in range(rounds):
            tracker.choose(batch)
            tracker.advance(batch)
            tracker.histories()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    counted = [one["steps"] for one in tracker.statistics()]
    # A pair is counted once, by whichever thread comes first.
    assert all(rounds <= count <= threads * rounds for count in counted)
    assert len(set(counted)) == 1
