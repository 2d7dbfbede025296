"""Bad arguments: each is named, and nothing is created."""

import inspect
import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from wrapper_harness import Line, contents, load, names, on_line, play

from kl_proteus import LLMTrainingWrapper

BAD = [
    ("output_dir", 7, TypeError, "output_dir must be a path, got 7"),
    ("output_dir", None, TypeError, "output_dir must be a path, got None"),
    ("output_dir", b"x", TypeError, "output_dir must be a path, got b'x'"),
    ("output_dir", "", ValueError, "output_dir must be the path of a directory, got ''"),
    ("output_dir", "a\0b", ValueError, "output_dir must be the path of a directory"),
    ("format_type", "dpo", ValueError, "format_type must be one of 'chat', 'completion', 'pref"),
    ("format_type", None, TypeError, "format_type must be a str, got None"),
    ("kl_penalty_weight", -0.1, ValueError, "kl_penalty_weight must be >= 0, got -0.1"),
    ("kl_penalty_weight", math.nan, ValueError, "kl_penalty_weight must be a finite number"),
    ("kl_penalty_weight", "0.1", TypeError, "kl_penalty_weight must be a real number or a contr"),
    ("kl_penalty_weight", True, TypeError, "kl_penalty_weight must be a real number, got True"),
    ("kl_penalty_weight", None, TypeError, "kl_penalty_weight must be a real number or a contr"),
    ("kl_bonus_weight", -1, ValueError, "kl_bonus_weight must be >= 0, got -1"),
    ("kl_bonus_weight", math.inf, ValueError, "kl_bonus_weight must be a finite number, got inf"),
    ("kl_bonus_weight", [0.1], TypeError, r"kl_bonus_weight must be a real number, got \[0.1\]"),
    ("kl_threshold", 0, ValueError, "kl_threshold must be > 0, got 0"),
    ("kl_threshold", -0.5, ValueError, "kl_threshold must be > 0, got -0.5"),
    ("kl_threshold", math.nan, ValueError, "kl_threshold must be a finite number, got nan"),
    ("kl_threshold", "1", TypeError, "kl_threshold must be a real number, got '1'"),
    ("mode", "train", ValueError, "mode must be one of 'fine_tuning', 'exploration', 'monitor'"),
    ("mode", 0, TypeError, "mode must be a str, got 0"),
    ("gamma", 1.5, ValueError, "gamma must be >= 0 and <= 1, got 1.5"),
    ("gamma", "x", TypeError, "gamma must be a real number, got 'x'"),
    ("min_margin", -1.0, ValueError, "min_margin must be >= 0, got -1.0"),
    ("min_margin", math.inf, ValueError, "min_margin must be a finite number, got inf"),
    ("min_margin", None, TypeError, "min_margin must be a real number, got None"),
    ("obs_bins", 0, ValueError, "obs_bins must be from 1 to"),
    ("obs_bins", 2.5, TypeError, "obs_bins must hold integers, got 2.5"),
    ("obs_bins", [10, 10], ValueError, r"obs_bins must be one number or one per axis \(1 here\)"),
    ("action_bins", True, TypeError, "action_bins must hold integers, got True"),
    ("history_size", 0, ValueError, "history_size"),
    ("history_size", "9", TypeError, "history_size"),
    ("epsilon", 0.0, ValueError, "epsilon"),
    ("epsilon", math.nan, ValueError, "epsilon"),
    ("epsilon", "1", TypeError, "epsilon"),
    ("normalize_obs", 1, TypeError, "normalize_obs must be True or False, got 1"),
    ("normalize_action", None, TypeError, "normalize_action must be True or False, got None"),
    ("window", 0, ValueError, "window"),
    ("window", 1.5, TypeError, "window"),
    ("lag", 0, ValueError, "lag"),
    ("reference", 7, TypeError, "reference must be a snapshot"),
    ("reference", {}, ValueError, "snapshot"),
    ("obs_range", 7, TypeError, r"obs_range must be \(low, high\), got 7"),
    ("obs_range", (1.0, 0.0), ValueError, "obs_range must have low <= high"),
    ("action_range", (0.0,), ValueError, r"action_range must be \(low, high\), got 1 items"),
    ("obs_scale", 0.0, ValueError, "obs_scale must be above 0"),
    ("encoder", 7, TypeError, "encoder must be a callable or a .* string, got 7"),
    ("encoder", "nowhere:f", ValueError, "encoder must name a module, got 'nowhere:f'"),
    ("min_window", 0, ValueError, "min_window"),
    ("min_window", None, TypeError, "min_window"),
    ("axis_histograms", 2, TypeError, "axis_histograms"),
    ("info_prefix", 7, TypeError, "info_prefix must be a string, got int"),
    ("info_prefix", "_x", ValueError, "info_prefix must not start with an underscore, got '_x'"),
    ("info_on_reset", "yes", TypeError, "info_on_reset must be True or False, got 'yes'"),
    ("shape_on", "floor", ValueError, "shape_on"),
    ("episode_statistics", 1, TypeError, "episode_statistics must be True or False, got 1"),
    ("drift_detector", 0, ValueError, "drift_detector: false_alarm_every must be a number"),
    ("task_description", " ", ValueError, "task_description must hold at least one visible"),
    ("task_description", 7, TypeError, "task_description must be a str, got 7"),
    ("observation_formatter", 7, TypeError, "observation_formatter must be a callable or a"),
    ("observation_formatter", "x", ValueError, 'observation_formatter must be a "module:function"'),
    ("action_formatter", "os:nothing", ValueError, "action_formatter must name a function"),
    ("action_formatter", lambda _: 7, TypeError, "the result of action_formatter must be a str"),
    ("action_formatter", lambda _: "", ValueError, "the result of action_formatter must hold at l"),
    ("action_parser", "nowhere:f", ValueError, "action_parser must name a module"),
    ("action_parser", "os:name", TypeError, "action_parser must name a callable, got 'os:name'"),
]


@pytest.mark.parametrize(("name", "value", "error", "message"), BAD)
def test_bad_argument_is_named_and_creates_nothing(
    tmp_path, monkeypatch, name, value, error, message
):
    monkeypatch.chdir(tmp_path)
    arguments = {"output_dir": "out", name: value}
    with pytest.raises(error, match=message):
        LLMTrainingWrapper(Line(), **arguments)
    assert names(tmp_path) == []


def test_every_argument_has_a_bad_value():
    arguments = set(inspect.signature(LLMTrainingWrapper).parameters) - {"env"}
    assert {name for name, *_ in BAD} == arguments


def test_an_unknown_argument_is_refused(tmp_path):
    with pytest.raises(TypeError, match="unexpected keyword argument 'threshold'"):
        LLMTrainingWrapper(Line(), tmp_path / "out", threshold=1)
    with pytest.raises(TypeError, match="positional argument"):
        LLMTrainingWrapper(Line(), tmp_path / "out", "chat", 0.1, 0.05, 0.5, "monitor", 0.9)
    assert names(tmp_path) == []


class Custom(spaces.Space):
    """A space that Gymnasium does not know."""


def test_an_action_space_without_text_creates_nothing(tmp_path):
    env = gym.Env()
    env.observation_space, env.action_space = spaces.Discrete(2), Custom()
    with pytest.raises(TypeError, match=r"action.*Custom"):
        LLMTrainingWrapper(env, tmp_path / "out")
    assert names(tmp_path) == []


def test_bad_argument_leaves_an_existing_recording(tmp_path):
    with on_line(tmp_path) as env:
        play(env, 2)
        env.save_all_trajectories()
    shard = next(tmp_path.glob("episodes-*"))
    shard.write_bytes(shard.read_bytes() + b'{"torn":')
    before = contents(tmp_path)
    for name, value, error, message in BAD:
        if name != "output_dir":
            with pytest.raises(error, match=message):
                LLMTrainingWrapper(Line(), tmp_path, **{name: value})
    assert contents(tmp_path) == before


def test_limits_that_are_allowed(tmp_path):
    env = on_line(
        tmp_path,
        kl_penalty_weight=0,
        kl_bonus_weight=0,
        kl_threshold=5e-324,
        gamma=0,
        min_margin=0,
        obs_bins=1,
        history_size=1,
        window=1,
        epsilon=1e6,
    )
    assert [result[1] for result in play(env, 3)] == [1.0] * 12
    env = LLMTrainingWrapper(Line(), tmp_path, "preference", gamma=1, kl_penalty_weight=np.int8(1))
    play(env, 2)
    assert len(load(env.save_all_trajectories())) > 0
