"""Every kind of space, every form of a value, and the options of the axes."""

from collections import OrderedDict
from types import MappingProxyType

import gymnasium as gym
import numpy as np
import pytest
import xxhash
from gymnasium import spaces

from environments.scripted import (
    Scripted,
    assert_reports,
    pairs_of,
    play,
    random_actions,
    shown,
    twin_of,
)
from kl_proteus import JointKLDivergenceWrapper
from kl_proteus.spaces import layout_from_space

INF = np.inf
F32_MAX = float(np.finfo(np.float32).max)
F64_MAX = float(np.finfo(np.float64).max)


def box(low, high, dtype=np.float64):
    return spaces.Box(np.array([low], dtype), np.array([high], dtype), dtype=dtype)


def digits(space, value, **options):
    return layout_from_space(space, **options).digits(value)


# Each leaf: values and their digits -----------------------------------------------------------

# 0 is underflow, 1 to n are the bins, n + 1 is overflow.
AXES = {
    "regular": (box(0, 1), 4, [-0.1, 0, 0.24, 0.25, 0.5, 0.99, 1, 1.1], [0, 1, 1, 2, 3, 4, 4, 5]),
    # Clipping to high - 1e-8 put all of these into one bin.
    "tiny": (box(0, 1e-8), 4, [0, 3e-9, 6e-9, 8e-9, 1e-8], [1, 2, 3, 4, 4]),
    "shifted": (box(21, 24), 3, [20.9, 21, 22, 23, 24, 25], [0, 1, 2, 3, 3, 4]),
    # float32 arithmetic says 6, float64 of 0.7 says 7, and 0.7 of a float32 lies just below.
    "an edge in float64": (box(0, 1), 10, [0.7, 0.3, 0.6], [8, 4, 7]),
    "an edge in float32": (
        box(0, 1, np.float32),
        10,
        [np.float32(0.7), np.float32(0.6)],
        [7, 7],
    ),
    "one ulp above": (box(0, 1), 10, [np.nextafter(1, 2), np.nextafter(0, -1)], [11, 0]),
    "unbounded": (
        box(-INF, INF),
        10,
        [-INF, -9, -1, -0.1, 0, 1, 9, INF],
        [1, 1, 3, 5, 6, 8, 10, 10],
    ),
    "lower bound": (box(0, INF), 10, [-INF, -1, 0, 1, 9, 99, INF], [0, 0, 1, 6, 10, 10, 10]),
    "upper bound": (box(-INF, 0), 10, [-INF, -8, -1, 0, 1, INF], [1, 2, 6, 10, 11, 11]),
    "float32 maximum": (box(-F32_MAX, F32_MAX, np.float32), 10, [-1, 0, 1], [3, 6, 8]),
    "float64 maximum": (box(-F64_MAX, F64_MAX), 10, [-1, 0, 1], [3, 6, 8]),
    "1e10": (box(-1e10, 1e10), 10, [-1, 0, 1], [3, 6, 8]),
    "1e15 below only": (box(-1e15, 0), 10, [-1, 0, 1], [6, 10, 11]),
    "1e6 is meant": (box(-1e6, 1e6), 10, [-1e6, -1, 0, 1, 1e6], [1, 5, 6, 6, 10]),
    "low == high": (box(0, 0), 10, [-1, 0, -0.0, 0.89], [0, 1, 1, 2]),
    "low == high == inf": (box(INF, INF), 10, [0, 1], [6, 8]),
    "float16": (box(-2, 2, np.float16), 4, [np.float16(-2), np.float16(0.999), 2], [1, 3, 4]),
    "float16 unbounded": (box(-INF, INF, np.float16), 4, [np.float16(65504), -INF], [4, 1]),
    "few integers": (box(-2, 2, np.int8), 10, [-3, -2, 0, 2, 3], [0, 1, 3, 5, 6]),
    "as many integers as bins": (box(0, 9, np.int8), 10, [0, 5, 9], [1, 6, 10]),
    # uint8 arithmetic would wrap, and floats would put 102 into another bin than 101.
    "many integers": (box(0, 255, np.uint8), 10, [0, 25, 26, 255], [1, 1, 2, 10]),
    "int8 to its limits": (box(-128, 127, np.int8), 2, [-128, -1, 0, 127], [1, 1, 2, 2]),
    "integers 0 to 2": (box(0, 2, np.int32), 2, [0, 1, 2], [1, 1, 2]),
    "int64 to its limits": (
        box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, np.int64),
        10,
        [-(2**63), -1, 0, 1, 2**63 - 1],
        [1, 3, 6, 8, 10],
    ),
    "uint64 to its limit": (box(0, 2**64 - 1, np.uint64), 10, [0, 1, 2**64 - 1], [1, 6, 10]),
    "bool": (box(0, 1, np.bool_), 10, [False, True], [1, 2]),
}


@pytest.mark.parametrize("kind", AXES)
def test_digits_of_a_box(kind):
    space, bins, values, expected = AXES[kind]
    layout = layout_from_space(space, bins=bins)
    for value, digit in zip(values, expected, strict=True):
        assert layout.digits([value]) == [digit], value
    with_dtype = [v for v in values if np.can_cast(type(v), space.dtype, "same_kind")]
    for value in with_dtype:
        assert layout.digits(np.array([value], space.dtype)) == layout.digits(
            np.array([value], space.dtype).astype(object).tolist()
        )


@pytest.mark.parametrize(
    ("space", "value", "expected", "sizes"),
    [
        (spaces.Discrete(4), 3, [3], [4]),
        (spaces.Discrete(4, start=-3), -3, [0], [4]),
        (spaces.Discrete(4, start=-3), 0, [3], [4]),
        (spaces.MultiDiscrete([3, 4]), [2, 1], [2, 1], [3, 4]),
        (spaces.MultiDiscrete([3, 4], start=[-1, 10]), [1, 10], [2, 0], [3, 4]),
        (
            spaces.MultiDiscrete([[3, 2], [4, 5]]),
            np.array([[2, 1], [3, 4]]),
            [2, 1, 3, 4],
            [3, 2, 4, 5],
        ),
        (spaces.MultiBinary(3), [1, 0, 1], [1, 0, 1], [2, 2, 2]),
        (spaces.MultiBinary((2, 2)), [[1, 0], [0, 1]], [1, 0, 0, 1], [2, 2, 2, 2]),
        (spaces.Box(0, 1, ()), 0.55, [6], [10]),
        (spaces.Box(0, 1, (2, 2)), np.array([[0, 0.3], [0.6, 1]]), [1, 4, 7, 10], [10] * 4),
        (spaces.Box(0, 1, (0,)), np.zeros(0), [], []),
        (spaces.Tuple([]), (), [], []),
        (spaces.Dict({}), {}, [], []),
    ],
    ids=str,
)
def test_digits_of_other_leaves(space, value, expected, sizes):
    layout = layout_from_space(space)
    assert layout.digits(value) == expected
    assert layout.sizes == sizes


# Pairs, because Gymnasium sorts a plain dict, and once sorted an ordered one too.
NESTED = spaces.Dict(
    [
        ("z", spaces.Discrete(3, start=1)),
        (
            "a",
            spaces.Tuple(
                [
                    spaces.Box(0, 1, (2,)),
                    spaces.Dict([("y", spaces.MultiBinary(2)), ("b", spaces.Discrete(2))]),
                ]
            ),
        ),
        ("m", spaces.Box(0, 3, (1, 2), np.int16)),
    ]
)
NESTED_VALUE = {
    "z": 2,
    "a": (np.array([0.15, 0.95], np.float32), {"y": np.array([1, 0], np.int8), "b": 1}),
    "m": np.array([[0, 3]], np.int16),
}


def test_a_nested_space_is_walked_in_its_own_order():
    layout = layout_from_space(NESTED)
    assert layout.names == [
        "observation['z']",
        "observation['a'][0][0]",
        "observation['a'][0][1]",
        "observation['a'][1]['y'][0]",
        "observation['a'][1]['y'][1]",
        "observation['a'][1]['b']",
        "observation['m'][0, 0]",
        "observation['m'][0, 1]",
    ]
    assert layout.digits(NESTED_VALUE) == [1, 2, 10, 1, 0, 1, 1, 4]


def test_the_order_of_the_value_does_not_matter():
    layout = layout_from_space(NESTED)
    odd = {key: NESTED_VALUE[key] for key in ("m", "z", "a")}
    odd["extra"] = "ignored"
    a = NESTED_VALUE["a"]
    odd["a"] = [a[0].tolist(), MappingProxyType({"b": 1, "y": a[1]["y"]})]
    assert layout.key(odd) == layout.key(NESTED_VALUE)


def test_a_dict_is_walked_as_the_space_says():
    parts = {"b": spaces.Discrete(2), "a": spaces.Discrete(3)}
    ordered = OrderedDict(parts)
    for space in (spaces.Dict(parts), spaces.Dict(ordered), spaces.Dict(list(parts.items()))):
        names = layout_from_space(space).names
        assert names == [f"observation[{key!r}]" for key in space.spaces]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({**NESTED_VALUE, "z": 0}, ValueError, r"observation\['z'\] is 0, outside the space"),
        ({"z": 2, "m": NESTED_VALUE["m"]}, ValueError, 'observation lacks the key "a"'),
        (
            {**NESTED_VALUE, "a": NESTED_VALUE["a"][:1]},
            ValueError,
            r"observation\['a'\] has 1 items",
        ),
        ({**NESTED_VALUE, "a": {}}, TypeError, r"observation\['a'\] is of type dict"),
        (
            {**NESTED_VALUE, "m": np.zeros(2, int)},
            ValueError,
            r"observation\['m'\] has shape \(2,\)",
        ),
        ({**NESTED_VALUE, "m": [[0.5, 1]]}, ValueError, r"observation\['m'\]\[0, 0\] is 0.5"),
        (list(NESTED_VALUE.values()), TypeError, "observation is of type list; expected a mapping"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_of_another_nesting_is_refused_by_name(value, error, message):
    with pytest.raises(error, match=message):
        layout_from_space(NESTED).digits(value)


# Whole runs against the twin ------------------------------------------------------------------

RUNS = {
    "0-d Box": spaces.Box(-1, 1, ()),
    "2-D Box": spaces.Box(-1, 1, (2, 2)),
    "half-bounded Box": spaces.Box(np.array([0, -INF]), np.array([INF, 0]), dtype=np.float64),
    "float16 Box": spaces.Box(-1, 1, (2,), np.float16),
    "int Box": spaces.Box(-3, 300, (2,), np.int16),
    "bool Box": spaces.Box(0, 1, (2,), np.bool_),
    "small image": spaces.Box(0, 255, (2, 3), np.uint8),
    "348 axes": spaces.Box(-INF, INF, (348,)),
    "Discrete": spaces.Discrete(5, start=-2),
    "MultiDiscrete": spaces.MultiDiscrete(np.array([[3, 2], [4, 5]])),
    "MultiBinary": spaces.MultiBinary((2, 2)),
    "nested": NESTED,
}


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("side", ["observation", "action"])
def test_a_run_on_every_space(kind, side):
    space = RUNS[kind]
    space.seed(5)
    few = spaces.Discrete(2)
    if side == "observation":
        # A few values again and again, so that cells are met more than once.
        values = [space.sample() for _ in range(4)]
        rng = np.random.default_rng(1)
        env = Scripted([values[i] for i in rng.integers(4, size=45)], space, few)
        actions = random_actions(few, 40)
    else:
        env = Scripted([0, 1, 0] * 15, few, space)
        actions = random_actions(space, 40)
    options = {"window": 9, "min_window": 2, "obs_bins": 3, "action_bins": 2}
    wrapper = JointKLDivergenceWrapper(env, **options)
    assert_reports(play(wrapper, actions), twin_of(env, **options), pairs_of(env, actions))


def test_more_cells_than_any_integer_has():
    """20 dimensions of 10 wrapped around to a negative number elsewhere; 10^365 is legal here."""
    humanoid = spaces.Box(-INF, INF, (348,), np.float64)
    for space in (spaces.MultiDiscrete([10] * 20), spaces.MultiDiscrete([10] * 60), humanoid):
        layout = layout_from_space(space)
        keys = {layout.key(np.eye(1, space.shape[0], i, int)[0]) for i in range(space.shape[0])}
        assert len(keys) == space.shape[0]
        assert all(0 <= key < 2**128 for key in keys)
    assert layout_from_space(spaces.MultiDiscrete([10] * 20)).key([9] * 20) == 10**20 - 1


def test_a_key_does_not_depend_on_the_process():
    # Pinned, because snapshots are read by other processes, platforms and releases.
    value = np.arange(60) % 10
    expected = xxhash.xxh3_128_intdigest(value.astype("<u4").tobytes())
    assert layout_from_space(spaces.MultiDiscrete([10] * 60)).key(value) == expected
    assert expected == 33396381349872612331676232636350506714
    # Where the digits fit, the first is the most significant.
    assert layout_from_space(spaces.Box(0, 1, (3,))).key([0.15, 0.55, 2]) == (2 * 12 + 6) * 12 + 11


# Forms of a value -----------------------------------------------------------------------------

SPACE = spaces.Box(-4, 4, (2, 3), np.float32)
VALUE = np.array([[-4.5, -1.0, 0.0], [0.5, 2.0, 3.0]])
DIGITS = layout_from_space(SPACE).digits(VALUE)


def unaligned(array):
    raw = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    raw[...] = array
    assert not raw.flags.aligned
    return raw


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


class Subclass(np.ndarray):
    """An array of another class."""


class ArrayLike:
    """What only says how it becomes an array, as arrays of other libraries do."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array if dtype is None else self.array.astype(dtype)


FORMS = {
    "float64": lambda v: v,
    "float32": lambda v: v.astype(np.float32),
    "float16": lambda v: v.astype(np.float16),
    "longdouble": lambda v: v.astype(np.longdouble),
    "big-endian float64": lambda v: v.astype(">f8"),
    "big-endian float32": lambda v: v.astype(">f4"),
    "little-endian float16": lambda v: v.astype("<f2"),
    "big-endian float16": lambda v: v.astype(">f2"),
    "Fortran order": np.asfortranarray,
    "transposed": lambda v: np.ascontiguousarray(v.T).T,
    "strided": lambda v: np.repeat(np.repeat(v, 2, 0), 3, 1)[::2, ::3],
    "negative strides": lambda v: v[::-1, ::-1].copy()[::-1, ::-1],
    "field of a record": lambda v: np.rec.fromarrays([v, v], names="a,b")["b"],
    "broadcast": lambda v: np.broadcast_to(v, (2, *v.shape))[1],
    "unaligned": unaligned,
    "unaligned and big-endian": lambda v: unaligned(v.astype(">f4")),
    "read-only": read_only,
    "subclass": lambda v: v.view(Subclass),
    "masked": np.ma.array,
    "array-like": ArrayLike,
    "list of lists": lambda v: v.tolist(),
    "tuple of arrays": tuple,
    "list of numpy scalars": lambda v: [[np.float64(x) for x in row] for row in v],
    "memoryview": memoryview,
}


@pytest.mark.parametrize("form", FORMS)
def test_any_form_of_the_same_numbers(form):
    value = FORMS[form](VALUE)
    assert layout_from_space(SPACE).digits(value) == DIGITS == [0, 4, 6, 6, 8, 9]


INTEGERS = ["?", "i1", "u1", "<i2", ">i2", ">u2", "i4", ">i4", ">u4", "i8", ">i8", "u8", ">u8"]


@pytest.mark.parametrize("dtype", [*INTEGERS, "f2", "f4", "f8", "g"])
def test_any_type_of_the_same_integers(dtype):
    value = np.array([[0, 1], [1, 1]]).astype(dtype)
    for space in (
        spaces.Box(-1, 2, (2, 2), np.int8),
        spaces.MultiBinary((2, 2)),
        spaces.MultiDiscrete([[4, 4], [4, 4]], start=[[-1, -1], [-1, -1]]),
    ):
        expected = layout_from_space(space).digits([[0, 1], [1, 1]])
        for form in (value, value.T.copy().T, unaligned(value) if value.itemsize > 1 else value):
            assert layout_from_space(space).digits(form) == expected


NUMBERS = [2, 2.0, np.int8(2), np.uint64(2), np.float32(2)]
# Size-1 arrays are what a row of a vector environment's actions looks like.
SIZE_1 = [np.array(2), np.array([2]), np.array([[2]]), np.array([2.0]), np.array(2, ">i4"), [2]]


@pytest.mark.parametrize("value", [*NUMBERS, *SIZE_1], ids=repr)
def test_forms_of_one_scalar(value):
    assert digits(spaces.Discrete(5), value) == [2]
    assert digits(spaces.Box(0, 4, (1,), np.int32), value) == [3]
    assert digits(spaces.Box(0, 4, ()), value, bins=4) == [3]


@pytest.mark.parametrize("value", [True, False, np.True_])
def test_a_bool_is_a_discrete_value(value):
    assert digits(spaces.Discrete(2), value) == [int(value)]


@pytest.mark.parametrize(
    "value",
    [
        VALUE.astype(object),
        VALUE.astype(complex),
        VALUE.astype("U8"),
        VALUE.astype("S8"),
        VALUE.astype("M8[s]"),
        VALUE.astype("m8[s]"),
        np.zeros((2, 3), [("a", "f4")]),
    ],
    ids=lambda value: str(value.dtype),
)
def test_what_is_no_array_of_real_numbers(value):
    with pytest.raises(
        TypeError, match=r"observation has values of type .*; expected real numbers"
    ):
        digits(SPACE, value)


@pytest.mark.parametrize("value", [{1, 2}, object(), None, "three", b"three", 1j], ids=shown)
def test_what_is_no_array_at_all(value):
    with pytest.raises((TypeError, ValueError), match=r"observation has .*; expected"):
        digits(SPACE, value)


@pytest.mark.parametrize(
    "value",
    [VALUE[0], VALUE.T, VALUE[None], VALUE.ravel(), np.zeros((0, 3)), 0.5, [[1, 2]]],
    ids=str,
)
def test_another_shape(value):
    with pytest.raises(ValueError, match=r"observation has shape .*; expected \(2, 3\)"):
        digits(SPACE, value)


def test_a_copy_of_a_shape_that_only_broadcasts_is_refused():
    with pytest.raises(ValueError, match="shape"):
        digits(spaces.Box(0, 1, (2,)), 0.5)


# Options --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [list, tuple, np.array, lambda b: np.array(b, np.uint8)])
def test_bins_per_axis_in_walk_order(form):
    space = spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Discrete(7), spaces.Box(0, 1, (1,))])
    layout = layout_from_space(space, bins=form([2, 5, 3, 4]))
    # The third is ignored: each of the seven values has its bin.
    assert layout.sizes == [2, 5, 7, 4]
    assert layout.digits((np.array([0.6, 0.6]), 6, np.array([0.6]))) == [2, 4, 6, 3]


def test_one_bin_and_the_most_bins():
    most = 2**31 - 1
    space = spaces.Box(0, 1, (2,), np.float64)
    layout = layout_from_space(space, bins=[1, most])
    assert layout.sizes == [1, most]
    assert layout.digits([0.5, 1.0]) == [1, most]
    assert layout.digits([1.5, 1.5]) == [2, most + 1]


def test_a_wrapper_with_one_bin_sees_only_flow_and_policy():
    env = gym.make("CartPole-v1")
    wrapper = JointKLDivergenceWrapper(env, obs_bins=1, window=10, min_window=2)
    for info in play(wrapper, random_actions(env.action_space, 60)):
        # Without flow bins there would be one observation, and all drift were the policy's.
        assert info["kl_divergence"] == pytest.approx(
            info["kl_observation"] + info["kl_policy"], abs=1e-12
        )
    assert wrapper.get_kl_statistics()["cells"] <= 8


@pytest.mark.parametrize(
    ("value_range", "value", "expected"),
    [
        ((0, 4), [3, 5], [4, 5]),
        ((None, 4), [3, 5], [3, 5]),
        ((-INF, 4), [3, 5], [3, 5]),
        ((0, None), [1, -1], [3, 0]),
        ((0, INF), [1, -1], [3, 0]),
        ((None, None), [0, 1], [3, 4]),
        ((INF, -INF), [0, 1], [3, 4]),
        (((0, -4), (4, 0)), [3, -1], [4, 4]),
        (([0, None], [None, 4]), [1, 5], [3, 5]),
        ((np.array([0, -4.0]), np.array([4.0, 0])), [3, -1], [4, 4]),
        (np.array([[0, -4.0], [4.0, 0]]), [3, -1], [4, 4]),
        ((np.float32(0), np.int64(4)), [3, 5], [4, 5]),
        # A user's bound is taken at its word, however large.
        ((0, 1e10), [9e9, 1e9], [4, 1]),
        ((2, 2), [2, 3], [1, 2]),
    ],
    ids=str,
)
def test_a_range_replaces_the_declared_bounds(value_range, value, expected):
    space = spaces.Box(-100, 100, (2,), np.float64)
    assert digits(space, value, bins=4, value_range=value_range) == expected


def test_a_range_on_integers():
    space = spaces.Box(0, 255, (1,), np.uint8)
    assert [digits(space, [x], value_range=(0, 9)) for x in (0, 9, 10)] == [[1], [10], [11]]
    # Half bounds are no whole range, and the values stay whole numbers.
    assert digits(space, [9], value_range=(0.5, 9.5)) == [10]


def test_a_range_counts_every_axis_and_ignores_categories():
    space = spaces.Dict([("a", spaces.Discrete(3)), ("b", spaces.Box(-9, 9, (1,)))])
    assert digits(space, {"a": 2, "b": [3.0]}, bins=4, value_range=([0, 0], [0, 4])) == [2, 4]
    with pytest.raises(ValueError, match=r"obs_range must hold .* \(2 here\) on each side, got 1"):
        layout_from_space(space, value_range=([0], [4]))


def test_the_scale_of_unbounded_axes():
    space = spaces.Box(-INF, INF, (1,))
    assert [digits(space, [9.0], scale=s) for s in (0.001, 1.0, 9.0, 1e6)] == [[10], [10], [8], [6]]


def test_the_scale_is_the_wrappers():
    env = Scripted([[9.0]] * 3, spaces.Box(-INF, INF, (1,)))
    for scale, key in ((1.0, "10"), (9.0, "8")):
        wrapper = JointKLDivergenceWrapper(env, obs_scale=scale, window=None)
        play(wrapper, [0])
        assert list(wrapper.snapshot()["counts"]) == [key]


def test_bounds_beyond_float64_are_no_bounds():
    most = np.finfo(np.longdouble).max
    # Gymnasium 1.0 casts the bounds on its way.
    with np.errstate(over="ignore"):
        space = spaces.Box(-most, most, (1,), np.longdouble)
    assert digits(space, np.array([1], np.longdouble)) == [8]


def test_normalized_values_lie_between_0_and_1():
    space = spaces.Box(-100, 100, (3,), np.float64)
    assert digits(space, [0.55, -0.1, 1.1], normalized=True) == [6, 0, 11]
    env = Scripted([[0.55, 0.0], [0.0, 1.0], [0.5, 0.5]], spaces.Box(-9, 9, (2,), np.float64))
    wrapper = JointKLDivergenceWrapper(env, normalize_obs=False, window=None)
    play(wrapper, [0])
    assert wrapper.snapshot()["counts"] == {str(6 * 12 + 1): {"0": 1}}


def test_options_of_observation_and_action_do_not_mix():
    both = spaces.Box(-8, 8, (1,), np.float64)
    env = Scripted([[3.0]] * 4, both, both)
    wrapper = JointKLDivergenceWrapper(
        env, window=None, obs_bins=4, action_bins=8, obs_range=(0, 4), normalize_action=False
    )
    play(wrapper, [[0.3]])
    assert wrapper.snapshot()["counts"] == {"4": {"3": 1}}
    wrapper = JointKLDivergenceWrapper(
        env, window=None, obs_bins=4, action_bins=8, action_range=(0, 4), normalize_obs=False
    )
    play(wrapper, [[3.0]])
    assert wrapper.snapshot()["counts"] == {"5": {"7": 1}}


# Spaces that need an encoder ------------------------------------------------------------------


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (9, 9), np.uint8),
        spaces.Box(0, 255, (84, 84, 4), np.uint8),
        spaces.Box(0, 1, (5, 13), np.bool_),
        spaces.Box(0, 10, (65, 1), np.int64),
    ],
    ids=str,
)
def test_an_image_needs_an_encoder(space):
    nested = spaces.Dict([("state", spaces.Discrete(2)), ("view", space)])
    size = int(np.prod(space.shape))
    for where, name in ((space, "observation"), (nested, r"observation\['view'\]")):
        with pytest.raises(ValueError, match=f"{name} is an image of {size} integers.*encoder="):
            JointKLDivergenceWrapper(Scripted([0, 0], where), encoder=None)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (8, 8), np.uint8),
        spaces.Box(0, 255, (128,), np.uint8),
        spaces.Box(0, 1, (30, 30), np.float32),
        spaces.MultiBinary((30, 30)),
        spaces.MultiDiscrete(np.full((9, 9), 3)),
    ],
    ids=str,
)
def test_what_is_no_image_needs_none(space):
    space.seed(1)
    env = Scripted([space.sample() for _ in range(4)], space)
    wrapper = JointKLDivergenceWrapper(env, encoder=None)
    play(wrapper, [0, 1])
    assert wrapper.get_kl_statistics()["cells"] == 2


def test_an_action_is_never_an_image():
    space = spaces.Box(0, 255, (9, 9), np.uint8)
    wrapper = JointKLDivergenceWrapper(Scripted([[0, 0]] * 3, action_space=space))
    play(wrapper, random_actions(space, 2))
    assert wrapper.get_kl_statistics()["cells"] == 2


def test_a_dict_space_with_other_keys_than_strings():
    space = spaces.Dict({0: spaces.Discrete(2), 1: spaces.Discrete(2)})
    with pytest.raises(TypeError, match="observation is a Dict space with the key 0"):
        JointKLDivergenceWrapper(Scripted([{0: 1, 1: 1}], space))


def test_a_subclass_of_a_known_space_has_its_axes():
    class Bounded(spaces.Box):
        pass

    assert digits(Bounded(0, 1, (1,)), [0.55]) == [6]


def test_too_many_categories():
    assert digits(spaces.Discrete(2**32 - 1), 2**32 - 2) == [2**32 - 2]
    with pytest.raises(ValueError, match=r"observation\['a'\]: n must be from 1 to 4294967295"):
        layout_from_space(spaces.Dict(a=spaces.Discrete(2**32)))
