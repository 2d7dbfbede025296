"""The wrapper in an environment's specification."""

import copy
import importlib
import inspect
import json
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from environments.scripted import play, random_actions, values
from kl_proteus import JointKLDivergenceWrapper

ID = "CartPole-v1"
# One value besides the default for every argument.
EVERY_ARGUMENT = {
    "obs_bins": [3, 4, 5, 6],
    "action_bins": 3,
    "history_size": 50,
    "epsilon": 0.25,
    "normalize_obs": True,
    "normalize_action": False,
    "window": 20,
    "lag": 5,
    "reference": None,
    "obs_range": [[-1, None, -1, -2.5], [1, None, 1, 2.5]],
    "action_range": None,
    "obs_scale": 2.0,
    "encoder": None,
    "min_window": 4,
    "axis_histograms": True,
    "info_prefix": "kl/",
    "info_on_reset": True,
    "drift_detector": {"false_alarm_every": 500, "window": 2, "calibration_windows": 3},
    "episode_statistics": True,
}


def wrapped(**settings):
    return JointKLDivergenceWrapper(gym.make(ID), **settings)


def own_spec(env):
    """What the specification says about the wrapper."""
    return env.spec.additional_wrappers[-1]


def through_make(env):
    return gym.make(env.spec)


def through_json(env):
    return gym.make(EnvSpec.from_json(env.spec.to_json()))


def test_what_is_recorded_is_the_signature():
    names = set(inspect.signature(JointKLDivergenceWrapper).parameters) - {"env"}
    assert set(own_spec(wrapped()).kwargs) == names == set(EVERY_ARGUMENT)
    assert own_spec(wrapped(**EVERY_ARGUMENT)).kwargs == EVERY_ARGUMENT


def test_the_class_is_found_where_the_specification_says():
    spec = own_spec(wrapped())
    module, name = spec.entry_point.split(":")
    assert getattr(importlib.import_module(module), name) is JointKLDivergenceWrapper
    assert spec.name == "JointKLDivergenceWrapper"


def test_the_environments_own_specification_is_kept():
    bare = gym.make(ID, max_episode_steps=17)
    env = JointKLDivergenceWrapper(bare)
    assert env.spec.id == ID
    assert env.spec.max_episode_steps == 17
    assert env.spec.additional_wrappers[:-1] == bare.spec.additional_wrappers
    assert bare.spec.additional_wrappers == ()


@pytest.mark.parametrize("rebuild", [through_make, through_json])
def test_a_rebuilt_environment_is_the_same(rebuild):
    env = wrapped(**EVERY_ARGUMENT)
    again = rebuild(env)
    assert again.spec == env.spec
    actions = random_actions(env.action_space, 60)
    infos = play(env, actions)
    assert play(again, actions) == infos
    assert max(values(infos[-1], "kl/")) > 0.0
    assert again.get_kl_statistics() == env.get_kl_statistics()


@pytest.mark.parametrize("rebuild", [through_make, through_json])
@pytest.mark.parametrize(
    ("argument", "given", "recorded"),
    [
        ("obs_bins", np.array([3, 4, 5, 6]), [3, 4, 5, 6]),
        ("obs_bins", (3, 4, 5, 6), [3, 4, 5, 6]),
        ("obs_bins", range(3, 7), [3, 4, 5, 6]),
        ("obs_bins", np.int64(7), 7),
        ("action_bins", np.uint8(7), 7),
        ("epsilon", np.float32(0.5), 0.5),
        ("obs_scale", np.float64(3.0), 3.0),
        ("window", np.int32(12), 12),
        ("min_window", np.int32(12), 12),
        ("history_size", np.int32(12), 12),
        ("info_on_reset", np.True_, True),
        ("normalize_action", np.False_, False),
        ("obs_range", (-1, 1), [-1, 1]),
        ("obs_range", (np.float32(-1), np.full(4, 2.5)), [-1.0, [2.5] * 4]),
        ("obs_range", np.array([[-1.0] * 4, [np.inf] * 4]), [[-1.0] * 4, [np.inf] * 4]),
        ("obs_range", (None, (1, None, np.inf, 2)), [None, [1, None, np.inf, 2]]),
        ("action_range", (0, 1), [0, 1]),
    ],
    ids=str,
)
def test_values_are_recorded_as_json_has_them(rebuild, argument, given, recorded):
    env = wrapped(**{argument: given})
    kept = own_spec(env).kwargs[argument]
    assert kept == recorded
    assert type(kept) is type(recorded)
    again = rebuild(env)
    assert own_spec(again).kwargs == own_spec(env).kwargs
    actions = random_actions(env.action_space, 20)
    play(env, actions)
    play(again, actions)
    assert again.snapshot() == env.snapshot()


@pytest.mark.parametrize("rebuild", [through_make, through_json])
@pytest.mark.parametrize("form", ["dict", "path", "text of a path"])
def test_a_reference_survives(rebuild, form, tmp_path):
    recorded = wrapped()
    play(recorded, random_actions(recorded.action_space, 50))
    snapshot = recorded.snapshot()
    path = tmp_path / "reference.json"
    path.write_text(json.dumps(snapshot), encoding="utf-8")
    given = {"dict": snapshot, "path": path, "text of a path": str(path)}[form]
    env = wrapped(reference=given, window=20, min_window=5)
    assert own_spec(env).kwargs["reference"] == (snapshot if form == "dict" else str(path))
    actions = random_actions(env.action_space, 40, seed=2)
    infos = play(env, actions)
    assert infos[-1]["kl_divergence"] > 0.0
    assert play(rebuild(env), actions) == infos


@pytest.mark.parametrize("rebuild", [through_make, through_json])
def test_an_encoder_by_name_survives(rebuild):
    env = wrapped(encoder="environments.named_encoders:halves", window=20, min_window=5)
    actions = random_actions(env.action_space, 60)
    assert play(rebuild(env), actions) == play(env, actions)


def test_an_encoder_without_a_name_survives_make_and_is_refused_by_json():
    env = wrapped(encoder=lambda observation: observation[:2], window=20, min_window=5)
    actions = random_actions(env.action_space, 60)
    assert play(through_make(env), actions) == play(env, actions)
    with pytest.raises(TypeError, match="function"):
        env.spec.to_json()


def test_an_encoder_that_cannot_be_copied_is_no_obstacle():
    class Locked:
        lock = threading.Lock()

        def __init__(self):
            self.own = threading.Lock()

        def __call__(self, observation):
            return observation[:1]

    encoder = Locked()
    env = wrapped(encoder=encoder)
    assert own_spec(env).kwargs["encoder"] is encoder
    play(env, [0, 1])


def test_later_changes_of_an_argument_change_nothing():
    recorded = wrapped()
    play(recorded, random_actions(recorded.action_space, 50))
    settings = {
        "obs_bins": [3, 4, 5, 6],
        "obs_range": [[-1, -1, -1, -1], [1, 1, 1, 1]],
        "window": 20,
        "min_window": 5,
    }
    env = wrapped(**settings)
    settings["obs_bins"][0] = 99
    settings["obs_range"][0][0] = -99
    kept = own_spec(env).kwargs
    assert kept["obs_bins"] == [3, 4, 5, 6]
    assert kept["obs_range"][0] == [-1, -1, -1, -1]

    reference = recorded.snapshot()
    env = wrapped(reference=reference, window=20, min_window=5)
    reference["counts"].clear()
    assert own_spec(env).kwargs["reference"] == recorded.snapshot()
    assert own_spec(through_make(env)).kwargs["reference"] == recorded.snapshot()


def test_can_be_named_in_the_specification_that_is_made():
    spec = copy.deepcopy(gym.spec(ID))  # the registry hands out its own
    spec.additional_wrappers = (
        JointKLDivergenceWrapper.wrapper_spec(window=10, min_window=1, info_prefix="a/"),
        JointKLDivergenceWrapper.wrapper_spec(window=5, min_window=1, info_prefix="b/"),
    )
    info = play(gym.make(spec), [0, 1] * 10)[-1]
    assert info["a/kl_divergence"] != info["b/kl_divergence"]


def test_an_environment_without_a_specification_has_none():
    assert JointKLDivergenceWrapper(gym.make(ID).unwrapped.__class__()).spec is None
