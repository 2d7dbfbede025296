"""Values that no space holds: a clear error that names the leaf, and nothing has changed."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from drift.harness import compiled, feed
from drift.strategies import any_space, runs


def leaves(space, name, path=()):
    """Every leaf with its name in messages and the way to it."""
    if isinstance(space, spaces.Tuple):
        children = enumerate(space.spaces)
    elif isinstance(space, spaces.Dict):
        children = space.spaces.items()
    else:
        yield name, path, space
        return
    for key, child in children:
        yield from leaves(child, f"{name}[{key!r}]", (*path, key))


def at(value, path):
    """The part of a nested value."""
    for key in path:
        value = value[key]
    return value


def replaced(value, path, part):
    """A nested value with another part."""
    if not path:
        return part
    key, *rest = path
    if isinstance(value, dict):
        return value | {key: replaced(value[key], rest, part)}
    changed = list(value)
    changed[key] = replaced(value[key], rest, part)
    return tuple(changed)


def with_entry(leaf, value, index, entry):
    """The flat floats of a leaf's value with one entry changed, in its shape."""
    flat = np.array(value, np.float64).reshape(-1)
    flat[index % flat.size] = entry
    return flat.reshape(leaf.shape) if not isinstance(leaf, spaces.Discrete) else flat[0]


def is_integer(leaf):
    """Whether only whole numbers are legal; an integer Box without usable bounds takes others."""
    if not isinstance(leaf, spaces.Box):
        return True
    bounds = np.concatenate([leaf.low.ravel(), leaf.high.ravel()]).astype(np.float64)
    return not np.issubdtype(leaf.dtype, np.floating) and bool(np.all(np.abs(bounds) <= 1e6))


def outside(leaf):
    """A number that a leaf of categories does not hold."""
    if isinstance(leaf, spaces.Discrete):
        return [int(leaf.start) - 1, int(leaf.start) + int(leaf.n), 10**12]
    if isinstance(leaf, spaces.MultiDiscrete):
        return [-4, 7]
    return [-1, 2]


def wrong_shapes(leaf, value):
    """The value with another number of scalars or another rank."""
    array = np.asarray(value)
    if isinstance(leaf, spaces.Discrete):
        return [np.repeat(array.reshape(-1), 2), np.array([], np.int64)]
    more = np.concatenate([array.reshape(-1), array.reshape(-1)[:1]])
    return [more, more[:-2], np.stack([array, array]), more.tolist()]


def wrong_types(leaf):
    """What is no array of numbers of the leaf's shape."""
    shape = () if isinstance(leaf, spaces.Discrete) else leaf.shape
    return [
        None,
        "three",
        np.full(shape, "x"),
        np.full(shape, 1j),
        np.full(shape, None),
        np.zeros(shape, "M8[s]"),
        {},
        object(),
    ]


@st.composite
def bad_parts(draw, leaf, value, declared):
    """A bad value for a leaf, the errors that fit and what the message must hold."""
    kinds = ["nan", "shape", "type"]
    # A range of the user's may give an integer Box axes that take fractions.
    if is_integer(leaf) and (declared or not isinstance(leaf, spaces.Box)):
        kinds.append("fraction")
    if not isinstance(leaf, spaces.Box):
        kinds.append("outside")
    kind = draw(st.sampled_from(kinds))
    index = draw(st.integers(0, 200))
    if kind == "shape":
        return draw(st.sampled_from(wrong_shapes(leaf, value))), ValueError
    if kind == "type":
        return draw(st.sampled_from(wrong_types(leaf))), TypeError
    entry = {
        "nan": lambda: np.nan,
        "fraction": lambda: draw(st.sampled_from([0.5, -0.5, 1e-9])),
        "outside": lambda: draw(st.sampled_from(outside(leaf))),
    }[kind]()
    part = with_entry(leaf, value, index, entry)
    if kind == "outside" and draw(st.booleans()):
        part = part.astype(np.int64)
    return part, ValueError


@given(runs("adjacent"), st.data())
def test_a_bad_leaf_changes_nothing(run, data):
    tracker = compiled(run)
    step = data.draw(st.integers(0, len(run.pairs) - 1))
    feed(tracker, run.pairs[:step])
    before = tracker.statistics(), tracker.state_json()
    pair = list(run.pairs[step])
    side = data.draw(st.sampled_from([0, 1]))
    name = ("observation", "action")[side]
    given_side = (run.observation, run.action)[side]
    space, declared = given_side.space, "value_range" not in given_side.settings
    leaf_name, path, leaf = data.draw(st.sampled_from(list(leaves(space, name))))
    part, error = data.draw(bad_parts(leaf, at(pair[side], path), declared))
    bad = list(pair)
    bad[side] = replaced(pair[side], path, part)
    with pytest.raises(error) as caught:
        tracker.update(*bad)
    assert leaf_name in str(caught.value)
    assert (tracker.statistics(), tracker.state_json()) == before
    assert feed(tracker, run.pairs[step:]) == feed(compiled(run), run.pairs)[step:]


@given(
    runs("adjacent", of=any_space.filter(lambda s: isinstance(s, spaces.Tuple | spaces.Dict))),
    st.data(),
)
def test_a_bad_container_changes_nothing(run, data):
    tracker = compiled(run)
    *earlier, (observation, action) = run.pairs
    feed(tracker, earlier)
    before = tracker.statistics(), tracker.state_json()
    if isinstance(observation, dict):
        key = data.draw(st.sampled_from(sorted(observation)))
        bad = {name: part for name, part in observation.items() if name != key}
        wrong = [None, list(observation.values()), 3.0]
    else:
        bad = data.draw(st.sampled_from([observation[:-1], [*observation, 0]]))
        wrong = [None, {"a": 1}, 3.0]
    with pytest.raises(ValueError, match="observation"):
        tracker.update(bad, action)
    with pytest.raises(TypeError, match="observation"):
        tracker.update(data.draw(st.sampled_from(wrong)), action)
    assert (tracker.statistics(), tracker.state_json()) == before
