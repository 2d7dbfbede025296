"""A detector that a wrapper feeds."""

import copy
import dataclasses
import json
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from environments.scripted import make_walk, play, proceed, random_actions
from kl_proteus import DriftAlarm, DriftDetector, JointKLDivergenceWrapper, LLMTrainingWrapper
from kl_proteus.spaces import layout_from_space

SMALL = {"false_alarm_every": 500, "window": 50, "calibration_windows": 10}
# The detector's window is 50 pairs; those of the wrapper are shorter, longer, or none.
MODES = {
    "adjacent, shorter": {"window": 5},
    "adjacent, longer": {"window": 100},
    "lag": {"window": 7, "lag": 40},
    "lifetime": {"window": None},
}
UNCHANGED = 700  # 14 windows
rng = np.random.default_rng


def switching_actions(steps=120):
    """Any action while the detector learns, then always the same."""
    return [*rng(5).integers(0, 3, UNCHANGED).tolist(), *[2] * steps]


def keep_alarm(alarm):
    """A callback that is found by name."""
    ALARMS.append(alarm)


ALARMS: list[DriftAlarm] = []


def without_axes(state):
    """A state without what only a wrapper knows."""
    for alarm in state["state"]["alarms"]:
        alarm["axes"] = []
    return state


# So many bins are too many for windows so short; what is counted is the same.
@pytest.mark.filterwarnings("ignore:the KL drift may be blind:UserWarning")
@pytest.mark.parametrize("settings", MODES.values(), ids=MODES)
@pytest.mark.parametrize("fast", [False, True])
def test_it_counts_the_pairs_of_the_wrapper(settings, fast):
    env = gym.make("CartPole-v1")
    wrapper = JointKLDivergenceWrapper(env, drift_detector=SMALL | {"fast": fast}, **settings)
    alone = DriftDetector(**SMALL, fast=fast)
    observation_layout = layout_from_space(env.observation_space, "observation", bins=10)
    observation, _ = wrapper.reset(seed=3)
    random = rng(1)
    for step in range(2000):
        # From random to always the same, and back, so that cells come and go.
        action = int(random.integers(2)) if step % 700 < 500 else step % 2
        alarmed = alone.update(observation_layout.key(observation), action)
        observation, _, terminated, truncated, info = wrapper.step(action)
        assert info["kl_alarm"] == alarmed
        if step % 100 == 0:
            assert without_axes(wrapper.drift_detector.state_dict()) == alone.state_dict()
        if step % 300 == 299:
            # What the tracker knows of its cells is made anew.
            if step == 599:
                wrapper.reset_kl()
            else:
                wrapper.load_kl_state_dict(json.loads(json.dumps(wrapper.kl_state_dict())))
        if terminated or truncated:
            observation, _ = wrapper.reset()
    assert alone.alarm_count > 0
    assert without_axes(wrapper.drift_detector.state_dict()) == alone.state_dict()
    alarms = [dataclasses.replace(alarm, axes=()) for alarm in wrapper.drift_detector.alarms]
    assert alarms == alone.alarms


def test_the_key_is_there_from_the_first_step_and_only_with_a_detector():
    bare, watched = make_walk(), make_walk(drift_detector=SMALL, info_prefix="p/")
    without, infos = play(bare, [0, 1] * 9), play(watched, [0, 1] * 9)
    assert all("kl_alarm" not in info for info in without)
    assert all(type(info["p/kl_alarm"]) is float for info in infos)
    assert len({frozenset(info) for info in infos}) == 1
    assert bare.drift_detector is None
    assert "drift_detector" not in bare.get_kl_statistics()


def test_other_keys_do_not_depend_on_it():
    actions = random_actions(make_walk().action_space, 60)
    watched = play(make_walk(drift_detector=SMALL), actions)
    for info in watched:
        del info["kl_alarm"]
    assert watched == play(make_walk(), actions)


def test_an_alarm_is_told_once_after_its_step():
    told = []

    def on_alarm(alarm):
        told.append((alarm, wrapper.get_kl_statistics()["steps"]))

    detector = DriftDetector(**SMALL, on_alarm=on_alarm)
    wrapper = make_walk(window=50, drift_detector=detector)
    assert wrapper.drift_detector is detector
    infos = play(wrapper, switching_actions(200))
    steps = [i + 1 for i, info in enumerate(infos) if info["kl_alarm"] == 1.0]
    assert steps
    assert steps[0] > UNCHANGED
    assert [alarm.step for alarm, _ in told] == [counted for _, counted in told] == steps
    assert [alarm for alarm, _ in told] == detector.alarms
    alarm = detector.alarms[0]
    moved = {moved["axis"]: moved for moved in alarm.axes}
    assert moved["action"]["excess"] > 0.0
    assert moved["action"]["grown"]["low"] == 2
    assert alarm.pvalue < alarm.threshold == detector.threshold
    assert alarm.pvalues[alarm.part] * 2 == alarm.pvalue
    assert alarm.divergence[alarm.part] > alarm.expected[alarm.part]
    assert alarm.cells[0].share != alarm.cells[0].reference_share
    statistics = wrapper.get_kl_statistics()["drift_detector"]
    assert statistics["alarms"] == len(steps)
    assert statistics["last_alarm"] == steps[-1]
    assert statistics["ready"]


def test_a_callback_may_rebase():
    detector = DriftDetector(**SMALL, on_alarm=lambda alarm: detector.rebase())
    infos = play(make_walk(drift_detector=detector), switching_actions(300))
    assert sum(info["kl_alarm"] for info in infos) == detector.alarm_count == 1
    assert not detector.ready
    assert detector.phase != "watching"
    assert detector.steps == len(infos)


def test_a_callback_that_fails_leaves_the_step_counted():
    def fail(alarm):
        raise RuntimeError("stop the training")

    wrapper = make_walk(drift_detector=SMALL | {"on_alarm": fail})
    with pytest.raises(RuntimeError, match="stop the training"):
        play(wrapper, switching_actions())
    assert wrapper.get_kl_statistics()["steps"] == wrapper.drift_detector.alarms[0].step


def test_a_reset_is_no_alarm():
    wrapper = make_walk(drift_detector=SMALL, info_on_reset=True, length=10_000)
    play(wrapper, switching_actions())
    at = wrapper.drift_detector.alarms[-1].step
    again = make_walk(drift_detector=SMALL, info_on_reset=True, length=10_000)
    assert play(again, switching_actions()[:at])[-1]["kl_alarm"] == 1.0
    assert again.reset()[1]["kl_alarm"] == 0.0


def test_nothing_else_feeds_it():
    detector = DriftDetector(**SMALL)
    wrapper = make_walk(drift_detector=detector)
    play(wrapper, [0, 1, 2])
    before = detector.state_dict()
    for feed in (
        lambda: detector.update(0, 0),
        lambda: detector.update_many([0], [0]),
        lambda: make_walk(drift_detector=detector),
    ):
        with pytest.raises(ValueError, match="attached to a wrapper"):
            feed()
    assert detector.state_dict() == before


COPIES = {"pickle": lambda x: pickle.loads(pickle.dumps(x)), "deepcopy": copy.deepcopy}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("at", [0, 100, 400, UNCHANGED + 3])
def test_a_copied_wrapper_has_a_detector_of_its_own(copied, at):
    actions = switching_actions()
    wrapper = make_walk(drift_detector=SMALL)
    play(wrapper, actions[:at])
    twin = copied(wrapper)
    before = wrapper.drift_detector.state_dict()
    assert twin.drift_detector.state_dict() == before
    infos = proceed(twin, actions[at:])
    assert twin.drift_detector.steps == len(actions)
    assert twin.drift_detector.alarm_count > 0
    assert wrapper.drift_detector.state_dict() == before
    assert proceed(wrapper, actions[at:]) == infos
    assert twin.kl_state_dict() == wrapper.kl_state_dict()
    # A copy of the detector alone stands for a tracker of its own, too.
    lone = copied(twin.drift_detector)
    assert lone.state_dict() == twin.drift_detector.state_dict()
    lone.rebase()
    assert lone.state_dict() != twin.drift_detector.state_dict()


def test_state_with_and_without_a_detector():
    watched, bare = make_walk(drift_detector=SMALL), make_walk()
    other = make_walk(drift_detector=SMALL | {"window": 20})
    play(watched, [0, 1, 2] * 9)
    play(bare, [0, 1, 2] * 9)
    for target, state, message in (
        (bare, watched.kl_state_dict(), "saved with a drift detector"),
        (watched, bare.kl_state_dict(), "saved without a drift detector"),
        (other, watched.kl_state_dict(), "was saved with .*window"),
    ):
        before = target.kl_state_dict()
        with pytest.raises(ValueError, match=message):
            target.load_kl_state_dict(state)
        assert target.kl_state_dict() == before


def test_reset_kl_does_not_touch_it():
    wrapper = make_walk(drift_detector=SMALL)
    play(wrapper, [0, 1, 2] * 9)
    before = wrapper.drift_detector.state_dict()
    wrapper.reset_kl()
    assert wrapper.drift_detector.state_dict() == before


def test_a_reference_of_an_earlier_run_starts_at_once(tmp_path):
    first = make_walk(drift_detector=SMALL)
    play(first, switching_actions()[:UNCHANGED])
    reference = first.drift_detector.reference()
    path = tmp_path / "reference.json"
    path.write_text(json.dumps(reference), encoding="utf-8")
    for given in (reference, path, str(path)):
        again = make_walk(drift_detector=SMALL | {"reference": given})
        assert again.drift_detector.phase == "watching"
        assert again.drift_detector.steps_until_ready == 50
        infos = play(again, [2] * 60)
        assert again.drift_detector.ready
        assert sum(info["kl_alarm"] for info in infos) == 1
    # A snapshot has no calibration; a reference serves the wrapper as well.
    bare = make_walk(drift_detector=SMALL | {"reference": first.snapshot()})
    assert bare.drift_detector.phase == "calibration"
    assert make_walk(reference=reference).get_kl_statistics()["cells"] > 0


def test_a_reference_on_other_axes_is_refused():
    first = make_walk(drift_detector=SMALL)
    play(first, switching_actions()[:300])
    reference = first.drift_detector.reference()
    with pytest.raises(ValueError, match=r"the axes differ: .*the reference of the drift detector"):
        JointKLDivergenceWrapper(
            gym.make("CartPole-v1"), drift_detector=SMALL | {"reference": reference}
        )
    alone = DriftDetector(**SMALL)
    alone.update_many([0] * 300, [0] * 300)
    with pytest.raises(ValueError, match="the axes differ"):
        make_walk(drift_detector=SMALL | {"reference": alone.reference()})


@pytest.mark.parametrize(
    "given",
    [5000, 5000.0, SMALL, SMALL | {"on_alarm": f"{__name__}:keep_alarm"}],
    ids=str,
)
def test_a_specification_makes_a_fresh_detector(given):
    env = JointKLDivergenceWrapper(gym.make("FrozenLake-v1"), drift_detector=given)
    play(env, [0, 1] * 9)
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.spec == env.spec
    assert again.drift_detector.steps == 0
    assert again.drift_detector.arguments == env.drift_detector.arguments


@pytest.mark.parametrize("instance", [False, True])
def test_a_specification_holds_the_path_of_a_reference(tmp_path, instance):
    first = JointKLDivergenceWrapper(gym.make("FrozenLake-v1"), drift_detector=SMALL)
    play(first, [0, 1] * 150)
    path = tmp_path / "reference.json"
    path.write_text(json.dumps(first.drift_detector.reference()), encoding="utf-8")
    given = SMALL | {"reference": path}
    env = JointKLDivergenceWrapper(
        gym.make("FrozenLake-v1"), drift_detector=DriftDetector(**given) if instance else given
    )
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.drift_detector.reference() == first.drift_detector.reference()


def test_a_specification_of_an_instance_holds_its_arguments():
    env = JointKLDivergenceWrapper(gym.make("FrozenLake-v1"), drift_detector=DriftDetector(**SMALL))
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.drift_detector is not env.drift_detector
    assert again.drift_detector.arguments == env.drift_detector.arguments


def test_the_training_wrapper_has_it_too(tmp_path):
    ALARMS.clear()
    settings = SMALL | {"on_alarm": f"{__name__}:keep_alarm"}
    inner = make_walk().env
    wrapper = LLMTrainingWrapper(inner, tmp_path, window=8, min_window=2, drift_detector=settings)
    infos = play(wrapper, switching_actions())
    bare = make_walk(drift_detector=SMALL)
    expected = play(bare, switching_actions())
    assert [info["kl_alarm"] for info in infos] == [info["kl_alarm"] for info in expected]
    assert ALARMS == wrapper.drift_detector.alarms == bare.drift_detector.alarms
    assert wrapper.get_kl_statistics() == bare.get_kl_statistics()
    wrapper.close()
