"""`drift_test`: the definitions, its level without a change, its power, and bad input."""

import dataclasses
import math

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_proteus import LLMTrainingWrapper, drift_test
from reference import permutation as twin

episodes = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=5)
runs = st.lists(episodes, min_size=1, max_size=3)
epsilons = st.just(0.5) | st.floats(-6, 3).map(lambda power: 10.0**power)


def columns(run):
    """Episodes as pairs of columns."""
    return [tuple(list(column) for column in zip(*episode, strict=True)) for episode in run]


@settings(max_examples=40)
@given(runs, runs, epsilons)
def test_it_is_that_of_every_exchange(a, b, epsilon):
    result = drift_test(columns(a), columns(b), n=2000, epsilon=epsilon)
    everything = twin.every_exchange(a, b, epsilon)
    parts = (result.joint, result.observation, result.policy)
    for i, (part, value) in enumerate(zip(parts, twin.divergences(a, b, epsilon), strict=True)):
        assert part.kl == pytest.approx(value, abs=1e-11)
        null = [split[i] for split in everything]
        mean, share = np.mean(null), np.mean([x >= value - 1e-11 for x in null])
        spread = np.std(null)
        assert part.null_mean == pytest.approx(mean, abs=5 * spread / math.sqrt(2000) + 1e-11)
        assert part.null_std == pytest.approx(spread, abs=0.15 * max(null) + 1e-11)
        deviation = math.sqrt(share * (1 - share) / 2000)
        assert abs(part.pvalue - share) < 5 * deviation + 1 / 1000
    assert result.pairs == (sum(map(len, a)), sum(map(len, b)))
    assert result.episodes == (len(a), len(b))


def chain(rng, right, length=60):
    """An episode of a walk whose successive steps are alike."""
    place, observations, actions = 5, [], []
    for _ in range(length):
        action = int(rng.random() < right)
        observations.append(place)
        actions.append(action)
        place = min(max(place + 2 * action - 1, 0), 10)
    return observations, actions


def test_without_a_change_the_pvalues_are_uniform_and_a_change_is_found():
    rng = np.random.default_rng(0)
    tests = 300
    pvalues = {"joint": [], "observation": [], "policy": []}
    for seed in range(tests):
        a, b = ([chain(rng, 0.5) for _ in range(8)] for _ in range(2))
        result = drift_test(a, b, n=99, seed=seed)
        for part, found in pvalues.items():
            found.append(getattr(result, part).pvalue)
    for found in pvalues.values():
        for level in (0.05, 0.25, 0.5, 0.75):
            share = np.mean(np.array(found) <= level)
            assert abs(share - level) < 4 * math.sqrt(level * (1 - level) / tests)
    a, b = ([chain(rng, right) for _ in range(20)] for right in (0.5, 0.7))
    result = drift_test(a, b, n=499)
    assert result.joint.pvalue == result.policy.pvalue == 1 / 500
    assert result.policy.kl > result.policy.null_mean + 5 * result.policy.null_std


def test_equal_seeds_give_equal_results():
    rng = np.random.default_rng(1)
    a, b = ([chain(rng, 0.5) for _ in range(6)] for _ in range(2))
    result = drift_test(a, b, n=50, seed=2**64 - 1)
    assert result == drift_test(iter(a), iter(b), n=50, seed=2**64 - 1)
    assert result.joint != drift_test(a, b, n=50, seed=1).joint
    assert drift_test(a, b, n=50, episodes=2) == drift_test(a[-2:], b[-2:], n=50)
    arrays = [tuple(np.array(column) for column in episode) for episode in a]
    assert drift_test(arrays, b, n=50) == drift_test(a, b, n=50)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.n = 3


def recorded(directory, seed, **how):
    """A recording of a few episodes of CartPole."""
    env = LLMTrainingWrapper(gym.make("CartPole-v1"), directory, mode="monitor", **how)
    env.action_space.seed(seed)
    for i in range(6):
        env.reset(seed=seed + i)
        ended = False
        while not ended:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            ended = terminated or truncated
    env.close()
    return directory


def test_recordings_are_read_and_their_binnings_compared(tmp_path, capsys):
    a, b = recorded(tmp_path / "a", 0), recorded(str(tmp_path / "b"), 100)
    result = drift_test(a, b, n=200, progress=True)
    assert result.episodes == (6, 6)
    assert result.joint.pvalue > 0.01
    assert "exchange" in capsys.readouterr().err
    other = recorded(tmp_path / "c", 0, obs_bins=6)
    with pytest.raises(ValueError, match="one environment with one binning, got CartPole"):
        drift_test(a, other)
    recorded(other, 0)
    with pytest.raises(ValueError, match="b must be of one environment and one binning"):
        drift_test(a, other)
    with pytest.raises(ValueError, match="keys without a recording"):
        drift_test(a, [([1], [2])])


GOOD = [([1, 2], [0, 1])]


@pytest.mark.parametrize(
    ("a", "how", "error", "message"),
    [
        ([], {}, ValueError, "a must hold at least one episode"),
        ("nowhere", {}, ValueError, "directory of a recording"),
        (3, {}, TypeError, "a must be"),
        (b"x", {}, TypeError, "a must be"),
        ([3], {}, TypeError, r"a\[0\]"),
        ([([1], [2], [3])], {}, ValueError, "3 items"),
        ([([1, 2], [3])], {}, ValueError, "got 2 and 1"),
        ([([], [])], {}, ValueError, "at least one"),
        ([([1.5], [0])], {}, TypeError, r"a\[0\]\[0\] must hold integers"),
        ([([True], [0])], {}, TypeError, "integers"),
        ([(np.zeros(2), np.zeros(2, int))], {}, ValueError, "float64"),
        (GOOD, {"n": 0}, ValueError, "n must be from 1"),
        (GOOD, {"n": 1.5}, TypeError, "n must be an integer"),
        (GOOD, {"seed": -1}, ValueError, "seed must be from 0"),
        (GOOD, {"episodes": 0}, ValueError, "episodes must be from 1"),
        (GOOD, {"epsilon": 0}, ValueError, "epsilon must be above 0"),
        (GOOD, {"epsilon": math.nan}, ValueError, "epsilon must be above 0"),
        (GOOD, {"epsilon": "1"}, TypeError, "epsilon must be a number"),
        (GOOD, {"progress": 1}, TypeError, "progress must be a bool"),
    ],
)
def test_bad_input_is_named(a, how, error, message):
    with pytest.raises(error, match=message):
        drift_test(a, GOOD, **how)
