"""Drift detectors of sub-environments are those of single wrappers, or one in their order."""

import copy
import dataclasses
import functools
import json
import pickle

import numpy as np
import pytest

from kl_proteus import DriftDetector, LLMTrainingWrapper, VectorLLMTrainingWrapper
from vector.harness import (
    AUTORESET_MODES,
    INFO_KEYS,
    SMALL,
    assert_same_runs,
    batches,
    bounded,
    factories,
    run,
    vector_of,
    walk,
    wrap,
)

WATCH = {
    "false_alarm_every": 1,
    "window": 20,
    "reference_windows": 1,
    "calibration_windows": 8,
    "every": 1,
}
"""A detector that learns fast and has alarms enough."""
POOL = WATCH | {"window": 50}
COARSE = {"obs_bins": 2, "action_bins": 2}
"""Bins under which windows as short as its resemble each other."""
UNCHANGED, CHANGED = 220, 80
KEYS = (*INFO_KEYS, "kl_alarm")
N = 3


def without_row(alarms):
    """What a single wrapper knows of its alarms."""
    return [dataclasses.replace(alarm, row=None) for alarm in alarms]


def without_axes(state):
    """What a detector without a wrapper knows."""
    for alarm in state["state"]["alarms"]:
        alarm["axes"] = []
    return state


def alarms_of(results, key="kl_alarm"):
    """How many alarms each row has reported, in the infos and the final infos."""
    total = np.zeros(N)
    for *_, infos in results:
        for one in (infos, infos.get("final_info", {})):
            total += one.get(key, 0.0)
    return total.tolist()


def changing(env):
    """Any actions while the detectors learn, then one for ever."""
    actions = batches(env, UNCHANGED)
    return [*actions, *[actions[-1]] * CHANGED]


def watched(mode, kind="walk", **settings):
    """The wrapper with detectors."""
    return wrap(vector_of(factories(kind), mode), **(COARSE | {"drift_detector": WATCH} | settings))


@pytest.mark.parametrize("mode", AUTORESET_MODES)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("cartpole", {}),
        ("cartpole", {"drift_detector": WATCH | {"fast": True}}),
        ("walk", {"info_on_reset": True}),
        ("nested", {"lag": 5, "obs_bins": 1}),
        ("walk", {"encoder": bounded, "window": None}),
    ],
    ids=["windows", "fast", "info-on-reset", "nested", "encoder"],
)
def test_every_detector_is_that_of_a_single_wrapper(kind, mode, settings):
    settings = SMALL | COARSE | {"drift_detector": WATCH} | settings
    singles = vector_of(factories(kind, settings), mode)
    wrapper = watched(mode, kind, **settings)
    actions = changing(singles)
    ours = run(wrapper, actions, mode)
    assert_same_runs(ours, run(singles, actions, mode), KEYS)

    detectors = wrapper.drift_detector
    assert isinstance(detectors, list)
    for row, (own, single) in enumerate(zip(detectors, singles.envs, strict=True)):
        assert own.state_dict() == single.drift_detector.state_dict()
        assert own.reference() == single.drift_detector.reference()
        assert without_row(own.alarms) == single.drift_detector.alarms
        assert {alarm.row for alarm in own.alarms} <= {row}
    counts = [own.alarm_count for own in detectors]
    assert sum(counts) > 0
    assert alarms_of(ours) == counts
    assert wrapper.get_kl_statistics() == list(singles.call("get_kl_statistics"))


@pytest.mark.parametrize("mode", AUTORESET_MODES)
def test_a_pool_feeds_one_detector_in_the_order_of_the_rows(mode):
    told = []
    detector = DriftDetector(**POOL, on_alarm=told.append)
    wrapper = watched(mode, pooled=True, drift_detector=detector)
    assert wrapper.drift_detector is detector
    alone = DriftDetector(**POOL)
    seen, ignored = wrapper.reset(seed=11)[0].copy(), np.zeros(N, bool)
    layout, answer = wrapper._tracker.observation, wrapper._tracker.action
    alarms = 0
    # What is a change in each row need not be one in all of them.
    same = [np.zeros(N, np.int64)] * CHANGED
    for step, action in enumerate([*batches(wrapper, UNCHANGED), *same]):
        expected = [
            alone.update(layout.key(seen[row]), answer.key(action[row]))
            for row in np.flatnonzero(~ignored)
        ]
        observations, _, terminations, truncations, infos = wrapper.step(action)
        np.testing.assert_array_equal(infos["kl_alarm"], np.full(N, float(any(expected))))
        assert infos["_kl_alarm"].all()
        alarms += any(expected)
        seen, done = observations.copy(), terminations | truncations
        ignored = done if mode == "NEXT_STEP" else np.zeros(N, bool)
        if mode == "DISABLED" and done.any():
            seen = wrapper.reset(seed=step, options={"reset_mask": done})[0].copy()
    assert without_axes(detector.state_dict()) == alone.state_dict()
    assert told == detector.alarms
    assert len(told) == alarms > 0
    assert {alarm.row for alarm in told} == {None}
    statistics = wrapper.get_kl_statistics()
    assert statistics["drift_detector"] == detector.statistics()
    assert detector.steps == statistics["steps"]
    with pytest.raises(ValueError, match="attached to a wrapper"):
        detector.update(0, 0)


def test_an_instance_is_copied_with_its_state_and_stays_as_it_is():
    told = []

    def hear(alarm):
        told.append((alarm, [one["steps"] for one in wrapper.get_kl_statistics()]))

    template = DriftDetector(**WATCH, on_alarm=hear)
    template.update_many(np.arange(4) % 2, np.arange(4) % 3)
    before = template.state_dict()
    wrapper = watched("DISABLED", drift_detector=template)
    assert [one.state_dict() for one in wrapper.drift_detector] == [before] * N
    ours = run(wrapper, changing(wrapper), "DISABLED")
    assert template.state_dict() == before
    assert not template.update(0, 0)

    # Every row had been counted, and rows of one step are told in the order of their index.
    places = [(alarm.step, alarm.row) for alarm, _ in told]
    assert places == sorted(places)
    assert {alarm.row for alarm, _ in told} == set(range(N))
    assert all(counted == [alarm.step - 4] * N for alarm, counted in told)
    for row, own in enumerate(wrapper.drift_detector):
        assert [alarm for alarm, _ in told if alarm.row == row] == own.alarms
    assert len(told) == sum(alarms_of(ours))
    with pytest.raises(ValueError, match="attached to a wrapper"):
        watched("DISABLED", drift_detector=wrapper.drift_detector[0])


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("mode", AUTORESET_MODES)
@pytest.mark.parametrize("method", ["state", "pickle", "deepcopy"])
def test_a_copy_continues_bit_for_bit(method, mode, pooled):
    env = watched(mode, pooled=pooled)
    actions = changing(env)
    run(env, actions[:230], mode)
    if method == "state":
        other = wrap(copy.deepcopy(env.env), pooled=pooled, drift_detector=WATCH, **COARSE)
        other.load_kl_state_dict(json.loads(json.dumps(env.kl_state_dict())))
    else:
        other = pickle.loads(pickle.dumps(env)) if method == "pickle" else copy.deepcopy(env)
    saved = env.kl_state_dict()
    assert other.kl_state_dict() == saved
    theirs = run(other, actions[230:], mode, seed=None)
    # A copy has detectors of its own.
    assert env.kl_state_dict() == saved
    assert_same_runs(run(env, actions[230:], mode, seed=None), theirs, KEYS)
    assert other.kl_state_dict() == env.kl_state_dict()
    assert other.get_kl_statistics() == env.get_kl_statistics()
    own, copied = (one.drift_detector for one in (env, other))
    if not pooled:
        own, copied = own[2], copied[2]
    assert copied.alarms == own.alarms != []
    copied.rebase()
    assert copied.phase == "reference"
    assert own.phase == "watching"


def test_a_reset_is_no_alarm_and_reset_kl_lets_the_detectors_go_on():
    settings = {"info_on_reset": True, "info_prefix": "p/"}
    for pooled in (False, True):
        env = watched("SAME_STEP", pooled=pooled, **settings)
        env.reset(seed=1)
        for action in changing(env):
            infos = env.step(action)[4]
            if infos["p/kl_alarm"].any():
                break
        else:
            raise AssertionError("no alarm")
        _, infos = env.reset(options={"reset_mask": np.array([True, False, True])})
        np.testing.assert_array_equal(infos["_p/kl_alarm"], [True, pooled, True])
        assert not infos["p/kl_alarm"].any()
        detectors = [env.drift_detector] if pooled else env.drift_detector
        before = [one.state_dict() for one in detectors]
        env.reset_kl()
        assert [one.state_dict() for one in detectors] == before


def test_without_a_detector_there_is_no_key():
    env = wrap(vector_of(factories("walk"), "SAME_STEP"), **COARSE)
    for *_, infos in run(env, batches(env, 20), "SAME_STEP"):
        assert "kl_alarm" not in infos | infos.get("final_info", {})
    assert env.drift_detector is None
    other = watched("SAME_STEP")
    for target, state, message in (
        (env, other.kl_state_dict(), "saved with a drift detector"),
        (other, env.kl_state_dict(), "saved without a drift detector"),
    ):
        before = target.kl_state_dict()
        with pytest.raises(ValueError, match=message):
            target.load_kl_state_dict(state)
        assert target.kl_state_dict() == before


@pytest.mark.parametrize("pooled", [False, True])
def test_a_detector_that_cannot_be_used_is_refused(pooled):
    other = DriftDetector(**WATCH)
    other.update_many([0] * 20, [0] * 20)
    for given, error, message in (
        (True, TypeError, "drift_detector must be None"),
        ({"windows": 3}, TypeError, "drift_detector: "),
        (WATCH | {"reference": other.reference()}, ValueError, "the axes differ"),
    ):
        with pytest.raises(error, match=message):
            watched("SAME_STEP", pooled=pooled, drift_detector=given)
    instance = DriftDetector(**WATCH | {"reference": other.reference()})
    with pytest.raises(ValueError, match="the axes differ"):
        watched("SAME_STEP", pooled=pooled, drift_detector=instance)
    instance.update(0, 0)  # it was left as it was


@pytest.mark.parametrize("mode", AUTORESET_MODES)
def test_the_training_wrapper_has_them_too(mode, tmp_path):
    settings = SMALL | COARSE | {"drift_detector": WATCH, "task_description": "Walk."}

    def single(length):
        return LLMTrainingWrapper(walk(length), tmp_path / "singles", **settings)

    singles = vector_of([functools.partial(single, length) for length in (4, 7, 5)], mode)
    told = []
    settings["drift_detector"] = WATCH | {"on_alarm": told.append}
    wrapper = VectorLLMTrainingWrapper(
        vector_of(factories("walk"), mode), tmp_path / "ours", **settings
    )
    actions = changing(singles)
    ours = run(wrapper, actions, mode)
    assert_same_runs(ours, run(singles, actions, mode), KEYS)
    assert len(told) == sum(alarms_of(ours)) > 0
    assert wrapper.get_kl_statistics() == list(singles.call("get_kl_statistics"))
    wrapper.close()
    singles.close()
