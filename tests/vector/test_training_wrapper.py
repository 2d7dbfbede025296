"""VectorLLMTrainingWrapper: rewards, infos and files are those of N single wrappers."""

import copy
import errno
import functools
import json
import pickle

import numpy as np
import pytest

from kl_proteus import LLMTrainingWrapper, ThresholdKLController, VectorLLMTrainingWrapper
from vector.harness import (
    AUTORESET_MODES,
    INFO_KEYS,
    KINDS,
    LENGTHS,
    SMALL,
    assert_same_runs,
    batches,
    factories,
    run,
    vector_of,
)

REWARD_KEYS = ("base_reward", "kl_penalty", "kl_bonus", "shaped_reward")
KEYS = (*INFO_KEYS, *REWARD_KEYS)
STEPS = 80
# The sub-environments differ in their length, which the built-in description tells.
TOLD = SMALL | {"task_description": "Play."}


def singles_of(kind, resets, directory, **settings):
    """Single wrappers in a vector environment."""

    def make(length):
        return LLMTrainingWrapper(KINDS[kind](length), directory, **(TOLD | settings))

    return vector_of([functools.partial(make, length) for length in LENGTHS], resets)


def ours_of(kind, resets, directory, how="sync", **settings):
    """The wrapper of a vector environment."""
    env = vector_of(factories(kind), resets, how)
    return VectorLLMTrainingWrapper(env, directory, **(TOLD | settings))


def files(directory):
    """Every file of a recording."""
    return {path.name: path.read_text("utf-8") for path in sorted(directory.iterdir())}


def close(env):
    for single in getattr(env, "envs", ()):
        single.close()
    env.close()


@pytest.mark.parametrize("mode", AUTORESET_MODES)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("cartpole", {}),
        ("cartpole", {"mode": "exploration", "kl_threshold": 0.7, "info_on_reset": True}),
        ("walk", {"mode": "monitor", "format_type": "preference", "gamma": 0.9}),
        ("nested", {"format_type": "completion", "info_prefix": "a/", "kl_threshold": 3.0}),
        ("spoken", {}),
    ],
    ids=["shaped", "exploration", "monitor", "nested", "text"],
)
def test_everything_is_that_of_single_wrappers(kind, mode, settings, tmp_path):
    singles = singles_of(kind, mode, tmp_path / "singles", **settings)
    wrapper = ours_of(kind, mode, tmp_path / "ours", **settings)
    actions = batches(singles, STEPS)
    ours, theirs = run(wrapper, actions, mode), run(singles, actions, mode)
    prefix = settings.get("info_prefix", "")
    assert_same_runs(ours, theirs, [prefix + key for key in KEYS])
    assert any(result[-1][prefix + "kl_divergence"].any() for result in ours if len(result) == 4)
    if settings.get("mode") != "monitor":
        assert any(result[-1][prefix + "kl_bonus"].any() for result in ours if len(result) == 4)
    wrapper.save_all_trajectories("data.jsonl")
    singles.envs[0].save_all_trajectories("data.jsonl")
    close(wrapper)
    close(singles)
    assert files(tmp_path / "ours") == files(tmp_path / "singles")
    shards = [name for name in files(tmp_path / "ours") if name.startswith("episodes-")]
    assert len(shards) == len(LENGTHS)
    totals = [env.get_training_statistics() for env in singles.envs]
    statistics = wrapper.get_training_statistics()
    for key in ("num_steps", "num_episodes"):
        assert statistics[key] == sum(total[key] for total in totals) > 0
    steps = [total["num_steps"] for total in totals]
    for key in ("mean_reward", "mean_shaped_reward"):
        expected = np.average([total[key] for total in totals], weights=steps)
        assert statistics[key] == pytest.approx(expected, abs=1e-12)


def test_processes_give_the_same_files(tmp_path):
    singles = singles_of("cartpole", "NEXT_STEP", tmp_path / "singles")
    wrapper = ours_of("cartpole", "NEXT_STEP", tmp_path / "ours", "async")
    actions = batches(singles, STEPS)
    assert_same_runs(run(wrapper, actions, "NEXT_STEP"), run(singles, actions, "NEXT_STEP"), KEYS)
    assert wrapper.env_id == "CartPole-v1"
    assert wrapper.system_prompt == singles.envs[0].system_prompt
    close(wrapper)
    close(singles)
    assert files(tmp_path / "ours") == files(tmp_path / "singles")


def test_a_native_environment_is_recorded_under_its_name(tmp_path):
    from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

    for arguments, name in (({}, "CartPoleVectorEnv"), ({"env_id": "CartPole-v1"}, "CartPole-v1")):
        directory = tmp_path / name
        env = VectorLLMTrainingWrapper(CartPoleVectorEnv(4), directory, **(SMALL | arguments))
        assert env.env_id == name
        env.reset(seed=1)
        for action in batches(env, 60):
            env.step(action)
        path = env.save_all_trajectories()
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        close(env)
        # One row a step of a completed episode.
        episodes = [
            json.loads(line)
            for file in sorted(directory.glob("episodes-*.jsonl"))
            for line in file.read_text("utf-8").splitlines()
        ]
        assert len(list(directory.glob("episodes-*.jsonl"))) == 4
        assert len(rows) == sum(len(episode["action_texts"]) for episode in episodes) > 0


@pytest.mark.parametrize("mode", AUTORESET_MODES)
def test_a_pooled_run_shapes_every_row_by_the_value_of_all(mode, tmp_path):
    wrapper = ours_of("cartpole", mode, tmp_path, pooled=True)
    shaped = 0
    for result in run(wrapper, batches(wrapper, STEPS), mode):
        if len(result) == 2:
            continue
        _, rewards, done, infos = result
        assert infos["_kl_divergence"].all()
        assert len(set(infos["kl_divergence"].tolist())) == 1
        acts = infos["_kl_bonus"]
        if mode == "SAME_STEP":
            np.testing.assert_array_equal(acts, ~done)
        bonus = infos["kl_bonus"][acts]
        assert len(set(bonus.tolist())) <= 1
        shaped += bonus.any()
        np.testing.assert_array_equal(rewards[acts], infos["shaped_reward"][acts])
    assert shaped > 3
    close(wrapper)


def test_one_controller_serves_all_rows(tmp_path):
    controller = ThresholdKLController(init_kl_coef=0.1, target=1e-6, unit="nats/step")
    wrapper = ours_of("cartpole", "SAME_STEP", tmp_path, kl_penalty_weight=controller, window=4)
    weights = []
    for action in [wrapper.reset(seed=1), *batches(wrapper, 30)][1:]:
        before = wrapper.get_training_statistics()["kl_penalty_weight"]
        infos = wrapper.step(action)[4]
        rows = infos["kl_penalty"] > 0.0
        excess = infos["kl_divergence"][rows] - 0.5
        np.testing.assert_allclose(infos["kl_penalty"][rows], before * excess, rtol=1e-12)
        weights.append((before, rows.sum()))
    assert weights[-1][0] > weights[0][0]
    assert sum(rows for _, rows in weights) > 5
    close(wrapper)


class Full(VectorLLMTrainingWrapper):
    """Finds the disk full."""

    full = False

    def _reserve(self, texts, done):
        if self.full and done.any():
            raise OSError(errno.ENOSPC, "No space left on device")
        super()._reserve(texts, done)


@pytest.mark.parametrize("mode", AUTORESET_MODES)
def test_a_full_disk_counts_nothing_and_leaves_the_recording(mode, tmp_path):
    wrapper = Full(vector_of(factories("walk"), mode), tmp_path, **SMALL)
    actions = batches(wrapper, 30)
    wrapper.reset(seed=5)
    for action in actions[:3]:
        wrapper.step(action)
    before, statistics = wrapper.get_kl_statistics(), wrapper.get_training_statistics()
    wrapper.full = True
    with pytest.raises(OSError, match="No space"):
        wrapper.step(actions[3])  # the first row ends
    assert (wrapper.get_kl_statistics(), wrapper.get_training_statistics()) == (before, statistics)
    wrapper.full = False
    if mode == "DISABLED":
        wrapper.reset(options={"reset_mask": np.array([True, False, False])})
    steps = [one["steps"] for one in before]
    wrapper.step(actions[4])
    resets = mode == "NEXT_STEP"
    # What waited did not meet the next action, and a row that reset made no pair.
    expected = [steps[0] + (not resets), steps[1] + 1, steps[2] + 1]
    assert [one["steps"] for one in wrapper.get_kl_statistics()] == expected
    close(wrapper)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_reward_that_is_no_number_counts_nothing(bad, tmp_path):
    env = vector_of(factories("walk"), "NEXT_STEP")
    wrapper = VectorLLMTrainingWrapper(env, tmp_path, **SMALL)
    wrapper.reset(seed=1)
    wrapper.step(np.zeros(3, int))
    before = wrapper.kl_state_dict()["trackers"]
    plain = env.envs[1].step
    env.envs[1].step = lambda action: (plain(action)[0], bad, False, False, {})
    with pytest.raises(ValueError, match="of sub-environment 1"):
        wrapper.step(np.zeros(3, int))
    env.envs[1].step = plain
    after = wrapper.kl_state_dict()["trackers"]
    assert [one["drift"] for one in after] == [one["drift"] for one in before]
    assert [one["observed"] for one in after] != [one["observed"] for one in before]
    close(wrapper)


def test_rewards_that_are_no_scalars_are_refused(tmp_path):
    env = vector_of(factories("walk"), "NEXT_STEP")
    wrapper = VectorLLMTrainingWrapper(env, tmp_path, **SMALL)
    wrapper.reset(seed=1)
    step = env.step
    env.step = lambda actions: (step(actions)[0], np.ones((3, 2)), *step(actions)[2:])
    with pytest.raises(TypeError, match=r"one real number a row \(3 here\)"):
        wrapper.step(np.zeros(3, int))
    close(wrapper)


@pytest.mark.parametrize("method", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_records_to_files_of_its_own(method, tmp_path):
    wrapper = ours_of("walk", "SAME_STEP", tmp_path)
    actions = batches(wrapper, 40)
    run(wrapper, actions[:20], "SAME_STEP")
    other = method(wrapper)
    results = [run(env, actions[20:], "SAME_STEP", seed=None) for env in (wrapper, other)]
    assert_same_runs(results[0], results[1], KEYS)
    assert len(list(tmp_path.glob("episodes-*"))) == 6
    close(wrapper)
    close(other)


def test_an_observation_formatter_that_fails_is_raised_by_the_step_that_needs_it(tmp_path):
    def fails(observation):
        if observation == 3:
            raise RuntimeError("three")
        return str(observation)

    wrapper = ours_of("walk", "DISABLED", tmp_path, observation_formatter=fails)
    wrapper.reset(seed=1)
    with pytest.raises(RuntimeError, match="three"):
        run(wrapper, batches(wrapper, 40), "DISABLED", seed=None)
    steps = [one["steps"] for one in wrapper.get_kl_statistics()]
    with pytest.raises(RuntimeError, match="three"):
        wrapper.step(np.zeros(3, int))
    assert [one["steps"] for one in wrapper.get_kl_statistics()] == steps
    close(wrapper)


def test_a_loaded_state_records_from_the_next_episode_on(tmp_path):
    wrapper = ours_of("walk", "SAME_STEP", tmp_path / "a")
    run(wrapper, batches(wrapper, 10), "SAME_STEP")
    other = ours_of("walk", "SAME_STEP", tmp_path / "b")
    other.load_kl_state_dict(wrapper.kl_state_dict())
    assert other.get_kl_statistics() == wrapper.get_kl_statistics()
    close(wrapper)
    close(other)
