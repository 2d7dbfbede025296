"""Rewards that cannot be shaped: a clear error, nothing counted, and the next pair is right."""

import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from wrapper_harness import contents, names, on_line, parity, play, recorded

from kl_proteus import LLMTrainingWrapper

BAD = [
    ([1.0, 2.0], TypeError, "got a list of 2 items"),
    ((1.0,), TypeError, "got a tuple of 1 items"),
    (np.array([1.0, 2.0]), TypeError, r"got ndarray of shape \(2,\)"),
    (np.array([1.0]), TypeError, r"got ndarray of shape \(1,\)"),
    (None, TypeError, "got None"),
    ("1.0", TypeError, "got '1.0'"),
    ({"agent": 1.0}, TypeError, "got {'agent': 1.0}"),
    (1 + 0j, TypeError, r"got \(1\+0j\)"),
    (math.nan, ValueError, "must be a finite number, got nan"),
    (np.float32("nan"), ValueError, "must be a finite number, got .*nan"),
    (math.inf, ValueError, "must be a finite number, got inf"),
    (-np.inf, ValueError, "must be a finite number, got -inf"),
    (10**400, ValueError, "must be a finite number, got 10000"),
]


def state_of(env):
    """All that a step may count."""
    state = env.kl_state_dict()
    # What waits for the next action belongs to the environment, which has been stepped.
    state.pop("observed")
    return state, env.get_training_statistics(), env.kl_history


@pytest.mark.parametrize("mode", ["fine_tuning", "monitor"])
@pytest.mark.parametrize(("bad", "error", "message"), BAD)
def test_bad_reward_counts_nothing(tmp_path, mode, bad, error, message):
    # The bad one comes in the middle of the third episode.
    env = on_line(tmp_path, lengths=(4,), rewards=(1.0,) * 9 + (bad,) + (1.0,) * 90, mode=mode)
    play(env, 2)
    env.reset()
    env.step(1)
    before, files = state_of(env), contents(tmp_path)
    with pytest.raises(error, match=f"reward .*{message}"):
        env.step(2)
    assert state_of(env) == before
    assert contents(tmp_path) == files
    # The rest of that episode counts, and is not recorded, because a step of it is missing.
    assert [env.step(1)[2] for _ in range(2)] == [False, True]
    assert env.get_kl_statistics()["steps"] == env.get_training_statistics()["num_steps"] == 11
    assert contents(tmp_path) == files
    play(env, 1)
    assert [len(row["base_rewards"]) for row in recorded(tmp_path)] == [4, 4, 4]


@pytest.mark.parametrize("encoder", [None, parity])
def test_the_pair_after_a_bad_reward_is_the_right_one(tmp_path, encoder):
    good = on_line(tmp_path / "good", lengths=(50,), window=None, encoder=encoder)
    bad = on_line(
        tmp_path / "bad",
        lengths=(50,),
        rewards=(1.0, 1.0, math.nan) + (1.0,) * 47,
        window=None,
        encoder=encoder,
    )
    # Places 0, 1, 3, 4, 4, 0: the third pair is (3, 1), and the good run never sees it.
    good.reset()
    bad.reset()
    for action in (1, 2):
        good.step(action)
        bad.step(action)
    with pytest.raises(ValueError, match="nan"):
        bad.step(1)
    for action in (0, 1, 2):
        bad.step(action)
    counts = bad.snapshot()["counts"]
    place, move = bad._tracker.observation.key, bad._tracker.action.key
    expected = {}
    for seen, action in ((0, 1), (1, 2), (4, 0), (4, 1), (0, 2)):
        seen = parity(seen) if encoder else seen
        cells = expected.setdefault(str(place(seen)), {})
        cells[str(move(action))] = cells.get(str(move(action)), 0) + 1
    assert counts == expected
    assert good.get_kl_statistics()["steps"] == 2


def test_bad_reward_of_the_last_step(tmp_path):
    env = on_line(tmp_path, lengths=(4,), rewards=(1.0, 1.0, 1.0, [0.0], *(1.0,) * 4))
    with pytest.raises(TypeError, match="make a vector reward a scalar in a wrapper"):
        play(env, 1)
    assert names(tmp_path) == []
    play(env, 1)
    assert len(recorded(tmp_path)) == 1
    assert env.get_kl_statistics()["steps"] == 7


class Lost:
    """A scalar of an array library whose device is gone."""

    shape = ()

    def __float__(self):
        raise RuntimeError("device lost")


def test_a_reward_that_cannot_be_read_counts_nothing(tmp_path):
    env = on_line(tmp_path, rewards=(1.0, Lost(), 1.0, 1.0))
    env.reset()
    env.step(2)
    before = state_of(env)
    with pytest.raises(RuntimeError, match="device lost"):
        env.step(1)
    assert state_of(env) == before
    assert [env.step(1)[2] for _ in range(2)] == [False, True]
    assert env.get_kl_statistics()["steps"] == 3
    place, move = env._tracker.observation.key, env._tracker.action.key
    assert str(place(2)) not in env.snapshot()["counts"]
    assert env.snapshot()["counts"][str(place(3))] == {str(move(1)): 1}
    assert names(tmp_path) == []


def test_a_vector_reward_can_be_made_a_scalar(tmp_path):
    class Two(gym.Env):
        observation_space = action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.int64(0), {}

        def step(self, action):
            return np.int64(1), np.array([1.0, 3.0]), True, False, {}

    with pytest.raises(TypeError, match=r"gymnasium\.wrappers\.TransformReward"):
        play(LLMTrainingWrapper(Two(), tmp_path), 1)
    summed = gym.wrappers.TransformReward(Two(), np.sum)
    play(LLMTrainingWrapper(summed, tmp_path), 1)
    assert [row["base_rewards"] for row in recorded(tmp_path)] == [[4.0]]


@pytest.mark.parametrize(
    "arguments",
    [
        {"rewards": (-1.7e308,), "kl_bonus_weight": 1.7e308, "mode": "exploration"},
        {"rewards": (1.7e308,), "kl_bonus_weight": 1.7e308},
        {"rewards": (1.0,), "kl_penalty_weight": 1.7e308, "kl_threshold": 1e-9},
    ],
)
def test_shaping_that_overflows_is_refused_and_leaves_no_hole(tmp_path, arguments):
    env = on_line(tmp_path, lengths=(60,), window=8, **({"kl_threshold": 5.0} | arguments))
    env.reset()
    errors = []
    for action in [0] * 16 + [1] * 8 + [2] * 36:
        try:
            _, reward, *_, info = env.step(action)
        except ValueError as error:
            errors.append(str(error))
        else:
            assert math.isfinite(reward)
            assert np.isfinite([v for k, v in info.items() if k != "place"]).all()
    assert errors
    assert all("weight must give a finite" in error for error in errors)
    assert env.get_training_statistics()["num_steps"] == 60 - len(errors)
    assert math.isfinite(env.get_training_statistics()["mean_kl"])
    assert names(tmp_path) == []


class Broken(gym.Wrapper):
    """Fails once, before the environment inside has been stepped."""

    broken = False

    def step(self, action):
        if self.broken:
            self.broken = False
            raise RuntimeError("the simulator is gone")
        return super().step(action)


def test_a_step_that_the_environment_refuses_counts_nothing(tmp_path):
    broken = Broken(on_line(tmp_path).env)
    env = LLMTrainingWrapper(broken, tmp_path)
    env.reset()
    env.step(1)
    before = env.kl_state_dict(), env.get_training_statistics()
    broken.broken = True
    with pytest.raises(RuntimeError, match="the simulator is gone"):
        env.step(2)
    assert (env.kl_state_dict(), env.get_training_statistics()) == before
    # The episode goes on without that step.
    for _ in range(3):
        env.step(1)
    (row,) = recorded(tmp_path)
    assert row["action_texts"] == ["action 1"] * 4


@pytest.mark.parametrize("action", [3, -1, 1.5, "left", None, np.array([0, 1])])
def test_an_action_outside_the_space_steps_nothing(tmp_path, action):
    env = on_line(tmp_path)
    env.reset()
    env.step(1)
    before = env.kl_state_dict(), env.get_training_statistics(), len(env.env.steps)
    with pytest.raises((TypeError, ValueError), match="action"):
        env.step(action)
    assert (env.kl_state_dict(), env.get_training_statistics(), len(env.env.steps)) == before
    for _ in range(3):
        env.step(1)
    assert [len(row["action_texts"]) for row in recorded(tmp_path)] == [4]


def test_a_nan_is_an_error_for_the_step_that_acts_on_it(tmp_path):
    class Nan(gym.Env):
        observation_space = spaces.Box(0.0, 1.0, (2,))
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            return np.array([0.5, np.nan], np.float32), 1.0, False, False, {}

    env = LLMTrainingWrapper(Nan(), tmp_path)
    env.reset()
    env.step(0)
    before = env.kl_state_dict(), env.get_training_statistics()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"observation\[1\]"):
            env.step(0)
    assert (env.kl_state_dict(), env.get_training_statistics()) == before
    env.reset()
    env.step(0)
    assert env.get_kl_statistics()["steps"] == 2
    assert names(tmp_path) == []
