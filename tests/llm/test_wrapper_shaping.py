"""Shaping in the wrapper: every term from the divergence in info, by hand, in every mode."""

import json
import math

import gymnasium as gym
import numpy as np
import pytest
from wrapper_harness import ALL_KEYS, Line, Spy, names, on_line, play, spy_of

from kl_proteus import JointKLDivergenceWrapper, LLMTrainingWrapper

PENALTY, BONUS, THRESHOLD = 0.3, 0.2, 0.4
WEIGHTS = {
    "kl_penalty_weight": PENALTY,
    "kl_bonus_weight": BONUS,
    "kl_threshold": THRESHOLD,
}
# The policy changes at once after 20 and 40 actions.
DRIFTING = [0] * 20 + [1] * 20 + [0, 1, 2, 1] * 10


def drift(directory, **arguments):
    """A run whose divergence crosses the threshold both ways; windows are full from step 16."""
    arguments = WEIGHTS | {"lengths": (7,), "rewards": (1.5, -2.0), "window": 8} | arguments
    env = on_line(directory, **arguments)
    return env, play(env, 20, actions=DRIFTING)


def by_hand(kl):
    return PENALTY * max(0.0, kl - THRESHOLD), BONUS * max(0.0, 1.0 - kl / THRESHOLD)


def assert_crosses(values):
    """Both branches of both terms must have been taken, or the test says nothing."""
    assert min(values) < THRESHOLD / 2
    assert max(values) > THRESHOLD * 2


@pytest.mark.parametrize("mode", ["fine_tuning", "exploration", "monitor"])
def test_terms_are_those_of_the_formula(tmp_path, mode):
    env, results = drift(tmp_path, mode=mode)
    base = [step[2] for step in spy_of(env).steps]
    values = [result[4]["kl_divergence"] for result in results]
    assert_crosses(values[15:])
    for n, (_, reward, _, _, info) in enumerate(results, start=1):
        penalty, bonus = by_hand(info["kl_divergence"]) if n >= 16 else (0.0, 0.0)
        if mode == "exploration":
            penalty, bonus = -penalty, -bonus
        elif mode == "monitor":
            penalty, bonus = 0.0, 0.0
        assert info["base_reward"] == base[n - 1]
        assert (info["kl_penalty"], info["kl_bonus"]) == (penalty, bonus)
        assert info["shaped_reward"] == base[n - 1] + bonus - penalty
        assert reward == info["shaped_reward"]


@pytest.mark.parametrize("mode", ["fine_tuning", "exploration"])
def test_signs(tmp_path, mode):
    _, results = drift(tmp_path, mode=mode)
    sign = 1 if mode == "fine_tuning" else -1
    terms = [info[key] for *_, info in results for key in ("kl_penalty", "kl_bonus")]
    assert any(terms)
    for term in terms:
        assert sign * term >= 0.0
        assert term != 0.0 or math.copysign(1.0, term) == 1.0


def test_novelty_is_rewarded_in_exploration_and_punished_in_fine_tuning(tmp_path):
    rewards = {}
    for mode in ("fine_tuning", "exploration"):
        _, results = drift(tmp_path, mode=mode, rewards=(1.0,))
        novel = max(results[16:], key=lambda result: result[4]["kl_divergence"])
        rewards[mode] = novel[1]
    assert rewards["fine_tuning"] < 1.0 < rewards["exploration"]


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        ({"window": 8}, 16),
        ({"window": 6, "lag": 3}, 9),
        ({"window": None}, 2),
        ({"window": 5, "reference": True}, 5),
        ({"window": None, "reference": True, "min_window": 7}, 7),
    ],
)
def test_nothing_is_shaped_before_the_windows_are_full(tmp_path, arguments, first):
    if arguments.get("reference"):
        other = on_line(tmp_path)
        play(other, 10, actions=[2])
        arguments = arguments | {"reference": other.snapshot()}
    # Below a threshold that nothing reaches, every step that is shaped has a bonus.
    env = on_line(tmp_path, lengths=(30,), kl_threshold=1e9, **arguments)
    results = play(env, 1, actions=[0, 1])
    shaped = [result[4]["kl_bonus"] != 0.0 for result in results]
    assert shaped == [n >= first for n in range(1, 31)]


def test_early_values_are_reported_but_not_shaped(tmp_path):
    _, results = drift(tmp_path, window=40)
    early = [info for *_, info in results[:79]]
    assert max(info["kl_divergence"] for info in early) > THRESHOLD
    assert {(info["kl_penalty"], info["kl_bonus"]) for info in early} == {(0.0, 0.0)}


REWARDS = (
    1,
    True,
    np.float32(0.1),
    np.float64(0.2),
    np.int64(-3),
    np.bool_(True),
    np.array(0.5, np.float32),
)


def test_monitor_passes_the_reward_object(tmp_path):
    env = on_line(tmp_path, rewards=REWARDS, mode="monitor", **WEIGHTS)
    env.reset()
    for n in range(30):
        _, reward, terminated, _, info = env.step(n % 3)
        given = spy_of(env).returned[1]
        assert reward is given
        assert type(info["base_reward"]) is float
        assert info["base_reward"] == info["shaped_reward"] == float(given)
        if terminated:
            env.reset()


@pytest.mark.parametrize("mode", ["fine_tuning", "exploration"])
def test_shaped_rewards_are_floats(tmp_path, mode):
    _, results = drift(tmp_path, rewards=REWARDS, mode=mode)
    assert {type(result[1]) for result in results} == {float}
    assert [result[4]["base_reward"] for result in results[:7]] == [float(r) for r in REWARDS]


@pytest.mark.parametrize("prefix", ["", "drift/"])
def test_info_keys_are_the_same_floats_on_every_step(tmp_path, prefix):
    env, results = drift(tmp_path, info_prefix=prefix)
    assert env.reset()[1] == {}
    assert any(result[2] for result in results)
    for *_, info in results:
        assert info.keys() == {prefix + key for key in ALL_KEYS} | {"place"}
        numbers = [info[prefix + key] for key in ALL_KEYS]
        assert {type(number) for number in numbers} == {float}
        assert all(map(math.isfinite, numbers))


def test_info_on_reset_has_the_keys_of_a_step(tmp_path):
    env = on_line(tmp_path, info_on_reset=True, info_prefix="p.")
    for _ in range(3):
        _, info = env.reset()
        assert info.keys() == {"p." + key for key in ALL_KEYS}
        assert {type(value) for value in info.values()} == {float}
        assert info["p.base_reward"] == info["p.shaped_reward"] == 0.0
        play(env, 5)
    assert env.reset()[1]["p.kl_divergence"] == env.get_kl_statistics()["current"]


def test_what_the_environment_returned_passes_through(tmp_path):
    shared = {"mine": [1]}
    env = LLMTrainingWrapper(Spy(Line((3,), info=shared)), tmp_path)
    spy = spy_of(env)
    for _ in range(2):
        observation, info = env.reset()
        assert observation is spy.returned[0]
        assert info is spy.returned[1]
        for _ in range(3):
            result = env.step(1)
            assert result[0] is spy.returned[0]
            assert result[2:4] == spy.returned[2:4]
            assert result[4]["mine"] is shared["mine"]
            result[4]["outer"] = 1
    assert shared == {"mine": [1]}


def test_divergence_is_that_of_the_drift_wrapper(tmp_path):
    options = {"window": 16, "min_window": 4, "obs_bins": 4, "epsilon": 0.25}
    drifting = JointKLDivergenceWrapper(gym.make("CartPole-v1"), **options)
    shaping = LLMTrainingWrapper(gym.make("CartPole-v1"), tmp_path, **options)
    for (o, *_, i), (p, *_, j) in zip(play(drifting, 5), play(shaping, 5), strict=True):
        assert np.array_equal(o, p)
        assert i.items() <= j.items()
    assert drifting.get_kl_statistics() == shaping.get_kl_statistics()
    assert drifting.kl_history == shaping.kl_history


def test_wrappers_with_other_prefixes_nest(tmp_path):
    inner = JointKLDivergenceWrapper(Line(), info_prefix="in.", window=4, min_window=1)
    env = LLMTrainingWrapper(inner, tmp_path / "a", window=4, min_window=1)
    *_, info = play(env, 8)[-1]
    assert info["in.kl_divergence"] == info["kl_divergence"]
    with pytest.raises(ValueError, match="info_prefix='' already; give this one another prefix"):
        LLMTrainingWrapper(env, tmp_path / "b")
    with pytest.raises(ValueError, match="info_prefix='' already; give this one another prefix"):
        JointKLDivergenceWrapper(env)
    assert not (tmp_path / "b").exists()


def test_statistics_are_those_of_the_run(tmp_path):
    env = on_line(tmp_path, lengths=(7, 5), rewards=(1.5, -2.0), window=8, min_window=3, **WEIGHTS)
    assert env.get_training_statistics() == {
        "num_steps": 0,
        "num_episodes": 0,
        "mean_reward": 0.0,
        "mean_shaped_reward": 0.0,
        "mean_kl": 0.0,
        "kl_penalty_weight": PENALTY,
    }
    results = play(env, 9, actions=DRIFTING)
    env.reset()
    results += [env.step(1), env.step(2)]
    base = [step[2] for step in spy_of(env).steps]
    shaped = [result[1] for result in results]
    # Both windows hold three pairs from the sixth step on.
    values = [result[4]["kl_divergence"] for result in results[5:]]
    assert_crosses(values)
    statistics = env.get_training_statistics()
    assert statistics.pop("mean_reward") == pytest.approx(math.fsum(base) / 57, abs=1e-12)
    assert statistics.pop("mean_shaped_reward") == pytest.approx(math.fsum(shaped) / 57, abs=1e-12)
    assert statistics.pop("mean_kl") == pytest.approx(math.fsum(values) / 52, abs=1e-12)
    assert statistics == {"num_steps": 57, "num_episodes": 9, "kl_penalty_weight": PENALTY}
    json.dumps(env.get_training_statistics(), allow_nan=False)


def test_statistics_outlive_a_reset_of_the_divergence(tmp_path):
    env = on_line(tmp_path)
    values = [result[4]["kl_divergence"] for result in play(env, 3)]
    env.reset_kl()
    values += [result[4]["kl_divergence"] for result in play(env, 3)]
    # The first step after each beginning reports nothing.
    mean = math.fsum(values) / (len(values) - 2)
    assert env.get_training_statistics()["mean_kl"] == pytest.approx(mean, abs=1e-12)
    assert env.get_training_statistics()["num_steps"] == 24
    assert len(names(tmp_path)) == 1
