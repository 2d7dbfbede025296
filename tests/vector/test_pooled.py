"""Pooled rows are one tracker that is fed in the order of their index."""

import numpy as np
import pytest

from kl_proteus._core import PairTracker
from kl_proteus.spaces import layout_from_space
from reference.history import ReferenceHistory
from reference.tracker import ReferenceTracker
from vector.harness import (
    AUTORESET_MODES,
    INFO_KEYS,
    SMALL,
    batches,
    factories,
    run,
    vector_of,
    wrap,
)

N = 3


def fed_in_order(env, actions, mode, settings):
    """A single tracker's report after the pairs of each step, and the twin of definitions."""
    space = env.single_observation_space
    window = settings["window"]
    scaled = {
        "window": None if window is None else N * window,
        "lag": None if settings.get("lag") is None else N * settings["lag"],
        "min_window": N * settings["min_window"],
    }
    tracker = PairTracker(
        layout_from_space(space, "observation"),
        layout_from_space(env.single_action_space, "action", option="action"),
        **scaled,
    )
    twin = ReferenceTracker(space, env.single_action_space, **scaled)
    history = [ReferenceHistory(settings["history_size"]) for _ in range(3)]
    seen, ignored = env.reset(seed=11)[0], np.zeros(N, bool)
    for step, action in enumerate(actions):
        result, expected, counted = tracker.report(), None, False
        for row in np.flatnonzero(~ignored):
            result = tracker.update(seen[row], action[row])
            expected = twin.update(seen[row], action[row])
            counted = True
        if counted and tracker.reported:
            for one, value in zip(history, (result[0], result[3], result[4]), strict=True):
                one.push(value)
        yield result, expected, history[0], tracker
        seen, _, terminations, truncations, _ = env.step(action)
        done = terminations | truncations
        ignored = done if mode == "NEXT_STEP" else np.zeros(N, bool)
        if mode == "DISABLED" and done.any():
            seen = env.reset(seed=step, options={"reset_mask": done})[0]
        elif mode != "DISABLED" and step % 17 == 16:
            mask = np.array([True, False, True])
            seen = env.reset(options={"reset_mask": mask})[0]
            ignored = ignored & ~mask


@pytest.mark.parametrize("mode", AUTORESET_MODES)
@pytest.mark.parametrize(
    "settings", [{}, {"lag": 4}, {"window": None}], ids=["windows", "lag", "everything"]
)
def test_it_is_one_tracker_fed_in_the_order_of_the_rows(mode, settings):
    settings = SMALL | settings
    env = wrap(vector_of(factories("cartpole"), mode), pooled=True, **settings)
    actions = batches(env, 90)
    steps = [result for result in run(env, actions, mode) if len(result) == 4]
    bare = vector_of(factories("cartpole"), mode)
    values = 0
    tracker, history = None, None
    for (*_, infos), fed in zip(steps, fed_in_order(bare, actions, mode, settings), strict=True):
        result, expected, history, tracker = fed
        for key, place in (("kl_divergence", 0), ("kl_observation", 3), ("kl_policy", 4)):
            np.testing.assert_array_equal(infos[key], np.full(N, result[place]))
            assert infos["_" + key].all()
            if expected is not None:
                assert abs(result[place] - expected[key]) <= 1e-12
        np.testing.assert_allclose(infos["kl_divergence_mean"], history.mean(), atol=1e-12)
        np.testing.assert_allclose(infos["kl_divergence_std"], history.std(), atol=1e-7)
        values += result[0] > 0.0
    assert values > 20
    statistics = env.get_kl_statistics()
    assert isinstance(statistics, dict)
    for key in ("cells", "steps", "flow", "ready", "current"):
        assert statistics[key] == tracker.statistics()[key]
    assert env.kl_history == history.values


def test_windows_count_steps_of_all_rows():
    env = wrap(vector_of(factories("walk"), "DISABLED"), pooled=True, window=5, min_window=2)
    env.reset(seed=1)
    ready = []
    for number, action in enumerate(batches(env, 12), start=1):
        infos = env.step(action)[4]
        ready.append(env.get_kl_statistics()["ready"])
        assert bool(infos["kl_divergence"].any()) <= (number >= 4)
        env.reset(seed=number)
    assert ready == [False] * 9 + [True] * 3
    assert sum(count for row in env.snapshot()["counts"].values() for count in row.values()) == 15
    assert env.get_kl_statistics()["steps"] == 36


def test_a_step_in_which_every_row_resets_repeats_the_report():
    env = wrap(vector_of(factories("walk", lengths=(4, 4, 4)), "NEXT_STEP"), pooled=True)
    env.reset(seed=1)
    reports = [env.step(action)[4] for action in batches(env, 40)]
    for n in range(4, 40, 5):
        for key in INFO_KEYS:
            np.testing.assert_array_equal(reports[n][key], reports[n - 1][key])
    assert env.get_kl_statistics()["steps"] == 3 * 32
    assert len(env.kl_history) == SMALL["history_size"]


def test_one_distribution_has_no_sub_environments():
    env = wrap(vector_of(factories("walk"), "SAME_STEP"), pooled=True)
    assert env.pooled
    with pytest.raises(ValueError, match="must be None where the sub-environments are pooled"):
        env.snapshot(index=0)


def test_a_window_of_more_pairs_than_can_be_numbered_is_refused():
    with pytest.raises(ValueError, match="for 3 rows in one window"):
        wrap(vector_of(factories("walk"), "SAME_STEP"), pooled=True, window=2**31)
    wrap(vector_of(factories("walk"), "SAME_STEP"), window=2**31)


def test_the_snapshot_of_all_rows_is_that_of_the_pool():
    pooled, each = (
        wrap(vector_of(factories("walk"), "SAME_STEP"), pooled=p, window=None)
        for p in (True, False)
    )
    actions = batches(pooled, 40)
    run(pooled, actions, "SAME_STEP")
    run(each, actions, "SAME_STEP")
    assert pooled.snapshot() == each.snapshot()
