"""The wrapper in Gymnasium: specs, recorded arguments, `check_env` and vector environments."""

import inspect
import json
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from wrapper_harness import ALL_KEYS, Controller, Line, load, names, on_line, play, recorded

import kl_proteus
from kl_proteus import JointKLDivergenceWrapper, LLMTrainingWrapper

SIGNATURE = inspect.signature(LLMTrainingWrapper.__init__).parameters
OPTIONS = {
    "format_type": "completion",
    "kl_penalty_weight": 0.25,
    "kl_bonus_weight": 0.125,
    "kl_threshold": 0.01,
    "mode": "exploration",
    "gamma": 0.5,
    "min_margin": 1.0,
    "obs_bins": [3, 4, 5, 6],
    "action_bins": 2,
    "history_size": 9,
    "epsilon": 0.25,
    "normalize_action": True,
    "window": 6,
    "lag": 6,
    "obs_range": [[-1, -2, None, -4], 4.0],
    "obs_scale": 2.0,
    "min_window": 2,
    "axis_histograms": False,
    "shape_on": "excess",
    "info_prefix": "kl.",
    "info_on_reset": True,
    "drift_detector": {"false_alarm_every": 500, "window": 2, "calibration_windows": 3},
    "episode_statistics": True,
    "task_description": "Balance.",
    "observation_formatter": "builtins:str",
    "action_formatter": "builtins:str",
    "action_parser": "builtins:int",
}


def test_signature_is_that_of_the_contract():
    names_in_order = list(SIGNATURE)[1:]
    assert names_in_order[:8] == [
        "env",
        "output_dir",
        "format_type",
        "kl_penalty_weight",
        "kl_bonus_weight",
        "kl_threshold",
        "mode",
        "gamma",
    ]
    defaults = {name: SIGNATURE[name].default for name in names_in_order[1:]}
    assert (
        defaults.items()
        >= {
            "output_dir": "training_data",
            "format_type": "chat",
            "kl_penalty_weight": 0.1,
            "kl_bonus_weight": 0.05,
            "kl_threshold": 0.5,
            "mode": "fine_tuning",
            "gamma": 0.99,
            "min_margin": 0.0,
        }.items()
    )
    kinds = [SIGNATURE[name].kind for name in names_in_order]
    first = names_in_order.index("gamma")
    assert set(kinds[:first]) == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert set(kinds[first:]) == {inspect.Parameter.KEYWORD_ONLY}
    inherited = inspect.signature(JointKLDivergenceWrapper.__init__).parameters
    for name, parameter in list(inherited.items())[2:]:
        assert SIGNATURE[name].default == parameter.default, name
    assert issubclass(LLMTrainingWrapper, JointKLDivergenceWrapper)
    assert kl_proteus.LLMTrainingWrapper is LLMTrainingWrapper


def test_recorded_arguments_are_those_of_the_signature(tmp_path):
    env = on_line(tmp_path)
    assert list(env._saved_kwargs) == [name for name in SIGNATURE if name not in ("self", "env")]
    given = {"output_dir": str(tmp_path), "window": 4, "min_window": 1}
    for name, value in env._saved_kwargs.items():
        assert value == given.get(name, SIGNATURE[name].default), name


def wrapped(directory, **options):
    return LLMTrainingWrapper(gym.make("CartPole-v1"), directory, **(OPTIONS | options))


def through_json(env):
    return EnvSpec.from_json(env.spec.to_json())


@pytest.mark.parametrize("spec_of", [lambda env: env.spec, through_json], ids=["spec", "json"])
def test_an_environment_is_made_again_from_its_spec(tmp_path, spec_of):
    env = wrapped(tmp_path)
    again = gym.make(spec_of(env))
    assert type(again) is LLMTrainingWrapper
    assert again._saved_kwargs == env._saved_kwargs
    assert env.spec.additional_wrappers[-1].kwargs == OPTIONS | {
        "output_dir": str(tmp_path),
        "normalize_obs": True,
        "reference": None,
        "action_range": None,
        "encoder": "auto",
    }
    for ours, theirs in zip(play(env, 4), play(again, 4), strict=True):
        assert ours[1:] == theirs[1:]
    assert env.kl_state_dict() == again.kl_state_dict()
    assert any(row["kl_penalties"][-1] for row in recorded(tmp_path))
    # Both record, each in a file of its own.
    assert names(tmp_path) == [f"episodes-CartPole-v1-000{n}.jsonl" for n in range(2)]


def test_arguments_of_numpy_and_pathlib_can_be_saved(tmp_path):
    env = LLMTrainingWrapper(
        gym.make("CartPole-v1"),
        Path(tmp_path),
        kl_penalty_weight=np.float32(0.5),
        kl_bonus_weight=np.float64(0.25),
        kl_threshold=np.int64(1),
        gamma=np.float32(0.5),
        min_margin=np.int32(2),
        obs_bins=np.array([2, 3, 4, 5]),
        obs_range=np.array([[-1.0] * 4, [1.0] * 4]),
        action_bins=np.int64(2),
        normalize_obs=np.bool_(True),
        normalize_action=np.bool_(True),
        info_on_reset=np.bool_(True),
        window=np.int64(8),
    )
    again = gym.make(through_json(env))
    assert again._saved_kwargs == env._saved_kwargs
    assert again._saved_kwargs["obs_range"] == [[-1.0] * 4, [1.0] * 4]
    assert play(env, 2)[-1][4] == play(again, 2)[-1][4]


def test_a_reference_survives_in_the_spec(tmp_path):
    donor = LLMTrainingWrapper(gym.make("CartPole-v1"), tmp_path / "donor")
    play(donor, 3)
    reference = donor.snapshot()
    env = LLMTrainingWrapper(gym.make("CartPole-v1"), tmp_path, window=8, reference=reference)
    again = gym.make(through_json(env))
    assert play(env, 2, seed=5)[-1][4] == play(again, 2, seed=5)[-1][4]
    reference["counts"].clear()
    assert env.spec.additional_wrappers[-1].kwargs["reference"]["counts"]


def test_a_controller_goes_with_the_spec_and_not_into_json(tmp_path):
    env = LLMTrainingWrapper(gym.make("CartPole-v1"), tmp_path, kl_penalty_weight=Controller(0.75))
    again = gym.make(env.spec)
    assert again.get_training_statistics()["kl_penalty_weight"] == 0.75
    with pytest.raises(TypeError, match="not JSON serializable"):
        env.spec.to_json()


def warnings_of(env):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env, skip_render_check=True)
    return {str(warning.message).replace(str(env), "the environment") for warning in caught}


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "Pendulum-v1", "Blackjack-v1"])
@pytest.mark.parametrize("info_on_reset", [False, True])
def test_check_env_has_nothing_new_to_say(tmp_path, env_id, info_on_reset):
    env = LLMTrainingWrapper(gym.make(env_id), tmp_path, info_on_reset=info_on_reset)
    assert warnings_of(env) == warnings_of(gym.make(env_id))


def test_a_seeded_run_is_the_same_with_and_without(tmp_path):
    plain = gym.make("Pendulum-v1", max_episode_steps=30)
    inner = gym.make("Pendulum-v1", max_episode_steps=30)
    env = LLMTrainingWrapper(inner, tmp_path, mode="monitor", window=8)
    for ours, theirs in zip(play(env, 3), play(plain, 3), strict=True):
        assert ours[0].tobytes() == theirs[0].tobytes()
        assert ours[1:4] == theirs[1:4]
    ours, theirs = (each.unwrapped.np_random.bit_generator.state for each in (env, plain))
    assert ours == theirs
    for name in ("observation_space", "action_space", "metadata", "render_mode"):
        assert getattr(env, name) is getattr(inner, name)


def test_close_is_idempotent_and_a_context_ends_with_it(tmp_path):
    with on_line(tmp_path) as env:
        play(env, 1)
    env.close()
    env.close()
    # The file is free, so the next wrapper continues it.
    play(on_line(tmp_path), 1)
    assert len(names(tmp_path)) == 1


def make_worker(directory, number):
    """An environment whose episodes tell which worker played them."""
    line = Line((3 + number,), (float(number),))
    return LLMTrainingWrapper(line, directory, window=4, min_window=1)


class Worker:
    """Makes the environment inside the process that plays it."""

    def __init__(self, directory, number):
        self.arguments = directory, number

    def __call__(self):
        return make_worker(*self.arguments)


ALL_FLOAT = {key: {np.dtype(np.float64)} for key in ALL_KEYS}


def dtypes_of(envs, steps):
    """The dtypes of every key over a run, all of whose actions are 1."""
    dtypes = {}
    for _ in range(steps):
        *_, infos = envs.step(np.ones(2, np.int64))
        for key in infos.keys() & ALL_KEYS:
            dtypes.setdefault(key, set()).add(infos[key].dtype)
    return dtypes


def test_spawned_workers_have_a_file_each(tmp_path):
    envs = AsyncVectorEnv([Worker(tmp_path, n) for n in range(2)], context="spawn")
    try:
        envs.reset(seed=1)
        assert dtypes_of(envs, 24) == ALL_FLOAT
        statistics = envs.call("get_training_statistics")
    finally:
        envs.close()
    files = [load(path) for path in sorted(tmp_path.iterdir())]
    assert len(files) == 2
    by_worker = {int(rows[0]["base_rewards"][0]): rows for rows in files}
    assert by_worker.keys() == {0, 1}
    for number, rows in by_worker.items():
        # In the default mode a reset takes a step of its own, but for the first.
        assert len(rows) == 25 // (4 + number) == statistics[number]["num_episodes"]
        assert {tuple(row["base_rewards"]) for row in rows} == {(float(number),) * (3 + number)}
        assert {row["episode"] for row in rows} == set(range(len(rows)))
    env = make_worker(tmp_path, 0)
    assert len(load(env.save_all_trajectories())) == sum(
        len(row["action_texts"]) for rows in files for row in rows
    )


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_autoreset_makes_no_difference_to_what_is_recorded(tmp_path, mode):
    directory = tmp_path / "vector"
    envs = SyncVectorEnv([Worker(directory, n) for n in range(2)], autoreset_mode=mode)
    envs.reset(seed=1)
    # Four episodes of up to four steps, and a step for each reset.
    assert dtypes_of(envs, 20) == ALL_FLOAT
    envs.close()
    for number in range(2):
        alone = make_worker(tmp_path / f"alone-{number}", number)
        play(alone, 4, actions=[1])
        one = recorded(tmp_path / f"alone-{number}")
        path = directory / f"episodes-Line-000{number}.jsonl"
        assert load(path)[:4] == one


def test_statistics_of_workers_can_be_written_as_json(tmp_path):
    env = make_worker(tmp_path, 1)
    play(env, 3)
    json.dumps([env.get_training_statistics(), env.get_kl_statistics()], allow_nan=False)
