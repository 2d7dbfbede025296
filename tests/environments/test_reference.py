"""Snapshots: what they hold, how they add up, and how they serve as a reference."""

import copy
import json
import math
from collections import Counter
from pathlib import Path

import gymnasium as gym
import pytest
from gymnasium import spaces

from environments.scripted import (
    Scripted,
    Walk,
    assert_reports,
    make_walk,
    pairs_of,
    play,
    random_actions,
    twin_of,
)
from kl_proteus import JointKLDivergenceWrapper, merge_snapshots


def recorded(actions=(2, 2, 1) * 20, seed=1, **settings):
    """A walk that was watched from its first step on."""
    wrapper = make_walk(**({"window": None} | settings))
    play(wrapper, actions, seed=seed)
    return wrapper


def table(pairs):
    """Counts of pairs of integers as a snapshot nests them."""
    nested = {}
    for (observation, action), count in Counter((int(o), int(a)) for o, a in pairs).items():
        nested.setdefault(str(observation), {})[str(action)] = count
    return nested


def total(snapshot):
    return sum(sum(row.values()) for row in snapshot["counts"].values())


# What a snapshot holds ------------------------------------------------------------------------


def test_a_snapshot_is_a_plain_versioned_dict():
    snapshot = recorded().snapshot()
    assert json.loads(json.dumps(snapshot, allow_nan=False)) == snapshot
    assert snapshot["format"] == "kl_proteus.snapshot"
    assert snapshot["version"] == 1
    assert snapshot["encoder"] is None
    assert [axis["name"] for axis in snapshot["observation_axes"]] == ["observation"]
    assert [axis["name"] for axis in snapshot["action_axes"]] == ["action"]
    for row in snapshot["counts"].values():
        assert all(type(count) is int for count in row.values())


def test_current_and_previous_are_the_windows():
    wrapper = make_walk(window=6)
    actions = random_actions(wrapper.action_space, 40)
    play(wrapper, actions)
    pairs = pairs_of(Walk(), actions)
    assert wrapper.snapshot()["counts"] == table(pairs[-6:])
    assert wrapper.snapshot("current")["counts"] == table(pairs[-6:])
    assert wrapper.snapshot("previous")["counts"] == table(pairs[-12:-6])


def test_previous_of_the_other_modes():
    actions = random_actions(Walk().action_space, 40)
    pairs = pairs_of(Walk(), actions)
    lagged, lifetime = make_walk(window=6, lag=4), make_walk(window=None)
    play(lagged, actions)
    play(lifetime, actions)
    assert lagged.snapshot("previous")["counts"] == table(pairs[-10:-4])
    assert lifetime.snapshot("previous")["counts"] == table(pairs[:-1])
    reference = recorded().snapshot()
    watched = make_walk(reference=reference)
    play(watched, actions)
    assert watched.snapshot("previous") == reference
    assert watched.snapshot()["counts"] == table(pairs[-8:])


def test_a_snapshot_before_the_first_step_is_empty():
    wrapper = make_walk()
    assert wrapper.snapshot()["counts"] == {}
    assert wrapper.snapshot("previous")["counts"] == {}


def test_a_snapshot_is_a_copy():
    wrapper = recorded()
    snapshot = wrapper.snapshot()
    before = copy.deepcopy(snapshot)
    wrapper.reset()
    wrapper.step(0)
    assert snapshot == before
    snapshot["counts"].clear()
    assert total(wrapper.snapshot()) == 61


# Merging --------------------------------------------------------------------------------------


def test_merging_adds_counts_in_any_order():
    parts = [recorded(seed=seed).snapshot() for seed in (1, 2, 3)]
    before = copy.deepcopy(parts)
    merged = merge_snapshots(*parts)
    assert merged == merge_snapshots(*reversed(parts))
    assert merged == merge_snapshots(merge_snapshots(parts[0], parts[1]), parts[2])
    assert total(merged) == 180
    pairs = [pair for seed in (1, 2, 3) for pair in pairs_of(Walk(), [2, 2, 1] * 20, seed)]
    assert merged["counts"] == table(pairs)
    assert parts == before


def test_merging_one_snapshot_copies_it():
    snapshot = recorded().snapshot()
    merged = merge_snapshots(snapshot)
    assert merged == snapshot
    assert merged is not snapshot


def test_merging_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one snapshot"):
        merge_snapshots()


BOX = spaces.Box(0, 1, (2,))
OTHERS = {
    "bins": ({}, {"obs_bins": 9}, r"observation\[0\]"),
    "bins of one axis": ({}, {"obs_bins": [10, 9]}, r"observation\[1\]"),
    "range": ({}, {"obs_range": (0, 2)}, r"observation\[0\]"),
    "encoder": ({}, {"encoder": "environments.named_encoders:halves"}, "encoder"),
    "another space": ({"observation_space": spaces.Box(0, 1, (3,))}, {}, "2 observation axes.*3"),
    "another action": ({"action_space": spaces.Discrete(3)}, {}, "action"),
    "more actions": ({"action_space": spaces.MultiDiscrete([2, 2])}, {}, "1 action axes.*2"),
    "names": ({"observation_space": spaces.Dict(a=BOX)}, {}, r"observation\['a'\]\[0\]"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_axes_are_refused_and_said(other):
    own = JointKLDivergenceWrapper(Scripted([[0, 0]], BOX))
    changed, settings, named = OTHERS[other]
    env = Scripted([[0, 0]], changed.get("observation_space", BOX), changed.get("action_space"))
    theirs = JointKLDivergenceWrapper(env, **settings)
    with pytest.raises(ValueError, match=f"axes differ: .*{named}"):
        merge_snapshots(own.snapshot(), theirs.snapshot())
    reference = theirs.snapshot()
    reference["counts"] = {"0": {"0": 1}}
    with pytest.raises(ValueError, match=f"axes differ: .*{named}"):
        JointKLDivergenceWrapper(Scripted([[0, 0]], BOX), reference=reference)


# As a reference -------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 6, 50, None])
@pytest.mark.parametrize("form", ["dict", "path", "str"])
def test_drift_from_a_reference_is_that_of_the_definitions(window, form, tmp_path):
    snapshot = recorded().snapshot()
    path = tmp_path / "reference.json"
    path.write_text(json.dumps(snapshot), encoding="utf-8")
    given = {"dict": snapshot, "path": path, "str": str(path)}[form]
    settings = {"window": window, "min_window": 4}
    wrapper = make_walk(reference=given, **settings)
    actions = random_actions(wrapper.action_space, 40)
    twin = twin_of(wrapper, reference=pairs_of(Walk(), [2, 2, 1] * 20), **settings)
    infos = play(wrapper, actions)
    assert_reports(infos, twin, pairs_of(Walk(), actions))
    assert infos[-1]["kl_divergence"] > 0.1


def test_a_reference_is_reported_from_min_window_pairs_on():
    wrapper = make_walk(reference=recorded().snapshot(), window=20, min_window=5)
    reported = [info["kl_divergence"] > 0 for info in play(wrapper, [0] * 10)]
    assert reported == [False] * 4 + [True] * 6


def test_the_same_behaviour_is_near_its_reference_and_another_is_not():
    def drift(actions):
        wrapper = make_walk(reference=recorded().snapshot(), window=60)
        return play(wrapper, actions)[-1]

    assert drift([2, 2, 1] * 20)["kl_divergence"] == 0.0
    other = drift([0, 0, 0] * 20)
    assert other["kl_policy"] > 1.0
    assert other["kl_divergence"] == pytest.approx(
        other["kl_observation"] + other["kl_policy"], abs=1e-12
    )


def test_reset_kl_keeps_the_reference():
    wrapper = make_walk(reference=recorded().snapshot(), min_window=1)
    first = play(wrapper, [0, 1, 0])
    wrapper.reset_kl()
    assert wrapper.get_kl_statistics()["steps"] == 0
    assert wrapper.kl_history == []
    assert play(wrapper, [0, 1, 0]) == first


def test_a_reference_is_copied():
    snapshot = recorded().snapshot()
    before = copy.deepcopy(snapshot)
    wrapper = make_walk(reference=snapshot, min_window=1)
    assert snapshot == before
    snapshot["counts"].clear()
    assert wrapper.snapshot("previous") == before


def test_a_reference_file_is_read_once(tmp_path):
    path = tmp_path / "reference.json"
    path.write_text(json.dumps(recorded().snapshot()), encoding="utf-8")
    wrapper = make_walk(reference=path, min_window=1)
    path.unlink()
    assert play(wrapper, [0, 1, 2])[-1]["kl_divergence"] > 0.0


def test_an_empty_reference_is_refused():
    # Every behaviour would be infinitely far from it but for the pseudocounts.
    with pytest.raises(ValueError, match="reference must be a snapshot with at least one pair"):
        make_walk(reference=make_walk().snapshot())


def test_uneven_counts_are_smoothed_alike_on_both_sides():
    """99 999 a + 1 b against 1 c: a tiny fill-in on one side only gave an inflated number."""
    env = Scripted([[0.0, 0.0]] * 3, spaces.Box(0, 1, (2,)))
    source = JointKLDivergenceWrapper(env, window=None)
    play(source, [0, 1])
    snapshot = source.snapshot()
    ((cell, row),) = snapshot["counts"].items()
    assert row == {"0": 1, "1": 1}
    snapshot["counts"] = {cell: {"0": 99_999, "1": 1}}
    wrapper = JointKLDivergenceWrapper(env, window=1, reference=snapshot)
    env.observations = [[0.95, 0.95]] * 2
    info = play(wrapper, [0])[0]
    # K = 3, alpha = 0.5.
    p = [0.5 / 2.5, 0.5 / 2.5, 1.5 / 2.5]
    q = [99_999.5 / 100_001.5, 1.5 / 100_001.5, 0.5 / 100_001.5]
    expected = math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    assert info["kl_divergence"] == pytest.approx(expected, abs=1e-12)


FAULTY_FILES = {
    "missing": (None, FileNotFoundError, "reference.json"),
    "empty": (b"", ValueError, "the snapshot cannot be read"),
    "torn": (b'{"format": "kl_proteus.snap', ValueError, "the snapshot cannot be read"),
    "no snapshot": (b'{"a": 1}', ValueError, "the snapshot cannot be read"),
    "a list": (b"[]", ValueError, "the snapshot cannot be read"),
    "no UTF-8": (b"\xff\xfe\x00", ValueError, "reference.*no UTF-8"),
}


@pytest.mark.parametrize("kind", FAULTY_FILES)
def test_a_faulty_reference_file(kind, tmp_path):
    content, error, message = FAULTY_FILES[kind]
    path = tmp_path / "reference.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=message):
        make_walk(reference=path)
    with pytest.raises(error, match=message):
        make_walk(reference=str(path))
    assert list(tmp_path.iterdir()) == ([] if content is None else [path])


def test_a_directory_is_no_reference(tmp_path):
    with pytest.raises(IsADirectoryError):
        make_walk(reference=tmp_path)


def test_the_message_says_which_file(tmp_path):
    path = Path(tmp_path) / "absent.json"
    with pytest.raises(FileNotFoundError, match=r"absent\.json"):
        make_walk(reference=path)


def altered(change):
    snapshot = recorded().snapshot()
    change(snapshot)
    return snapshot


ALTERED = {
    "another version": lambda s: s.update(version=2),
    "another format": lambda s: s.update(format="other"),
    "an unknown field": lambda s: s.update(extra=1),
    "a missing field": lambda s: s.pop("counts"),
    "a count of 0": lambda s: s["counts"].update({"0": {"0": 0}}),
    "a negative count": lambda s: s["counts"].update({"0": {"0": -1}}),
    "a fractional count": lambda s: s["counts"].update({"0": {"0": 1.5}}),
    "a count beyond 64 bits": lambda s: s["counts"].update({"0": {"0": 2**64}}),
    "counts that overflow together": lambda s: s["counts"].update({"0": {"0": 2**64 - 1}}),
    "an empty row": lambda s: s["counts"].update({"0": {}}),
    "a key that is no number": lambda s: s["counts"].update({"x": {"0": 1}}),
    "an impossible axis": lambda s: s["action_axes"][0].update(size=0),
    "an axis of no kind": lambda s: s["action_axes"][0].update(kind="other"),
}


@pytest.mark.parametrize("change", ALTERED)
def test_an_altered_snapshot_is_refused(change):
    snapshot = altered(ALTERED[change])
    with pytest.raises(ValueError, match=r"snapshot|count"):
        make_walk(reference=snapshot)
    with pytest.raises(ValueError, match=r"snapshot|count"):
        merge_snapshots(recorded().snapshot(), snapshot)


def test_references_of_real_environments_tell_policies_apart():
    def snapshot(policy):
        wrapper = JointKLDivergenceWrapper(gym.make("CartPole-v1"), obs_bins=6, window=None)
        watch(wrapper, policy)
        return wrapper.snapshot()

    def watch(wrapper, policy):
        observation, _ = wrapper.reset(seed=1)
        for _ in range(300):
            observation, _, terminated, truncated, info = wrapper.step(policy(observation))
            if terminated or truncated:
                observation, _ = wrapper.reset()
        return info

    def lean(observation):
        return int(observation[2] > 0)

    def against(observation):
        return int(observation[2] <= 0)

    reference = snapshot(lean)
    drifts = []
    for policy in (lean, against):
        env = JointKLDivergenceWrapper(
            gym.make("CartPole-v1"), obs_bins=6, window=300, reference=reference
        )
        drifts.append(watch(env, policy))
    assert drifts[0]["kl_divergence"] == 0.0
    assert drifts[1]["kl_divergence"] > 0.5
