"""Prompts: exact texts, exact round trips of actions, tolerant reading, hooks and errors."""

import contextlib
import copy
import json
import math
import pickle
import re
import timeit
import warnings

import gymnasium as gym
import numpy as np
import prompt_hooks
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kl_proteus.llm.text.environment_text import EnvironmentText


def text_for(env_id, **kwargs):
    env = gym.make(env_id)
    return EnvironmentText(env_id, env.observation_space, env.action_space, env=env, **kwargs)


def acting_in(action_space, **kwargs):
    return EnvironmentText(None, spaces.Discrete(2), action_space, **kwargs)


def seeing(observation_space, **kwargs):
    return EnvironmentText(None, observation_space, spaces.Discrete(2), **kwargs)


def same(parsed, action):
    """Whether an action was read back to the last bit, with the types and shapes of the space."""
    if isinstance(parsed, np.ndarray):
        # Gymnasium samples a Box without axes as a NumPy scalar.
        action = np.asarray(action)
        return (
            (parsed.dtype, parsed.shape) == (action.dtype, action.shape)
            and np.array_equal(parsed, action)
            and np.array_equal(np.signbit(parsed), np.signbit(action))
        )
    if type(parsed) is not type(action):
        return False
    if isinstance(parsed, spaces.GraphInstance):
        return (
            same(parsed.nodes, action.nodes)
            and same(parsed.edges, action.edges)
            and np.array_equal(parsed.edge_links, action.edge_links)
        )
    if isinstance(parsed, dict):
        return list(parsed) == list(action) and all(same(parsed[k], action[k]) for k in parsed)
    if isinstance(parsed, tuple):
        return len(parsed) == len(action) and all(map(same, parsed, action))
    return parsed == action


# --- whole prompts -----------------------------------------------------------------------------


def test_prompt_of_cart_pole():
    assert text_for("CartPole-v1").system_prompt() == (
        "Balance a pole that stands on a cart by pushing the cart along a track. LEFT pushes the "
        "cart to the left and RIGHT to the right, always with the same force and for 0.02 s; "
        "there is no action without a push. Positions, velocities and angles are positive to the "
        "right, and the angle of an upright pole is 0. The episode ends when the pole is more "
        "than 0.2094 rad (12 degrees) from upright, when the cart is more than 2.4 m from the "
        "middle of the track, or after 500 steps. The reward is 1 for every step, so keep the "
        "pole up for as long as possible.\n"
        "\n"
        "An observation gives cart position (m), cart velocity (m/s), pole angle (rad), pole "
        "angular velocity (rad/s). Answer with nothing but one of these actions: LEFT, RIGHT."
    )


def test_prompt_of_pendulum_gives_number_format_and_bounds():
    text = text_for("Pendulum-v1")
    assert text.system_prompt().endswith(
        "\n\nAn observation gives cosine of the angle, sine of the angle, angular velocity "
        "(rad/s). Answer with nothing but one number between -2 and 2: torque (N m)."
    )
    clipped = gym.wrappers.ClipAction(gym.make("Pendulum-v1"))
    free = EnvironmentText("Pendulum-v1", clipped.observation_space, clipped.action_space)
    assert free.system_prompt().endswith("Answer with nothing but one number: torque (N m).")


def test_prompt_of_a_grid_world_has_no_legend():
    assert (
        text_for("FrozenLake-v1")
        .system_prompt()
        .endswith(
            "Map (S start, F frozen, H hole, G goal):\nSFFF\nFHFH\nFFFH\nHFFG\n\n"
            "Answer with nothing but one of these actions: LEFT, DOWN, RIGHT, UP."
        )
    )


def test_prompt_of_an_unknown_environment():
    text = EnvironmentText("lab/Robot-v0", spaces.Box(-1, 1, (3,)), spaces.Discrete(3))
    assert text.system_prompt() == (
        "Act in the environment lab/Robot-v0: you are given one observation after the other, and "
        "choose an action for each. Choose the actions that make the sum of the rewards of an "
        "episode as large as possible.\n"
        "\n"
        "Answer with nothing but one of these actions: action 0, action 1, action 2."
    )


@pytest.mark.parametrize(
    ("space", "instruction"),
    [
        (
            spaces.Discrete(1000),
            'the word "action" and a number from 0 to 999, such as: action 0.',
        ),
        (spaces.Discrete(2, start=-1), "one of these actions: action -1, action 0."),
        (spaces.Box(-1, 1, ()), "one number between -1 and 1."),
        (spaces.Box(0, np.inf, (1,)), "one number of at least 0."),
        (spaces.Box(-np.inf, 0.1, (1,)), "one number of at most 0.1."),
        (spaces.Box(-np.inf, np.inf, (1,)), "one number."),
        (spaces.Box(0, 255, (1,), np.uint8), "one integer between 0 and 255."),
        (
            spaces.Box(-1, 1, (3,)),
            "a JSON array of 3 numbers, each between -1 and 1. An example of the form: [0, 0, 0]",
        ),
        (
            spaces.Box(np.array([-1, 0], np.float32), np.array([1, 2], np.float32)),
            "a JSON array of 2 numbers: action[0] between -1 and 1, action[1] between 0 and 2. "
            "An example of the form: [0, 1]",
        ),
        (
            spaces.Box(0, 1, (2, 2)),
            "a nested JSON array of shape 2x2 of numbers, each between 0 and 1. "
            "An example of the form: [[0.5, 0.5], [0.5, 0.5]]",
        ),
        (
            spaces.MultiDiscrete([5, 2], start=[0, 3]),
            "a JSON array of 2 integers, from 0 to 4 and from 3 to 4. "
            "An example of the form: [0, 3]",
        ),
        (
            spaces.MultiBinary(3),
            "a JSON array of 3 integers, each from 0 to 1. An example of the form: [0, 0, 0]",
        ),
        (
            spaces.Text(5, min_length=2, charset="ab"),
            'a JSON string of 2 to 5 characters out of "ab". An example of the form: "aa"',
        ),
        (
            spaces.Dict({"gear": spaces.Discrete(3), "gas": spaces.Box(0, 1, (1,))}),
            'a JSON object with the members "gas": one number between 0 and 1; "gear": one '
            'integer from 0 to 2. An example of the form: {"gas": 0.5, "gear": 0}',
        ),
        (
            spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)]),
            "a JSON array of 2 items: one integer from 0 to 1; a JSON array of 2 integers, each "
            "from 0 to 1. An example of the form: [0, [0, 0]]",
        ),
        (
            spaces.Sequence(spaces.Discrete(2)),
            "a JSON array of any number of items, each one integer from 0 to 1. "
            "An example of the form: [0]",
        ),
    ],
)
def test_instructions_say_exactly_how_to_answer(space, instruction):
    prompt = acting_in(space).system_prompt()
    assert prompt.partition("\n\n")[2] == f"Answer with nothing but {instruction}"


def test_long_instructions_stay_short():
    bounds = np.arange(1, 101, dtype=np.float32)
    prompt = acting_in(spaces.Box(-bounds, bounds)).system_prompt()
    assert prompt.endswith(
        "a JSON array of 100 numbers, each within bounds of its own, all of them between -100 and "
        "100."
    )
    assert len(acting_in(spaces.MultiDiscrete(range(2, 102))).system_prompt()) < 500


@pytest.mark.parametrize(
    "env_id",
    ["CartPole-v1", "MountainCarContinuous-v0", "Acrobot-v1", "FrozenLake-v1", "Blackjack-v1"],
)
def test_examples_of_real_episodes_are_complete(env_id):
    env = gym.make(env_id)
    text = text_for(env_id)
    observation, _ = env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(50):
        written = text.observation_text(observation)
        json.dumps(written).encode()
        assert written == text.observation_text(copy.deepcopy(observation))
        action = env.action_space.sample()
        assert same(text.parse_action(text.action_text(action)), action)
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()


# --- observations ------------------------------------------------------------------------------


def test_observation_of_cart_pole():
    text = text_for("CartPole-v1")
    observation = np.array([0.027346, -0.0, 0.03585, -1.98765], dtype=np.float32)
    expected = (
        "cart position=0.02735, cart velocity=0, pole angle=0.03585, pole angular velocity=-1.988"
    )
    assert text.observation_text(observation) == expected
    assert text.observation_text(observation.tolist()) == expected


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (-1e-30, "-1e-30"),
        (0.1, "0.1"),
        (1 / 3, "0.3333"),
        (-2 / 3, "-0.6667"),
        (1e-5, "1e-05"),
        (9999.4, "9999"),
        (9999.5, "10000"),
        (12345.6, "12346"),
        (-123456.7, "-123457"),
        (1e7, "1e+07"),
        (1.23456e20, "1.235e+20"),
        (np.inf, "Infinity"),
        (-np.inf, "-Infinity"),
        (np.nan, "NaN"),
    ],
)
def test_floats_have_about_four_digits(value, written):
    text = seeing(spaces.Box(-np.inf, np.inf, (1,), np.float64))
    assert text.observation_text(np.array([value])) == f"observation[0]={written}"
    scalar = seeing(spaces.Box(-np.inf, np.inf, (), np.float64))
    assert scalar.observation_text(np.float64(value)) == f"observation={written}"
    wide = seeing(spaces.Box(-np.inf, np.inf, (1, 1), np.longdouble))
    assert wide.observation_text(np.array([[value]], np.longdouble)) == f"observation=[[{written}]]"


@pytest.mark.parametrize(
    ("space", "observation", "written"),
    [
        (spaces.Discrete(5, start=-2), np.int64(-2), "observation=-2"),
        (spaces.Discrete(5), np.array([4]), "observation=4"),
        (spaces.MultiDiscrete([3, 4]), np.array([2, 3]), "observation[0]=2, observation[1]=3"),
        (spaces.MultiBinary([2, 2]), np.eye(2, dtype=np.int8), "observation=[[1, 0], [0, 1]]"),
        (
            spaces.Box(0, 1, (2,), bool),
            np.array([True, False]),
            "observation[0]=1, observation[1]=0",
        ),
        (
            spaces.Box(0, 2**62, (1,), np.int64),
            np.array([2**61 + 1]),
            f"observation[0]={2**61 + 1}",
        ),
        (spaces.Box(0, 1, (0,)), np.zeros(0), "observation=[]"),
        (spaces.Text(9), 'say "hi"\n', r'observation="say \"hi\"\n"'),
        (spaces.Text(9), "", 'observation=""'),
        (spaces.Text(9), "h\u00e9 \U0001f451", 'observation="h\u00e9 \U0001f451"'),
        (spaces.Text(9), "\ud83d!", r'observation="\ud83d!"'),
        (spaces.Tuple([]), (), "observation=()"),
        (spaces.Dict({}), {}, "observation={}"),
        (
            spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (2,))]),
            (1, np.array([0, 1])),
            "observation[0]=1, observation[1][0]=0, observation[1][1]=1",
        ),
        (
            spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Dict(x=spaces.Box(0, 1, (2,)))}),
            {"b": 2, "a": {"x": [0.5, 1]}},
            "a.x[0]=0.5, a.x[1]=1, b=2",
        ),
        (
            spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (1,))]),
            (np.int64(1), np.array([0.5])),
            "observation option=1, observation[0]=0.5",
        ),
        (
            spaces.Sequence(spaces.Box(0, 1, (1,))),
            (np.array([0.5]), np.array([0.25])),
            "observation length=2, observation[0][0]=0.5, observation[1][0]=0.25",
        ),
        (spaces.Sequence(spaces.Discrete(2)), (), "observation length=0"),
        (
            spaces.Sequence(spaces.Box(0, 1, (1,)), stack=True),
            np.array([[0.5], [0.25]]),
            "observation length=2, observation[0][0]=0.5, observation[1][0]=0.25",
        ),
        (
            spaces.Graph(spaces.Box(0, 1, (1,)), spaces.Discrete(2)),
            spaces.GraphInstance(np.array([[0.5], [1]]), np.array([1]), np.array([[0, 1]])),
            "observation nodes=[[0.5], [1]], observation edges=[1], observation links=[[0, 1]]",
        ),
        (
            spaces.Graph(spaces.Box(0, 1, (1,)), None),
            spaces.GraphInstance(np.array([[0.5]]), None, None),
            "observation nodes=[[0.5]], observation edges=none, observation links=none",
        ),
    ],
)
def test_observations_of_every_space(space, observation, written):
    assert seeing(space).observation_text(observation) == written


def test_large_arrays_are_summarised():
    space = spaces.Box(0, 255, (4, 4, 5), np.uint8)
    image = np.arange(80, dtype=np.uint8).reshape(4, 4, 5)
    assert seeing(space).observation_text(image) == (
        "observation=(4x4x5 uint8 array, min=0, mean=39.5, max=79, 80 values not listed)"
    )
    # 64 values are still listed.
    listed = seeing(spaces.Box(0, 1, (64,))).observation_text(np.zeros(64))
    assert listed.count("=") == 64
    assert "not listed" in seeing(spaces.Box(0, 1, (65,))).observation_text(np.zeros(65))
    bits = seeing(spaces.MultiBinary(65)).observation_text(np.ones(65, np.int8))
    assert bits == "observation=(65 int8 array, min=1, mean=1, max=1, 65 values not listed)"


def test_summaries_name_what_is_not_finite():
    values = np.full(70, 1e308)
    values[:3] = np.nan, np.inf, -np.inf
    text = seeing(spaces.Box(-np.inf, np.inf, (70,), np.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert text.observation_text(values) == (
            "observation=(70 float64 array, min=1e+308, mean=Infinity, max=1e+308, NaN=1, "
            "infinite=2, 70 values not listed)"
        )
        assert "min" not in text.observation_text(np.full(70, np.nan))


def test_long_sequences_are_cut():
    text = seeing(spaces.Sequence(spaces.Discrete(2))).observation_text((1,) * 70)
    assert text.startswith("observation length=70, observation[0]=1, ")
    assert text.endswith("observation[63]=1, (6 more items not listed)")


class Mission(spaces.Space):
    """A space that Gymnasium does not define."""

    def contains(self, x):
        return isinstance(x, str)


@pytest.mark.parametrize(
    ("observation", "written"),
    [
        ("go left", 'observation="go left"'),
        (None, "observation=none"),
        (np.float32(0.5), "observation=0.5"),
        ([1, 2.5], "observation=[1, 2.5]"),
        ([1, "a"], 'observation[0]=1, observation[1]="a"'),
        ({"x": {"y": np.arange(2)}}, "x.y=[0, 1]"),
        ({}, "observation={}"),
        ([], "observation=[]"),
    ],
)
def test_foreign_spaces_are_written_by_the_type_of_the_value(observation, written):
    assert seeing(Mission()).observation_text(observation) == written


def test_foreign_values_need_a_formatter():
    with pytest.raises(TypeError, match="got object; give observation_formatter"):
        seeing(Mission()).observation_text(object())


@pytest.mark.parametrize(
    ("space", "observation", "error", "message"),
    [
        (
            spaces.Box(0, 1, (2,)),
            np.zeros(3),
            ValueError,
            r"observation must be of shape \(2,\), got",
        ),
        (spaces.Box(0, 1, (2,)), ["a", "b"], TypeError, "observation must be real numbers"),
        (spaces.Box(0, 1, (2,)), [[1], [1, 2]], ValueError, "must be a rectangular array"),
        (spaces.Discrete(3), 3, ValueError, "observation must be an integer from 0 to 2, got 3"),
        (spaces.Discrete(3), 1.0, TypeError, "observation must be one integer"),
        (spaces.Text(3), 5, TypeError, r"observation must be a str, got int"),
        (spaces.Tuple([spaces.Discrete(2)]), (1, 1), ValueError, "must have 1 items, got 2"),
        (spaces.Tuple([spaces.Discrete(2)]), 1, TypeError, "observation must be a tuple, got 1"),
        (spaces.Dict(a=spaces.Discrete(2)), {"b": 1}, ValueError, r"must have the keys \['a'\]"),
        (spaces.Dict(a=spaces.Discrete(2)), 3, TypeError, "observation must be a mapping, got 3"),
        (
            spaces.Dict(a=spaces.Discrete(2)),
            {"a": 9},
            ValueError,
            "a must be an integer from 0 to 1",
        ),
        (spaces.OneOf([spaces.Discrete(2)]), (1, 0), ValueError, "option must be 0 to 0, got 1"),
        (spaces.Graph(spaces.Discrete(2), None), 3, TypeError, "must be a GraphInstance, got 3"),
    ],
)
def test_wrong_observations_are_named(space, observation, error, message):
    with pytest.raises(error, match=message):
        seeing(space).observation_text(observation)


def test_texts_do_not_depend_on_print_options():
    text = text_for("Pendulum-v1")
    observation, action = np.array([0.123456, 0, 1], np.float32), np.array([0.1], np.float32)
    with np.printoptions(precision=1, suppress=True, legacy="1.13"):
        assert text.observation_text(observation).startswith("cosine of the angle=0.1235, ")
        assert text.action_text(action) == "0.1"


def test_names_from_keys_are_one_line_of_valid_text():
    space = spaces.Dict({"a\nb": spaces.Discrete(2), "\ud800": spaces.Discrete(2)})
    written = seeing(space).observation_text({"a\nb": 0, "\ud800": 1})
    assert written == "a b=0, \ufffd=1"


# --- actions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "action", [1, np.int64(1), np.int8(1), np.uint8(1), True, np.array(1), np.array([1]), [1]]
)
def test_discrete_actions_come_in_any_kind_of_integer(action):
    assert text_for("CartPole-v1").action_text(action) == "RIGHT"
    assert acting_in(spaces.Discrete(3)).action_text(action) == "action 1"


def test_parsed_actions_have_the_dtype_of_the_space():
    action = text_for("CartPole-v1").parse_action("LEFT")
    assert (type(action), action) == (np.int64, 0)
    action = text_for("Pendulum-v1").parse_action("0.5")
    assert (action.dtype, action.shape, action.tolist()) == (np.float32, (1,), [0.5])


@pytest.mark.parametrize(
    ("space", "action", "written"),
    [
        (spaces.Box(-1, 1, (1,)), np.array([0.1], np.float32), "0.1"),
        (spaces.Box(-1, 1, (1,)), np.array([0.1]), "0.1"),  # rounded to the dtype of the space
        (spaces.Box(-1, 1, ()), 1, "1"),
        (spaces.Box(-1, 1, (1,)), [-0.0], "-0"),
        (spaces.Box(-1, 1, (1,)), 2.5, "2.5"),
        (spaces.Box(-1, 1, (1,)), [-1e-10], "-1e-10"),
        (spaces.Box(-1, 1, (1,)), [1e20], "1e+20"),
        (spaces.Box(-np.inf, np.inf, (2,)), [np.inf, -np.inf], "[Infinity, -Infinity]"),
        (spaces.Box(-1, 1, (2, 2)), np.eye(2), "[[1, 0], [0, 1]]"),
        (spaces.Box(-1, 1, (2, 0)), np.zeros((2, 0)), "[[], []]"),
        (spaces.Box(0, 9, (2,), np.uint8), [200, 3.0], "[200, 3]"),
        (spaces.Box(0, 1, (2,), bool), [True, False], "[1, 0]"),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), [[1, 2], [3, 4]], "[[1, 2], [3, 4]]"),
        (spaces.MultiBinary(1), [1], "1"),
        (spaces.Text(5), "abc", '"abc"'),
    ],
)
def test_texts_of_actions(space, action, written):
    text = acting_in(space)
    assert text.action_text(action) == written
    parsed = text.parse_action(written)
    assert same(parsed, np.asarray(action).astype(space.dtype).reshape(space.shape or ())) or (
        parsed == action
    )


DTYPES = (np.float16, np.float32, np.float64, np.longdouble)


@given(bits=st.integers(0, 2**64 - 1), dtype=st.sampled_from(DTYPES[:3]))
def test_floats_keep_every_bit(bits, dtype):
    width = np.dtype(dtype).itemsize
    value = np.frombuffer((bits % 2 ** (8 * width)).to_bytes(width, "little"), dtype)
    assume(not np.isnan(value[0]))
    text = acting_in(spaces.Box(-np.inf, np.inf, (1,), dtype))
    written = text.action_text(value)
    assert same(text.parse_action(written), value)
    assert (
        float(np.format_float_scientific(value[0], unique=True)) == float(written)
        or dtype(float(written)) == value[0]
    )


@given(st.floats(allow_nan=False, width=64), st.integers(-9000, 9000))
def test_long_doubles_keep_every_bit(value, exponent):
    with np.errstate(all="ignore"):
        wide = np.array([value], np.longdouble) / 3 * np.longdouble(2) ** exponent
    assume(not np.isnan(wide[0]))
    text = acting_in(spaces.Box(-np.inf, np.inf, (1,), np.longdouble))
    assert same(text.parse_action(text.action_text(wide)), wide)


def test_narrow_floats_survive_being_read_as_doubles():
    # All float16 values; the float32 values next to powers of two are the hard ones.
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    halves = halves[~np.isnan(halves)]
    text = acting_in(spaces.Box(-np.inf, np.inf, halves.shape, np.float16))
    assert same(text.parse_action(text.action_text(halves)), halves)
    powers = np.float32(2) ** np.arange(-149, 128, dtype=np.float32)
    singles = np.concatenate([np.nextafter(powers, np.float32(0)), powers])
    text = acting_in(spaces.Box(-np.inf, np.inf, singles.shape, np.float32))
    assert same(text.parse_action(text.action_text(singles)), singles)


INTEGERS = (np.int8, np.uint8, np.int32, np.int64, np.uint64)
CHARSETS = ("ab", 'x"\\\n ', "\u00e9\u03b1\U0001f451.", "Action: []{}0,")


@st.composite
def boxes(draw):
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    dtype = draw(st.sampled_from((*DTYPES[:3], *INTEGERS, bool)))
    if np.dtype(dtype).kind == "f":
        low, high = draw(st.sampled_from([(-1, 1), (0, 1000), (-np.inf, np.inf), (-1, np.inf)]))
    elif dtype is bool:
        low, high = 0, 1
    else:
        low, high = draw(st.sampled_from([(0, 1), (0, 100), (3, 120)]))
    return spaces.Box(low, high, shape, dtype)


@st.composite
def multi_discretes(draw):
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
    size = math.prod(shape)
    counts = draw(st.lists(st.integers(1, 9), min_size=size, max_size=size))
    start = draw(st.lists(st.integers(-9, 9), min_size=size, max_size=size))
    return spaces.MultiDiscrete(
        np.reshape(counts, shape),
        dtype=draw(st.sampled_from([np.int64, np.int32, np.int8])),
        start=np.reshape(start, shape),
    )


texts = st.builds(
    lambda charset, low, extra: spaces.Text(low + extra, min_length=low, charset=charset),
    st.sampled_from(CHARSETS),
    st.integers(0, 3),
    st.integers(1, 3),
)
leaves = st.one_of(
    st.builds(
        lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 40), st.integers(-9, 9)
    ),
    boxes(),
    multi_discretes(),
    st.builds(spaces.MultiBinary, st.lists(st.integers(1, 3), min_size=1, max_size=2)),
    texts,
)


def composites(children):
    few = st.lists(children, min_size=1, max_size=3)
    keys = st.text(max_size=4)
    return st.one_of(
        st.builds(spaces.Tuple, few),
        st.builds(spaces.Dict, st.dictionaries(keys, children, min_size=1, max_size=3)),
        st.builds(spaces.OneOf, few),
        st.builds(spaces.Sequence, children),
        st.builds(lambda child: spaces.Sequence(child, stack=True), st.one_of(boxes(), leaves)),
    )


any_space = st.recursive(leaves, composites, max_leaves=6)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(space=any_space, seed=st.integers(0, 2**31 - 1))
def test_every_action_is_read_back_exactly(space, seed):
    space.seed(seed)
    text = pickle.loads(pickle.dumps(acting_in(space)))
    for _ in range(3):
        action = space.sample()
        written = text.action_text(action)
        assert written
        written.encode()
        assert same(text.parse_action(written), action)
        for decorated in (f" {written}\n", f"Action: {written}", f"`{written}`"):
            if not isinstance(space, spaces.Text):
                assert same(text.parse_action(decorated), action)
    prompt = text.system_prompt()
    prompt.encode()
    assert prompt == acting_in(space).system_prompt()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(space=any_space, seed=st.integers(0, 2**31 - 1))
def test_every_observation_has_a_text(space, seed):
    space.seed(seed)
    text = pickle.loads(pickle.dumps(seeing(space)))
    for _ in range(3):
        observation = space.sample()
        written = text.observation_text(observation)
        assert written
        written.encode()
        assert "=-0," not in f"{written},"
        assert written == seeing(space).observation_text(observation)


@settings(deadline=None)
@given(space=st.one_of(leaves, st.builds(lambda s: spaces.Tuple([s]), leaves)), answer=st.text())
def test_any_answer_is_an_action_or_a_value_error(space, answer):
    text = acting_in(space)
    action = None
    with contextlib.suppress(ValueError):
        action = text.parse_action(answer)
    if action is not None:
        assert same(text.parse_action(text.action_text(action)), action)


@pytest.mark.parametrize(
    "child",
    [
        spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(3)),
        spaces.Tuple([spaces.MultiBinary(2), spaces.Text(3)]),
        spaces.Sequence(spaces.Discrete(3)),
    ],
)
@pytest.mark.parametrize("length", [0, 1, 3])
def test_stacked_sequences_of_composites_are_read_back_exactly(child, length):
    nodes = spaces.Graph(spaces.Box(-1, 1, (2,)), None)
    space = spaces.Dict(stack=spaces.Sequence(child, stack=True), graph=nodes, seed=0)
    text = acting_in(space)
    stack = gym.vector.utils.create_empty_array(child, length)
    if length:
        items = [child.sample() for _ in range(length)]
        stack = gym.vector.utils.concatenate(child, items, stack)
    graph = spaces.GraphInstance(np.eye(2, dtype=np.float32), None, None)
    action = {"stack": stack, "graph": graph}
    assert same(text.parse_action(text.action_text(action)), action)


@pytest.mark.parametrize("nodes", [1, 4])
def test_graphs_are_read_back_exactly(nodes):
    space = spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3), seed=0)
    text = acting_in(space)
    action = space.sample(num_nodes=nodes, num_edges=None if nodes == 1 else 3)
    assert same(text.parse_action(text.action_text(action)), action)
    with pytest.raises(ValueError, match="a JSON object") as caught:
        text.parse_action('{"nodes": [[0, 0]], "edges": [1], "edge_links": [[0, 1]]}')
    assert "must name nodes below 1" in str(caught.value.__cause__)


def test_actions_outside_a_box_are_kept():
    text = text_for("Pendulum-v1")
    action = np.array([-17.25], np.float32)
    assert text.action_text(action) == "-17.25"
    assert same(text.parse_action("-17.25"), action)


@pytest.mark.parametrize(
    "answer",
    [
        "LEFT",
        "left",
        " Left ",
        "LEFT.",
        '"LEFT"',
        "'left'.",
        "`LEFT`",
        "**LEFT**",
        "\u201cLEFT\u201d",
        "Action: LEFT",
        "action: left.",
        "ACTION=LEFT",
        "The action is LEFT.",
        "Answer: **left**",
        '"Action: LEFT"\n',
    ],
)
def test_answers_are_read_tolerantly(answer):
    assert text_for("CartPole-v1").parse_action(answer) == 0


@pytest.mark.parametrize(
    "answer", ["action 2", "Action 2.", "2", "Action: 2", "action: action 2", "ACTION  2", "+2"]
)
def test_numbered_actions_are_read_tolerantly(answer):
    assert acting_in(spaces.Discrete(3)).parse_action(answer) == 2


@pytest.mark.parametrize(
    ("space", "answer", "value"),
    [
        (spaces.Box(-1, 1, (1,)), "Action: 0.5.", [0.5]),
        (spaces.Box(-1, 1, (1,)), "[0.5]", [0.5]),
        (spaces.Box(-1, 1, (1,)), ".5", [0.5]),
        (spaces.Box(-1, 1, (1,)), "+5E-1", [0.5]),
        (spaces.Box(-1, 1, (1,)), "-inf", [-np.inf]),
        (spaces.Box(-1, 1, (2,)), "0.5, 1", [0.5, 1]),
        (spaces.Box(-1, 1, (2,)), "action: [0.5,1].", [0.5, 1]),
        (spaces.MultiBinary(2), "[true, false]", [1, 0]),
        (spaces.MultiDiscrete([3, 3]), "[2.0, 1]", [2, 1]),
    ],
)
def test_numbers_are_read_tolerantly(space, answer, value):
    parsed = acting_in(space).parse_action(answer)
    assert same(parsed, np.array(value, space.dtype))


def test_keys_are_read_in_any_case_and_order():
    text = acting_in(spaces.Dict(gas=spaces.Box(0, 1, (1,)), gear=spaces.Discrete(3)))
    action = text.parse_action('{"Gear": 2, "GAS": 0.5}')
    assert list(action) == ["gas", "gear"]
    assert (action["gas"].tolist(), action["gear"]) == ([0.5], 2)


def test_texts_are_read_with_and_without_quotes():
    text = acting_in(spaces.Text(8))
    assert text.parse_action('"abc"') == "abc"
    assert text.parse_action("Action: abc") == "abc"
    assert text.parse_action("123") == "123"


@pytest.mark.parametrize(
    ("space", "answer", "legal"),
    [
        (spaces.Discrete(2), "UP", "one of these actions: action 0, action 1; got 'UP'"),
        (spaces.Discrete(2), "2", "one of these actions: action 0, action 1"),
        (spaces.Discrete(2), "", "one of these actions"),
        (spaces.Discrete(2), "9" * 100, "one of these actions"),
        (spaces.Box(-1, 1, (1,)), "fast", "one number between -1 and 1"),
        (spaces.Box(-1, 1, (1,)), "nan", "one number between -1 and 1"),
        (spaces.Box(-1, 1, (1,)), "NaN", "one number between -1 and 1"),
        (spaces.Box(-1, 1, (1,)), "1e60", "one number between -1 and 1"),
        (spaces.Box(-1, 1, (1,)), "true", "one number between -1 and 1"),
        (spaces.Box(-1, 1, (1,)), '"0.5', "one number between -1 and 1"),
        (spaces.Box(-1, 1, (2,)), "[1]", "a JSON array of 2 numbers"),
        (spaces.Box(-1, 1, (2,)), "[1, [2]]", "a JSON array of 2 numbers"),
        (spaces.Box(-1, 1, (2,)), "[" * 100_000, "a JSON array of 2 numbers"),
        (spaces.Box(0, 9, (1,), np.uint8), "256", "one integer between 0 and 9"),
        (spaces.Box(0, 9, (1,), np.uint8), "1.5", "one integer between 0 and 9"),
        (spaces.MultiDiscrete([2, 2]), "[0, 2]", "a JSON array of 2 integers, each from 0 to 1"),
        (spaces.MultiBinary(2), "[0, 2]", "a JSON array of 2 integers"),
        (spaces.Text(2), '"abc"', "a JSON string of 1 to 2 characters"),
        (spaces.Dict(a=spaces.Discrete(2)), '{"a": 1, "a": 1}', "a JSON object"),
        (spaces.Dict(a=spaces.Discrete(2)), '{"a": 1, "A": 1}', "a JSON object"),
        (spaces.Dict(a=spaces.Discrete(2)), '{"b": 1}', "a JSON object"),
        (spaces.Dict(a=spaces.Discrete(2)), "[1]", "a JSON object"),
        (spaces.OneOf([spaces.Discrete(2)]), "[1, 0]", "a JSON array [option, value]"),
    ],
)
def test_answers_without_an_action_are_refused_with_the_legal_ones(space, answer, legal):
    with pytest.raises(ValueError, match="^text must be " + re.escape(legal)) as caught:
        acting_in(space).parse_action(answer)
    assert len(str(caught.value)) < 400


def test_long_answers_are_refused_quickly():
    text = text_for("CartPole-v1")
    for answer in ('"' * 10**6, " " * 10**6, "." * 10**6, "Action: " * 10**5):
        with pytest.raises(ValueError, match="LEFT, RIGHT; got"):
            text.parse_action(answer)


def test_the_index_is_no_answer_where_actions_have_names():
    with pytest.raises(ValueError, match="LEFT, RIGHT"):
        text_for("CartPole-v1").parse_action("1")


@pytest.mark.parametrize("answer", [None, 1, b"LEFT"])
def test_answers_must_be_strings(answer):
    with pytest.raises(TypeError, match="text must be a str"):
        text_for("CartPole-v1").parse_action(answer)


@pytest.mark.parametrize(
    ("space", "action", "error", "message"),
    [
        (spaces.Discrete(2), 2, ValueError, "action must be an element of .*, got 2"),
        (spaces.Discrete(2), -1, ValueError, "action must be an element of .*, got -1"),
        (spaces.Discrete(2), 1.0, TypeError, "action must be one integer, got 1.0"),
        (spaces.Discrete(2), [0, 1], TypeError, "action must be one integer"),
        (spaces.Discrete(2), "LEFT", TypeError, "action must be real numbers, got str"),
        (spaces.Box(-1, 1, (1,)), [np.nan], ValueError, "action must not hold NaN"),
        (spaces.Box(-1, 1, (1,)), [1e300], ValueError, "within the range of float32"),
        (spaces.Box(-1, 1, (2,)), [1], ValueError, r"action must be of shape \(2,\)"),
        (spaces.Box(-1, 1, (2,)), None, TypeError, "action must be real numbers"),
        (spaces.Box(0, 9, (1,), np.uint8), [256], ValueError, "from 0 to 255, got 256"),
        (spaces.Box(0, 9, (1,), np.uint8), [0.5], ValueError, "action must hold integers"),
        (spaces.Box(0, 9, (1,), np.uint8), [np.inf], ValueError, "action must hold integers"),
        (spaces.MultiDiscrete([2, 2]), [0, 2], ValueError, "from 0 to 1, got 2"),
        (spaces.Text(2), "abc", ValueError, "action must be a JSON string of 1 to 2"),
        (spaces.Text(2), 3, TypeError, "action must be a str, got 3"),
        (spaces.Tuple([spaces.Discrete(2)]), (2,), ValueError, r"action\[0\] must be .* got 2"),
        (spaces.Tuple([spaces.Discrete(2)]), 2, TypeError, "action must be a tuple, got 2"),
        (spaces.Dict(a=spaces.Discrete(2)), {}, ValueError, r"must have the keys \['a'\]"),
        (spaces.Dict(a=spaces.Discrete(2)), 1, TypeError, "action must be a mapping"),
        (spaces.OneOf([spaces.Discrete(2)]), (1, 0), ValueError, "option must be 0 to 0"),
        (spaces.Graph(spaces.Discrete(2), None), 1, TypeError, "must be a GraphInstance"),
    ],
)
def test_wrong_actions_are_named(space, action, error, message):
    with pytest.raises(error, match=message):
        acting_in(space).action_text(action)


def test_surrogate_pairs_in_two_pieces_are_refused():
    # JSON would read the pair as one character; a lone surrogate is no such trouble.
    text = acting_in(spaces.Text(3, charset="\ud83d\ude00"))
    assert text.parse_action(text.action_text("\ud83d\ud83d")) == "\ud83d\ud83d"
    with pytest.raises(ValueError, match="in two pieces"):
        text.action_text("\ud83d\ude00")


def test_keys_that_are_the_same_text_are_refused():
    with pytest.raises(ValueError, match="keys that differ as text"):
        acting_in(spaces.Dict({1: spaces.Discrete(2), "1": spaces.Discrete(2)}))


# --- hooks -------------------------------------------------------------------------------------


def test_an_observation_formatter_replaces_text_and_legend():
    text = text_for("CartPole-v1", observation_formatter=lambda o: f"angle {o[2]:.1f}")
    assert text.observation_text(np.array([0, 0, 0.25, 0])) == "angle 0.2"
    assert "An observation gives" not in text.system_prompt()


def test_a_task_description_replaces_the_description():
    text = text_for("CartPole-v1", task_description="Keep it up.")
    assert text.system_prompt() == (
        "Keep it up.\n\nAn observation gives cart position (m), cart velocity (m/s), pole angle "
        "(rad), pole angular velocity (rad/s). Answer with nothing but one of these actions: "
        "LEFT, RIGHT."
    )


def test_an_action_formatter_is_inverted_and_explained():
    text = text_for("CartPole-v1", action_formatter="prompt_hooks:arrow")
    assert text.action_text(0) == "<-"
    assert text.parse_action("action: ->") == 1
    assert type(text.parse_action("->")) is np.int64
    assert text.system_prompt().endswith(
        "Answer with nothing but one of these actions: <-, ->. "
        "Here you write <- for LEFT, -> for RIGHT."
    )
    with pytest.raises(ValueError, match="actions: <-, ->; got 'LEFT'"):
        text.parse_action("LEFT")
    own = text_for("CartPole-v1", action_formatter=prompt_hooks.arrow, task_description="Go.")
    assert "Here you write" not in own.system_prompt()


def test_action_names_may_look_odd():
    text = acting_in(spaces.Discrete(3), action_formatter=lambda a: ("Go left.", "a, b", "A, B")[a])
    assert [text.parse_action(text.action_text(a)) for a in range(3)] == [0, 1, 2]
    assert text.parse_action("action: GO LEFT.") == 0
    assert text.system_prompt().endswith('actions: "Go left.", "a, b", "A, B".')


def test_an_action_formatter_must_tell_actions_apart():
    text = acting_in(spaces.Discrete(3), action_formatter=lambda _: "same")
    assert text.action_text(0) == "same"
    with pytest.raises(ValueError, match="must be 3 different words"):
        text.parse_action("same")


def test_other_formatters_need_a_parser():
    text = text_for("Pendulum-v1", action_formatter=lambda a: f"{a[0]:+.1f} N m")
    assert text.action_text(np.array([0.5])) == "+0.5 N m"
    assert text.system_prompt().endswith("Answer with nothing but the action.")
    with pytest.raises(TypeError, match="action_parser must be given"):
        text.parse_action("+0.5 N m")


def test_an_action_parser_gives_the_type_of_the_space():
    text = text_for("CartPole-v1", action_parser="prompt_hooks:read_arrow")
    assert type(text.parse_action("->")) is np.int64
    with pytest.raises(ValueError, match=r"result of action_parser must be an element of .* None"):
        text.parse_action("LEFT")
    torque = text_for("Pendulum-v1", action_parser=lambda t: [float(t.split()[0])])
    assert same(torque.parse_action("0.5 N m"), np.array([0.5], np.float32))
    bad = text_for("Pendulum-v1", action_parser=lambda t: [1, 2])
    with pytest.raises(ValueError, match="result of action_parser must be"):
        bad.parse_action("1")


def test_foreign_action_spaces_need_a_formatter():
    with pytest.raises(TypeError, match="action_space must consist of Gymnasium's own spaces"):
        acting_in(Mission())
    text = acting_in(Mission(), action_formatter=str, action_parser=str)
    assert text.action_text("go") == "go"
    assert text.parse_action("go") == "go"
    wrong = acting_in(Mission(), action_formatter=str, action_parser=int)
    with pytest.raises(ValueError, match="result of action_parser must be"):
        wrong.parse_action("1")


@pytest.mark.parametrize("hook", ["observation_formatter", "action_formatter", "action_parser"])
@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (5, TypeError, 'must be a callable or a "module:function" string, got 5'),
        ("math.sqrt", ValueError, 'must be a "module:function" string'),
        (":sqrt", ValueError, 'must be a "module:function" string'),
        ("math:", ValueError, 'must be a "module:function" string'),
        ("no_such_module:f", ValueError, "must name a module, got 'no_such_module:f'"),
        (".relative:f", ValueError, "must name a module, got"),
        ("math:no_such_function", ValueError, "must name a function, got"),
        ("prompt_hooks:NOT_CALLABLE", TypeError, "must name a callable, got"),
    ],
)
def test_bad_hooks_are_refused_at_once(hook, source, error, message):
    with pytest.raises(error, match=f"^{hook} {message}"):
        text_for("CartPole-v1", **{hook: source})


@pytest.mark.parametrize(
    ("result", "error"),
    [(None, TypeError), (3, TypeError), (b"x", TypeError), ("", ValueError), (" \n", ValueError)],
)
def test_what_formatters_return_is_checked(result, error):
    text = text_for(
        "CartPole-v1", observation_formatter=lambda _: result, action_formatter=lambda _: result
    )
    with pytest.raises(error, match=r"^the result of observation_formatter must"):
        text.observation_text(np.zeros(4))
    with pytest.raises(error, match=r"^the result of action_formatter must"):
        text.action_text(0)
    with pytest.raises(error, match=r"^the result of action_formatter must"):
        text.system_prompt()


def test_formatters_return_valid_unicode():
    text = text_for("CartPole-v1", observation_formatter=lambda _: "a\ud800")
    with pytest.raises(ValueError, match="surrogate"):
        text.observation_text(np.zeros(4))
    plain = text_for("CartPole-v1", observation_formatter=lambda _: np.str_("a"))
    assert type(plain.observation_text(np.zeros(4))) is str


@pytest.mark.parametrize(
    ("value", "error"), [(5, TypeError), ("", ValueError), ("\ud800", ValueError)]
)
def test_task_descriptions_are_checked(value, error):
    with pytest.raises(error, match=r"^task_description must"):
        text_for("CartPole-v1", task_description=value)


def test_hooks_named_by_strings_are_copied_as_strings():
    text = text_for(
        "CartPole-v1",
        observation_formatter="prompt_hooks:shout",
        action_formatter="prompt_hooks:Words.of",
    )
    copied = pickle.loads(pickle.dumps(text))
    assert b"shout" in pickle.dumps(text)
    for again in (text, copied, copy.deepcopy(text)):
        assert again.observation_text(np.zeros(4)) == "SEEN 4 VALUES"
        assert again.action_text(1) == "move 1"
        assert again.parse_action("move 1") == 1
        assert again.system_prompt() == text.system_prompt()


def test_hooks_named_by_strings_are_resolved_on_the_first_call_of_a_copy(monkeypatch):
    text = text_for("CartPole-v1", observation_formatter="prompt_hooks:shout")
    state = pickle.dumps(text)
    monkeypatch.setattr(prompt_hooks, "shout", lambda _: "replaced")
    assert pickle.loads(state).observation_text(np.zeros(4)) == "replaced"
    assert text.observation_text(np.zeros(4)) == "SEEN 4 VALUES"


# --- the object --------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1"])
@pytest.mark.parametrize("used", [False, True])
def test_copies_write_the_same(env_id, used):
    env = gym.make(env_id)
    text = text_for(env_id)
    observation, _ = env.reset(seed=0)
    env.action_space.seed(0)
    action = env.action_space.sample()
    if used:
        text.system_prompt()
    for again in (pickle.loads(pickle.dumps(text)), copy.deepcopy(text), copy.copy(text)):
        assert again.system_prompt() == text.system_prompt()
        assert again.observation_text(observation) == text.observation_text(observation)
        assert again.action_text(action) == text.action_text(action)
        assert same(again.parse_action(text.action_text(action)), action)
        assert again.task == text.task


def test_the_environment_is_not_kept():
    env = gym.make("CartPole-v1")
    env.unwrapped.secret = lambda: None  # cannot be pickled
    text = EnvironmentText("CartPole-v1", env.observation_space, env.action_space, env=env)
    pickle.dumps(text)


def test_spaces_are_left_as_they_were():
    space = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(3), seed=7)
    before = pickle.dumps(space)
    text = EnvironmentText(None, space, space)
    text.system_prompt()
    text.observation_text({"a": np.zeros(2), "b": 0})
    assert pickle.dumps(space) == before


def test_the_repr_names_the_task():
    assert repr(text_for("CartPole-v1")) == "EnvironmentText(CartPole, action_space=Discrete(2))"
    assert repr(acting_in(spaces.Discrete(3))).startswith("EnvironmentText(generic, ")


def test_wrong_spaces_are_named():
    with pytest.raises(TypeError, match="observation_space must be Space"):
        EnvironmentText("CartPole-v1", (4,), spaces.Discrete(2))
    with pytest.raises(TypeError, match="env_id must be str or NoneType"):
        EnvironmentText(1, spaces.Discrete(2), spaces.Discrete(2))


def test_writing_an_observation_is_fast():
    text = text_for("CartPole-v1")
    observation = np.array([0.0273, -0.0061, 0.0358, 0.0197], np.float32)
    times = timeit.repeat(lambda: text.observation_text(observation), number=500, repeat=7)
    assert min(times) / 500 < 15e-6
