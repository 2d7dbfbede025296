"""Spaces without axes (text, sequences, graphs, branches, custom ones): content is the cell."""

import copy
import json
import pickle
import subprocess
import sys
from typing import ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import GraphInstance
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from environments.scripted import Scripted, assert_reports, pairs_of, play, random_actions, twin_of
from kl_proteus import JointKLDivergenceWrapper
from kl_proteus.spaces import layout_from_space
from reference import content

TEXT = spaces.Text(20)
GRAPH = spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3))
KINDS = {
    "text": TEXT,
    "sequence": spaces.Sequence(spaces.Discrete(3)),
    "stacked sequence": spaces.Sequence(spaces.Box(0, 1, (2,)), stack=True),
    "sequence of dicts": spaces.Sequence(
        spaces.Dict(a=spaces.Discrete(2), b=spaces.Text(3)), stack=False
    ),
    "graph": GRAPH,
    "graph without edges": spaces.Graph(spaces.Discrete(3), None),
    "one of": spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (2,)), spaces.Text(4)]),
}


class Point(NamedTuple):
    x: int
    y: int


class Missions(spaces.Space[str]):
    """A custom space whose values have a content."""

    WORDS: ClassVar = ["go to the red ball", "open the door", "pick up a key"]

    def __init__(self):
        super().__init__((), str)

    def sample(self, mask=None, probability=None):
        return str(self.np_random.choice(self.WORDS))

    def contains(self, x):
        return x in self.WORDS


class Opaque(spaces.Space[object]):
    """A custom space whose values have none."""

    def sample(self, mask=None, probability=None):
        return object()


class Unsampled(spaces.Space[object]):
    """A custom space that cannot be sampled."""


def key(value, space=TEXT):
    return layout_from_space(space).key(value)


# What is one cell -----------------------------------------------------------------------------

SAME = {
    "numbers": [1, 1.0, True, np.int64(1), np.float32(1), np.array(1), np.array(1, "uint8")],
    "zeros": [0, 0.0, -0.0, np.float16(-0.0), False],
    "large": [2**100, float(2**100)],
    "largest unsigned": [2**64 - 1, np.uint64(2**64 - 1)],
    "sequences": [(1, 2), [1, 2], np.array([1, 2]), np.array([1.0, 2.0], "float16"), Point(1, 2)],
    "rows": [
        ((1, 2), (3, 4)),
        np.array([[1, 2], [3, 4]]),
        [np.array([1, 2]), (3, 4)],
        np.array([[1, 3], [2, 4]]).T,
        np.array([[1, 2], [3, 4]], ">i4"),
        np.array([[1, 2], [3, 4]], object),
    ],
    "nothing in it": [(), [], np.zeros((0,)), np.zeros((0, 3))],
    "empty rows": [((), ()), np.zeros((2, 0))],
    "text": ["ä", np.str_("ä"), np.array("ä")],
    "texts": [("a", "bc"), np.array(["a", "bc"])],
    "bytes": [b"ab", bytearray(b"ab")],
    "mappings": [{"a": 1, "b": (2,)}, {"b": np.array([2]), "a": 1.0}],
}


@pytest.mark.parametrize("kind", SAME)
def test_a_value_is_its_content_however_it_is_held(kind):
    assert len({key(value) for value in SAME[kind]}) == 1


def test_other_contents_are_other_cells():
    values = [value for same in SAME.values() for value in same[:1]]
    values += [None, "", "a", b"", b"a", 0.5, -1, np.inf, -np.inf, {}, ("ab", "c"), ("abc",)]
    values += [(1, (2,)), ((1, 2),), ((1,), 2), {"a": 1}, {1: "a"}, "\ud800", 1e300, 2**126]
    assert len({key(value) for value in values}) == len(values)


CONTENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**127), 2**127 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(CONTENTS)
def test_the_key_is_the_hash_of_the_canonical_bytes(value):
    assert layout_from_space(TEXT).digits(value) == content.digits(value)


@given(st.lists(st.integers(0, 3), max_size=3), st.sampled_from("bBhHiIlLqQefd"), st.data())
def test_an_array_is_the_sequence_of_its_rows(shape, code, data):
    count = int(np.prod(shape))
    values = data.draw(st.lists(st.integers(0, 100), min_size=count, max_size=count))
    array = np.array(values, code).reshape(shape)
    assert layout_from_space(TEXT).digits(array) == content.digits(array.tolist())


def test_keys_are_the_same_in_every_process():
    code = (
        "from gymnasium.spaces import Text; from kl_proteus.spaces import layout_from_space;"
        "print(layout_from_space(Text(9)).key(('go to the red ball', None)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(out.stdout) == key(("go to the red ball", None))
    # Saved snapshots must stay readable.
    assert int(out.stdout) == 27677292693306421706358378969489690925


# Spaces ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["observation", "action"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_reports_what_the_twin_does(kind, side):
    space = spaces.Dict(a=spaces.Box(0, 1, (2,), np.float64), b=KINDS[kind])
    space.seed(1)
    seen = [space.sample() for _ in range(12)]
    observation, action = (space, None) if side == "observation" else (spaces.Discrete(1), space)
    env = Scripted(seen if side == "observation" else [0] * 12, observation, action)
    actions = random_actions(env.action_space, 40)
    options = {"window": 8, "min_window": 2}
    wrapper = JointKLDivergenceWrapper(env, **options)
    infos = play(wrapper, actions)
    assert_reports(infos, twin_of(env, **options), pairs_of(env, actions))
    assert wrapper.get_kl_statistics()["cells"] > 2


def test_its_axis_takes_one_entry_of_the_options_and_ignores_it():
    space = spaces.Tuple([spaces.Box(0, 1, (1,), np.float64), TEXT, spaces.Box(0, 1, (1,))])
    low, high = [0, None, 5], [10, None, 6]
    layout = layout_from_space(space, bins=[2, 7, 5], value_range=(low, high))
    assert layout.sizes == [2, 2**64 - 1, 5]
    assert layout.names == ["observation[0][0]", "observation[1]", "observation[2][0]"]
    assert layout.digits(([6], "a", [5.5])) == [2, *content.digits("a"), 3]


def test_the_hash_of_a_single_leaf_is_the_key():
    first, *rest = content.digits("a")
    expected = int.from_bytes(b"".join(d.to_bytes(4, "big") for d in (first, *rest)), "big")
    assert key("a") == expected
    assert key(("a", 0), spaces.Tuple([TEXT, spaces.Discrete(1)])) == expected
    assert key((0, "a"), spaces.Tuple([spaces.Discrete(1), TEXT])) == expected
    assert key(("a", 0), spaces.Tuple([TEXT, spaces.Discrete(2)])) != expected


def test_a_layout_and_a_snapshot_survive_json_and_pickle():
    layout = layout_from_space(spaces.Dict(text=TEXT, state=spaces.Discrete(3)))
    value = {"text": "left", "state": 1}
    assert pickle.loads(pickle.dumps(layout)).key(value) == layout.key(value)
    assert type(layout).from_json(layout.to_json()) == layout
    wrapper = JointKLDivergenceWrapper(Scripted("abcb", TEXT), window=None)
    play(wrapper, [0, 1, 0])
    snapshot = json.loads(json.dumps(wrapper.snapshot()))
    assert snapshot["observation_axes"] == [{"name": "observation", "kind": "content"}]
    for text, same in (("abcb", True), ("abdb", False)):
        compared = JointKLDivergenceWrapper(Scripted(text, TEXT), reference=snapshot, min_window=1)
        assert (play(compared, [0, 1, 0])[-1]["kl_observation"] == 0.0) is same


@pytest.mark.parametrize(
    "axes",
    ['[{"kind":"content"},{"kind":"content"}]', '[{"kind":"content"},{"kind":"digit"}]'],
)
def test_a_damaged_layout_is_refused(axes):
    text = '{"tree":{"leaf":0},"leaves":[{"name":"o","shape":[2],"axes":%s}]}' % axes  # noqa: UP031
    with pytest.raises(ValueError, match="other axes beside the hash"):
        type(layout_from_space(TEXT)).from_json(text)


def test_a_custom_space_is_taken_by_its_content():
    space = Missions()
    before = copy.deepcopy(space.np_random.bit_generator.state)
    wrapper = JointKLDivergenceWrapper(Scripted(Missions.WORDS * 2, space))
    assert space.np_random.bit_generator.state == before
    play(wrapper, [0] * 5)
    assert wrapper.get_kl_statistics()["cells"] == 3


def test_values_without_a_canonical_form_ask_for_an_encoder():
    nested = spaces.Dict(a=spaces.Tuple([spaces.Discrete(2), Opaque()]))
    message = r"observation\['a'\]\[1\] holds a value of type object, .*give encoder="
    with pytest.raises(TypeError, match=message):
        JointKLDivergenceWrapper(Scripted([0], nested))
    with pytest.raises(TypeError, match=r"action holds a value of type object, .*expected numbers"):
        JointKLDivergenceWrapper(Scripted([0], spaces.Discrete(2), Opaque()))
    # Where no sample can be had, the first value says so.
    wrapper = JointKLDivergenceWrapper(Scripted([object()] * 3, Unsampled()))
    wrapper.reset()
    with pytest.raises(TypeError, match=r"observation holds a value of type object"):
        wrapper.step(0)
    assert wrapper.env.actions == []


@pytest.mark.parametrize("value", [1j, {1, 2}, np.array([1j]), np.datetime64("2026-01-01"), len])
def test_what_has_no_canonical_form(value):
    with pytest.raises(TypeError, match=r"observation holds a value of type .*no canonical form"):
        key(("a", value))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((1, float("nan")), "observation is NaN"),
        (np.array([[1, np.nan]], np.float16), "observation is NaN"),
        (2**127, "more than 128 bits"),
        (-(2**200), "more than 128 bits"),
    ],
)
def test_numbers_that_no_cell_has(value, message):
    with pytest.raises(ValueError, match=message):
        key(value)


def test_a_value_that_holds_itself():
    endless = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested more than 64 deep"):
        key(endless)


def test_a_graph_is_told_apart_by_nodes_edges_and_links():
    nodes, edges = np.zeros((2, 2), np.float32), np.array([1])
    graphs = [
        GraphInstance(nodes, edges, np.array([[0, 1]])),
        GraphInstance(nodes, edges, np.array([[1, 0]])),
        GraphInstance(nodes, edges + 1, np.array([[0, 1]])),
        GraphInstance(nodes + 1, edges, np.array([[0, 1]])),
        GraphInstance(nodes, None, None),
    ]
    assert len({key(graph, GRAPH) for graph in graphs}) == 5


class DeviceArray:
    """An array as other libraries have it: NumPy must ask for its values."""

    def __init__(self, values):
        self.values = np.array(values)

    def __array__(self, dtype=None, copy=None):
        return self.values.astype(dtype or self.values.dtype)


@pytest.mark.parametrize("library", ["torch", "any"])
def test_arrays_of_other_libraries(library):
    make = DeviceArray
    if library == "torch":
        # Without torch, `torch` would be the folder of its tests.
        pytest.importorskip("torch.nn")
        make = pytest.importorskip("torch").tensor
    space = spaces.Dict(
        a=spaces.Box(0, 1, (2,)), b=spaces.Sequence(spaces.Discrete(3)), c=spaces.Box(0, 1, ())
    )
    layout = layout_from_space(space)
    mine = {"a": make([0.25, 0.5]), "b": (make(1), make(2)), "c": make(0.5)}
    assert layout.key(mine) == layout.key({"a": [0.25, 0.5], "b": (1, 2), "c": 0.5})


def test_dict_actions_of_every_kind():
    action = spaces.Dict(
        binary=spaces.MultiDiscrete([2, 2]),
        continuous=spaces.Box(-1, 1, (3,), np.float16),
        word=spaces.Text(4),
        branch=KINDS["one of"],
    )
    env = Scripted([0, 1] * 20, spaces.Discrete(2), action)
    actions = random_actions(action, 30)
    options = {"window": 8, "min_window": 2}
    wrapper = JointKLDivergenceWrapper(env, **options)
    assert_reports(play(wrapper, actions), twin_of(env, **options), pairs_of(env, actions))


def test_check_env_accepts_a_text_environment():
    class Talk(gym.Env):
        observation_space, action_space = spaces.Text(5, charset="abc"), spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return "a", {}

        def step(self, action):
            return "abc"[int(action)], 0.0, False, False, {}

    # The checker advises against wrappers, which is the point here.
    with pytest.warns(UserWarning, match="is different from the unwrapped version"):
        check_env(JointKLDivergenceWrapper(Talk()), skip_render_check=True)
