"""Integer sums: what a tracker says depends on its counts alone, to the last bit."""

import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from drift.harness import compiled, feed
from drift.strategies import MODES, runs
from kl_proteus._core import PairTracker
from kl_proteus.spaces import layout_from_space


def discrete_tracker(n, **settings):
    """A tracker of one small number a side."""
    space = spaces.Discrete(n)
    return PairTracker(
        layout_from_space(space, name="observation"),
        layout_from_space(space, name="action"),
        **settings,
    )


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
def test_a_fresh_tracker_gives_the_same_bits(mode, data):
    run = data.draw(runs(mode))
    assert feed(compiled(run), run.pairs) == feed(compiled(run), run.pairs)


labels = st.integers(0, 6)
streams = st.lists(st.tuples(labels, labels), min_size=30, max_size=60)
windows = st.integers(1, 9)


@given(streams, windows, st.none() | st.integers(1, 12), st.permutations(range(7)))
def test_renamed_cells_give_the_same_bits(pairs, window, lag, names):
    plain = discrete_tracker(7, window=window, lag=lag, min_window=1)
    renamed = discrete_tracker(7, window=window, lag=lag, min_window=1)
    assert feed(plain, pairs) == feed(renamed, [(names[o], names[a]) for o, a in pairs])


@given(streams, streams, windows, st.none() | st.integers(1, 12))
def test_full_windows_forget_what_came_before(before, pairs, window, lag):
    settings = {"window": window, "lag": lag, "min_window": 1}
    fresh, used = discrete_tracker(7, **settings), discrete_tracker(7, **settings)
    feed(used, before)
    full = 2 * window if lag is None else window + lag
    for step, pair in enumerate(pairs, start=1):
        joint, _, _, *rest = fresh.update(*pair)
        old_joint, _, _, *old_rest = used.update(*pair)
        if step >= full:
            assert (joint, *rest) == (old_joint, *old_rest)
    assert fresh.snapshot_json("current") == used.snapshot_json("current")
    assert fresh.snapshot_json("previous") == used.snapshot_json("previous")


@given(st.lists(st.tuples(labels, labels), min_size=1, max_size=20), st.data())
def test_lifetime_against_a_reference_ignores_the_order(pairs, data):
    reference = discrete_tracker(7, window=None)
    feed(reference, data.draw(streams))
    settings = {
        "window": None,
        "min_window": 1,
        "reference": reference.snapshot_json("current"),
    }
    one, other = discrete_tracker(7, **settings), discrete_tracker(7, **settings)
    last = feed(one, pairs)[-1]
    last_shuffled = feed(other, data.draw(st.permutations(pairs)))[-1]
    assert (last[0], *last[3:]) == (last_shuffled[0], *last_shuffled[3:])
