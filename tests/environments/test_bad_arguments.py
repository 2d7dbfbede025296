"""Every argument of every method: what is refused, under which name, and that nothing changed."""

import copy
import inspect
import re

import numpy as np
import pytest
from gymnasium import spaces

from environments.scripted import Scripted, make_walk, play, shown
from kl_proteus import JointKLDivergenceWrapper, merge_snapshots

NAN, INF = float("nan"), float("inf")
HUGE = 10**400
SPACE = spaces.Box(-1, 1, (2,), np.float64)


def construct(**settings):
    return JointKLDivergenceWrapper(Scripted([[0, 0]] * 3, SPACE, SPACE), **settings)


WHOLE_TYPES = [1.5, 1.0, True, False, np.True_, "3", b"3", 1j, [3], (3,), {}, object()]
WHOLE_VALUES = [0, -1, -(2**70), 2**64, np.int64(0), np.int8(-1)]
REAL_TYPES = [True, "0.5", b"0.5", None, 1j, [0.5], {}, object]
REAL_VALUES = [0, 0.0, -0.0, -1, -0.5, NAN, INF, -INF, np.float32(0), np.float64(NAN)]

# Two axes on each side.
ODD_BINS = [[3, 2.0], [3, True], [3, None], [[3, 3]] * 2, np.array([3.0, 3.0]), np.array(3.0)]
ODD_RANGES = [("0", 1), (0, "1"), (0, True), (0, 1j), ([0, "0"], 1), ([0, []], 1), ({0}, 1)]
FEW_BINS = [[], [3], [3, 4, 5], np.array([3]), [3, 0], np.zeros(2, int), [3, 2**31]]
FEW_SIDES = [(), (0,), (0, 1, 2), ([0], 1), (0, [1, 1, 1]), np.zeros((3, 2))]

TYPES = {
    "obs_bins": [1.5, True, "3", b"3", None, 1j, {3}, {3: 3}, object(), *ODD_BINS],
    "history_size": [None, *WHOLE_TYPES],
    "epsilon": REAL_TYPES,
    "normalize_obs": [0, 1, "True", None, [], np.array([True, True])],
    "normalize_action": [0, 1, "True", None, []],
    "window": WHOLE_TYPES,
    "lag": WHOLE_TYPES,
    "reference": [3, 1.5, True, b"path", [], ({},), np.zeros(3), {"a": object()}, {"a": {1, 2}}],
    "obs_range": [3, "ab", b"ab", {0, 1}, {0: 0, 1: 1}, np.array(3), object(), *ODD_RANGES],
    "obs_scale": REAL_TYPES,
    "encoder": [3, b"a:b", ["a:b"]],
    "min_window": [None, *WHOLE_TYPES],
    "info_prefix": [None, 3, b"kl", ["kl"], True],
    "axis_histograms": [0, 1, "no"],
    "info_on_reset": [0, 1, "no", None],
    "episode_statistics": [0, 1, "no", None],
    "drift_detector": ["name", b"x", True, [1], object(), {"no_such": 1}, {"window": "a"}],
}
VALUES = {
    "obs_bins": [0, -1, 2**31, np.int64(2**31), HUGE, *FEW_BINS],
    "history_size": [*WHOLE_VALUES, 10**8 + 1],
    "epsilon": [*REAL_VALUES, 1.0000001e6, 1e308],
    "window": WHOLE_VALUES,
    "lag": WHOLE_VALUES,
    "reference": [{}, {"a": NAN}, {"a": INF}, {"format": "kl_proteus.snapshot"}],
    "obs_range": [(1, 0), ([0, 2], 1), (NAN, 1), ([0, NAN], 1), (0, HUGE), (-HUGE, 0), *FEW_SIDES],
    "obs_scale": [*REAL_VALUES, HUGE, 1.0000001e100],
    "encoder": ["", "name", "no_module:f", "math:no_such", ":f", "math:"],
    "min_window": WHOLE_VALUES,
    "info_prefix": ["_", "_kl/", "__"],
    "drift_detector": [0, -1.0, NAN, INF, 1e16, {"window": 0}, {"parts": []}],
}
for table in (TYPES, VALUES):
    table["action_bins"] = table["obs_bins"]
    table["action_range"] = table["obs_range"]


def cases(table):
    return [
        pytest.param(name, value, id=f"{name}={re.sub(r'0{9,}|0x[0-9a-f]+', '..', repr(value))}")
        for name, values in table.items()
        for value in values
    ]


@pytest.mark.parametrize(("name", "value"), cases(TYPES))
def test_another_type_is_a_type_error(name, value):
    with pytest.raises(TypeError, match=rf"\b{name}\b.*\bgot\b|{name} must hold JSON values"):
        construct(**{name: value})


@pytest.mark.parametrize(("name", "value"), cases(VALUES))
def test_a_value_out_of_range_is_a_value_error(name, value):
    with pytest.raises(ValueError, match=rf"\b{name}\b|the snapshot cannot be read"):
        construct(**{name: value})


def test_every_argument_is_tried():
    assert TYPES.keys() == set(inspect.signature(JointKLDivergenceWrapper).parameters) - {"env"}
    flags = {
        "normalize_obs",
        "normalize_action",
        "axis_histograms",
        "info_on_reset",
        "episode_statistics",
    }
    assert VALUES.keys() == TYPES.keys() - flags


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 0}, "window must be None or an integer from 1 to 4294967295, got 0"),
        ({"window": -1}, "window must be None or an integer from 1 to 4294967295, got -1"),
        (
            {"window": 2**32},
            "window must be None or an integer from 1 to 4294967295, got 4294967296",
        ),
        ({"lag": -1}, "lag must be None or an integer from 1 to 4294967295, got -1"),
        ({"history_size": -1}, "history_size must be an integer from 1 to 100000000, got -1"),
        ({"min_window": -1}, r"min_window must be an integer from 1 to 2\^64 - 1, got -1"),
        ({"window": 1.5}, "window must be None or an integer from 1 to 4294967295, got 1.5"),
        ({"epsilon": NAN}, "epsilon must be .*above 0.* got NaN|epsilon .*got nan"),
        ({"epsilon": 2e6}, "epsilon must be .*at most 1e6.* got 2000000"),
        ({"obs_bins": 2**31}, r"obs_bins must be from 1 to 2\*\*31 - 1, got 2147483648"),
        ({"obs_bins": [3]}, r"obs_bins must be one number or one per axis \(2 here\), got 1"),
        ({"obs_range": (1, 0)}, "obs_range must have low <= high, got 1.0 > 0.0 on axis 0"),
        ({"obs_scale": -1}, "obs_scale must be above 0 and at most 1e100, got -1.0"),
        ({"info_on_reset": "no"}, "info_on_reset must be True or False, got 'no'"),
        ({"info_prefix": 3}, "info_prefix must be a string, got int"),
        ({"reference": {"a": NAN}}, "reference must hold finite JSON values"),
        ({"reference": {"a": {1}}}, "reference must hold JSON values only"),
        ({"reference": 3}, r"reference must be a snapshot \(dict\) or the path of one, got int"),
    ],
    ids=str,
)
def test_messages_say_what_was_expected_and_what_came(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        construct(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": None, "lag": 3}, "lag"),
        ({"window": 5, "lag": 3, "reference": "snapshot"}, "lag"),
        ({"obs_range": (0, 1), "normalize_obs": False}, "obs_range and normalize_obs=False"),
        ({"action_range": (0, 1), "normalize_action": False}, "action_range and normalize_action"),
        ({"encoder": "math:floor", "obs_range": (0, 1)}, "obs_range"),
        ({"encoder": "math:floor", "normalize_obs": False}, "normalize_obs"),
    ],
    ids=str,
)
def test_arguments_that_contradict_each_other(settings, message):
    if settings.get("reference"):
        recorded = construct(window=None)
        play(recorded, [[0, 0], [0, 0]])
        settings = settings | {"reference": recorded.snapshot()}
    with pytest.raises(ValueError, match=message):
        construct(**settings)


def test_an_unknown_argument_is_refused():
    with pytest.raises(TypeError, match="bins"):
        construct(bins=3)
    with pytest.raises(TypeError, match="positional"):
        JointKLDivergenceWrapper(Scripted([[0, 0]]), 10, 10, 1000, 0.5, True, True, 1000)


@pytest.mark.parametrize(
    "settings",
    [
        {"obs_bins": 1, "action_bins": 1},
        {"obs_bins": 2**31 - 1, "action_bins": [2**31 - 1, 1]},
        {"window": 1, "min_window": 1, "history_size": 1},
        {"window": 1, "min_window": 2**64 - 1},
        {"window": 10**9},
        {"window": 10**9, "lag": 10**9},
        {"window": 1, "lag": 1},
        {"history_size": 10**8},
        {"epsilon": 1e6},
        {"epsilon": 1},
        {"epsilon": 1e-10},
        {"epsilon": 5e-324},
        {"epsilon": np.float32(0.5)},
        {"obs_scale": 1e100},
        {"obs_scale": 5e-324},
        {"obs_range": (0, 0)},
        {"info_prefix": "a_"},
    ],
    ids=str,
)
def test_the_ends_of_every_range_are_legal(settings):
    wrapper = construct(**settings)
    actions = [[0.1, 0.2], [0.9, -0.9], [-2.0, 2.0], [0.1, 0.2]] * 10
    for info in play(wrapper, actions):
        values = {key: value for key, value in info.items() if "kl_" in key}
        assert all(type(v) is float and -INF < v < INF for v in values.values())
        assert all(v >= 0.0 for key, v in values.items() if not key.endswith("kl_excess"))
    assert wrapper.get_kl_statistics()["steps"] == 40


def test_a_failed_construction_leaves_the_environment_as_it_was():
    env = Scripted([[0, 0]] * 3, SPACE, SPACE)
    before = copy.deepcopy(vars(env))
    for table in (TYPES, VALUES):
        for name, values in table.items():
            for value in values:
                with pytest.raises((TypeError, ValueError)):
                    JointKLDivergenceWrapper(env, **{name: value})
    assert vars(env).keys() == before.keys()
    assert env.resets == []
    # And the same environment is still good.
    play(JointKLDivergenceWrapper(env), [[0, 0]])


# The methods ----------------------------------------------------------------------------------


@pytest.fixture
def wrapper():
    found = make_walk(min_window=1)
    play(found, [0, 1, 2] * 6)
    return found


@pytest.fixture
def unchanged(wrapper):
    """Fails a test that changed the state."""
    before = wrapper.kl_state_dict(), wrapper.get_kl_statistics(), wrapper.kl_history
    yield
    assert (wrapper.kl_state_dict(), wrapper.get_kl_statistics(), wrapper.kl_history) == before


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("which", ["", "now", "Current", "P"])
def test_which_snapshot(wrapper, which):
    with pytest.raises(ValueError, match="which must be 'current' or 'previous', got"):
        wrapper.snapshot(which)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("which", [None, 3, b"current"])
def test_which_snapshot_is_text(wrapper, which):
    with pytest.raises(TypeError, match="which"):
        wrapper.snapshot(which)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("state", [None, 3, "{}", b"{}", [], object()], ids=shown)
def test_a_state_is_a_dict(wrapper, state):
    with pytest.raises(TypeError, match="state must be a dict, got"):
        wrapper.load_kl_state_dict(state)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("state", "error"),
    [
        ({}, ValueError),
        ({"a": 1}, ValueError),
        ({"format": "kl_proteus.tracker", "version": 1}, ValueError),
        ({"a": NAN}, ValueError),
        ({"a": object()}, TypeError),
        ({("a", "b"): 1}, TypeError),
    ],
    ids=shown,
)
def test_a_state_has_its_fields(wrapper, state, error):
    with pytest.raises(error, match="state"):
        wrapper.load_kl_state_dict(state)


def test_a_state_that_contains_itself(wrapper):
    state = {}
    state["a"] = state
    with pytest.raises(ValueError, match="state"):
        wrapper.load_kl_state_dict(state)


def leaves_of(value, path=()):
    """The way to everything in a nested value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from leaves_of(inner, (*path, key))


def with_changed(value, path, new):
    changed = copy.deepcopy(value)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return changed


@pytest.mark.usefixtures("unchanged")
def test_a_state_with_any_part_of_another_type_is_refused_or_taken_whole(wrapper):
    """Whatever was edited by hand: an exception, or a state that reads back as it was given."""
    state = wrapper.kl_state_dict()
    target = make_walk(min_window=1)
    taken = []
    for path in leaves_of(state):
        for new in (None, "x", -1, 1.5, [], {}, 2**64, True):
            edited = with_changed(state, path, new)
            before = target.kl_state_dict()
            try:
                target.load_kl_state_dict(edited)
                expected = edited
            except ValueError:
                expected = before
            if target.kl_state_dict() != expected:
                taken.append((path, new))
    assert taken == []


@pytest.mark.parametrize("part", [None, 3, "snapshot.json", [], object()], ids=shown)
def test_what_is_merged_is_a_dict(wrapper, part):
    with pytest.raises(TypeError, match=r"snapshots\[1\] must be a dict, got"):
        merge_snapshots(wrapper.snapshot(), part)


@pytest.mark.parametrize("part", [{}, {"a": NAN}, {"counts": {}}], ids=str)
def test_what_is_merged_is_a_snapshot(wrapper, part):
    with pytest.raises(ValueError, match=r"snapshot"):
        merge_snapshots(part, wrapper.snapshot())


def test_merging_takes_json_only(wrapper):
    with pytest.raises(TypeError, match=r"snapshots\[0\] must hold JSON values only"):
        merge_snapshots({"a": object()}, wrapper.snapshot())
