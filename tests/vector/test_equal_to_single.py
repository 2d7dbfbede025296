"""N sub-environments in the vector wrapper are N single wrappers, bit for bit."""

import numpy as np
import pytest

from kl_proteus import VectorJointKLDivergenceWrapper
from vector.harness import (
    AUTORESET_MODES,
    INFO_KEYS,
    KINDS,
    SMALL,
    assert_same_runs,
    batches,
    bounded,
    factories,
    run,
    vector_of,
)

STEPS = 90


def compare(kind, mode, how="sync", settings=None, **options):
    """Runs both and returns the vector wrapper and the vector environment of single ones."""
    settings = SMALL | (settings or {})
    singles = vector_of(factories(kind, settings), mode)
    wrapper = VectorJointKLDivergenceWrapper(
        vector_of(factories(kind), mode, how, **options), **settings
    )
    actions = batches(singles, STEPS)
    ours = run(wrapper, actions, mode)
    assert_same_runs(ours, run(singles, actions, mode))
    return wrapper, singles, ours


EVERYWHERE = [
    *((kind, mode, "sync") for kind in KINDS for mode in AUTORESET_MODES),
    ("cartpole", "NEXT_STEP", "async"),
    ("nested", "SAME_STEP", "async"),
    ("walk", "DISABLED", "async"),
]


@pytest.mark.parametrize(("kind", "mode", "how"), EVERYWHERE)
def test_every_report_is_that_of_a_single_wrapper(kind, mode, how):
    wrapper, singles, ours = compare(kind, mode, how)
    assert any(result[-1]["kl_divergence"].any() for result in ours if len(result) == 4)
    assert wrapper.get_kl_statistics() == list(singles.call("get_kl_statistics"))
    assert wrapper.kl_history == list(singles.call("kl_history"))
    assert {wrapper.kl_encoder} == set(singles.get_attr("kl_encoder"))
    for which in ("current", "previous"):
        for index, snapshot in enumerate(singles.call("snapshot", which)):
            assert wrapper.snapshot(which, index) == snapshot
    states = wrapper.kl_state_dict()["trackers"]
    for row, state in enumerate(singles.call("kl_state_dict")):
        if wrapper.kl_state_dict()["ended"][row]:
            # A single wrapper has read the terminal observation; the next reset replaces it.
            state["observed"] = None
        assert states[row] == state
    wrapper.close()
    singles.close()


@pytest.mark.parametrize("mode", AUTORESET_MODES)
@pytest.mark.parametrize(
    "settings",
    [
        {"window": None},
        {"lag": 5},
        {"obs_bins": 3, "epsilon": 1e-3},
        {"info_on_reset": True, "info_prefix": "a/"},
        {"encoder": bounded},
        {"encoder": "RandomProjection(axes=2)"},
        {"encoder": "vector.harness:bounded", "obs_bins": 4, "obs_scale": 0.5},
    ],
    ids=[
        "everything",
        "lag",
        "bins",
        "info-on-reset",
        "encoder",
        "built-in-encoder",
        "named-encoder",
    ],
)
def test_every_option_means_the_same(mode, settings):
    prefix = settings.get("info_prefix", "")
    keys = [prefix + key for key in INFO_KEYS]
    merged = SMALL | settings
    singles = vector_of(factories("cartpole", merged), mode)
    wrapper = VectorJointKLDivergenceWrapper(vector_of(factories("cartpole"), mode), **merged)
    actions = batches(singles, STEPS)
    ours, theirs = run(wrapper, actions, mode), run(singles, actions, mode)
    assert_same_runs(ours, theirs, keys)
    assert any(result[-1][keys[0]].any() for result in ours if len(result) == 4)


@pytest.mark.parametrize("mode", AUTORESET_MODES)
def test_a_reference_means_the_same(mode):
    wrapper, singles, _ = compare("walk", mode, settings={"window": None})
    for reference in (wrapper.snapshot(), wrapper.snapshot("previous", 1)):
        compare("walk", mode, settings={"reference": reference})
        compare("walk", mode, settings={"reference": reference, "window": None})
    counts = [env.snapshot() for env in singles.envs]
    from kl_proteus import merge_snapshots

    assert wrapper.snapshot() == merge_snapshots(*counts)


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("kind", ["cartpole", "nested"])
def test_buffers_that_are_used_again_are_read_in_time(kind, how):
    compare(kind, "NEXT_STEP", how, copy=False)


@pytest.mark.parametrize("mode", AUTORESET_MODES)
def test_a_long_run_under_the_default_windows(mode):
    singles = vector_of(factories("cartpole", {}), mode)
    wrapper = VectorJointKLDivergenceWrapper(vector_of(factories("cartpole"), mode))
    actions = batches(singles, 2600)
    assert_same_runs(run(wrapper, actions, mode), run(singles, actions, mode))
    statistics = wrapper.get_kl_statistics()
    assert isinstance(statistics, list)
    assert all(one["ready"] for one in statistics)
    assert statistics == list(singles.call("get_kl_statistics"))


def test_an_infinity_outside_the_mask_would_be_seen():
    wrapper, _, ours = compare("walk", "NEXT_STEP")
    outside = [
        result[-1][key][~result[-1]["_" + key]]
        for result in ours
        if len(result) == 4
        for key in INFO_KEYS
    ]
    assert sum(map(len, outside)) > 0
    assert not np.concatenate(outside).any()
    assert wrapper.num_envs == 3
