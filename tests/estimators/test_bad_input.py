"""What cannot be estimated: a ValueError or a TypeError that says where, and never a panic."""

import decimal
import fractions
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kl_proteus import FixedKLController, kl_divergence, kl_from_logprobs, kl_penalties

NAN = float("nan")
INF = float("inf")
GOOD = [[-1.0, -2.0], [-3.0]]


class Thief:
    """A number whose reading empties the list that holds it."""

    def __init__(self, victim):
        self.victim = victim

    def __float__(self):
        self.victim.clear()
        return 1.0


class Broken:
    def __float__(self):
        raise RuntimeError("no number today")

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("no array today")


@pytest.mark.parametrize(
    ("policy", "reference", "mask", "error", "message"),
    [
        # Numbers.
        (
            [-1.0, NAN],
            [-1.0, -1.0],
            None,
            ValueError,
            r"policy\[1\] is NaN; expected a finite number, or a mask",
        ),
        ([-1.0, -1.0], [-1.0, INF], None, ValueError, r"reference\[1\] is inf"),
        ([[-1.0], [-INF]], [[-1.0], [-1.0]], None, ValueError, r"policy\[1\]\[0\] is -inf"),
        (np.array([[-1.0, NAN]]), np.zeros((1, 2)), None, ValueError, r"policy\[0\]\[1\] is NaN"),
        ([1e308], [-1e308], None, ValueError, r"k1 overflows at policy\[0\] - reference\[0\]"),
        ([1e308, 1e308], [0.0, 0.0], None, ValueError, "the sum is beyond"),
        ([-1.0, 10**400], [0.0, 0.0], None, ValueError, r"policy\[1\] cannot be read as a number"),
        # Types of items.
        ([-1.0, "x"], [0.0, 0.0], None, TypeError, r"policy\[1\] is of type str; expected a real"),
        ([-1.0, None], [0.0, 0.0], None, TypeError, r"policy\[1\] is of type NoneType"),
        ([-1.0, True], [0.0, 0.0], None, TypeError, r"policy\[1\] is of type bool"),
        ([-1.0, 1j], [0.0, 0.0], None, TypeError, r"policy\[1\] is of type complex"),
        ([-1.0, np.complex64(1)], [0.0, 0.0], None, TypeError, r"policy\[1\] is of type complex64"),
        ([-1.0, np.str_("1")], [0.0, 0.0], None, TypeError, r"policy\[1\] is of type str"),
        ([-1.0, [0.0]], [0.0, 0.0], None, TypeError, r"policy\[1\] is of type list"),
        ([-1.0, np.zeros(1)], [0.0, 0.0], None, TypeError, r"policy\[1\] is of type ndarray"),
        ([-1.0, Broken()], [0.0, 0.0], None, ValueError, r"policy\[1\] .*no number today"),
        ([[-1.0], -1.0], GOOD, None, TypeError, r"policy\[1\] is of type float; expected a sequ"),
        ([[[-1.0]]], [[[-1.0]]], None, TypeError, r"policy\[0\]\[0\] is of type list"),
        ([np.zeros((2, 2))], [np.zeros((2, 2))], None, ValueError, r"policy\[0\] has shape \(2, 2"),
        # Types of arrays.
        (np.array([1j]), [0.0], None, TypeError, "policy has elements of type complex128"),
        (np.array(["a"]), [0.0], None, TypeError, "policy has elements of type <U1"),
        (np.array([True]), [0.0], None, TypeError, "policy has elements of type bool"),
        (np.array([1], "m8[s]"), [0.0], None, TypeError, r"policy has elements of type timedelta"),
        (np.zeros(1, "f4,f4"), [0.0], None, TypeError, "policy has elements of type"),
        (np.ma.masked_array([1.0], [True]), [0.0], None, TypeError, "policy is a numpy.ma.Masked"),
        (Broken(), [0.0], None, TypeError, "policy is of type Broken .*no array today"),
        ({1.0}, [0.0], None, TypeError, "policy is of type set"),
        (None, [0.0], None, TypeError, "policy is of type NoneType"),
        (lambda: 1.0, [0.0], None, TypeError, "policy is of type function"),
        ("abc", [0.0], None, TypeError, "policy has elements of type"),
        # Shapes.
        (-1.0, -1.0, None, ValueError, r"policy has shape \(\); expected \(tokens,\) or"),
        (np.zeros((1, 1, 1)), [0.0], None, ValueError, r"policy has shape \(1, 1, 1\)"),
        ([-1.0], [-1.0, -2.0], None, ValueError, "reference has 2 tokens, and policy 1"),
        (
            GOOD,
            [[-1.0], [-3.0]],
            None,
            ValueError,
            r"reference\[0\] has 1 tokens, and policy\[0\] 2",
        ),
        (GOOD, GOOD[:1], None, ValueError, "reference has 1 sequences, and policy 2 sequences"),
        (
            GOOD,
            [-1.0, -2.0],
            None,
            ValueError,
            "reference has one sequence of 2 tokens, and policy",
        ),
        (np.zeros((1, 2)), np.zeros(2), None, ValueError, "reference has one sequence of 2 tokens"),
        (np.zeros((2, 2)), np.zeros((2, 3)), None, ValueError, r"reference\[0\] has 3 tokens"),
        (
            np.zeros((0, 5)),
            np.zeros((0, 3)),
            None,
            ValueError,
            r"reference has shape \(0, 3\), and",
        ),
        (np.zeros((0, 5)), np.zeros((0, 5)), np.ones((0, 3)), ValueError, r"mask has shape \(0, 3"),
        # Masks.
        (GOOD, GOOD, [[1, 2], [0]], ValueError, r"mask\[0\]\[1\] is 2; expected a bool, 0 or 1"),
        (GOOD, GOOD, [[1, 0.5], [0]], ValueError, r"mask\[0\]\[1\] is 0.5"),
        (GOOD, GOOD, [[1, NAN], [0]], ValueError, r"mask\[0\]\[1\] is NaN"),
        (GOOD, GOOD, [[1, -1], [0]], ValueError, r"mask\[0\]\[1\] is -1"),
        (
            GOOD,
            GOOD,
            [[1, "1"], [0]],
            TypeError,
            r"mask\[0\]\[1\] is of type str; expected a bool, 0 or 1",
        ),
        (GOOD, GOOD, [[1, None], [0]], TypeError, r"mask\[0\]\[1\] is of type NoneType"),
        (GOOD, GOOD, [[1], [0]], ValueError, r"mask\[0\] has 1 tokens, and policy\[0\] 2"),
        (GOOD, GOOD, [1, 0], ValueError, "mask has one sequence of 2 tokens"),
        ([-1.0], [-1.0], np.array([3]), ValueError, r"mask\[0\] is 3"),
        ([-1.0], [-1.0], np.array([-1], "i1"), ValueError, r"mask\[0\] is -1;"),
        ([-1.0], [-1.0], np.array([2**63 + 1], "u8"), ValueError, r"is 9223372036854775809;"),
        ([-1.0], [-1.0], np.array([2**62 + 1]), ValueError, r"is 4611686018427387905;"),
        ([-1.0], [-1.0], [2**63 + 1], ValueError, r"mask\[0\] is 9223372036854775809;"),
        ([-1.0], [-1.0], np.array([NAN], "f4"), ValueError, r"mask\[0\] is NaN"),
        ([-1.0], [-1.0], np.array(["a"]), TypeError, "mask has elements of type"),
    ],
)
def test_messages(policy, reference, mask, error, message):
    with pytest.raises(error, match=message):
        kl_from_logprobs(policy, reference, mask)


def test_only_k3_overflows_where_the_policy_gave_up():
    policy, reference = [[-1.0, -800.0]], [[-1.0, -1.0]]
    assert kl_from_logprobs(policy, reference) == -399.5
    for reduction in ("none", "token_mean"):
        with pytest.raises(ValueError, match=r"k3 overflows at policy\[0\]\[1\].*-799"):
            kl_from_logprobs(policy, reference, estimator="k3", reduction=reduction)
    value, counts = kl_from_logprobs(
        policy, reference, estimator="k3", on_nonfinite="exclude", return_counts=True
    )
    assert (value, counts) == (0.0, (1, 1, 1))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"estimator": "k4"},
            ValueError,
            "estimator must be 'k1', 'abs', 'k2' or 'k3', got \"k4\"",
        ),
        ({"reduction": "mean"}, ValueError, 'reduction must be .*, got "mean"'),
        ({"on_nonfinite": "skip"}, ValueError, 'on_nonfinite must be .*, got "skip"'),
        ({"estimator": 3}, TypeError, r"estimator must be 'k1', .* or 'k3', got 3"),
        ({"estimator": None}, TypeError, "estimator must be .*, got None"),
        ({"estimator": "\ud800"}, ValueError, r"estimator must be .*, got '\\ud800'"),
        ({"reduction": 5}, TypeError, "reduction must be 'none', .*, got 5"),
        ({"return_counts": "no"}, TypeError, "return_counts must be True or False, got 'no'"),
        ({"return_counts": 1}, TypeError, "return_counts must be True or False, got 1"),
        ({"on_nonfinite": 1}, TypeError, "on_nonfinite must be 'raise' or 'exclude', got 1"),
    ],
)
def test_options(options, error, message):
    with pytest.raises(error, match=message):
        kl_from_logprobs(GOOD, GOOD, **options)


@pytest.mark.parametrize("where", ["policy", "reference", "mask"])
def test_a_list_that_is_emptied_while_it_is_read(where):
    columns = {"policy": [-1.0] * 300, "reference": [-1.0] * 300, "mask": [1] * 300}
    columns[where][5] = Thief(columns[where])
    with pytest.raises(ValueError, match="became shorter"):
        kl_from_logprobs(**columns)
    rows = {name: [[x] for x in column] for name, column in columns.items()}
    rows[where] = [[1] for _ in range(300)]
    rows[where][5] = [Thief(rows[where][6])]
    with pytest.raises(ValueError, match="became shorter"):
        kl_from_logprobs(**rows)


def test_a_list_that_is_emptied_from_the_side():
    policy, reference = [-1.0] * 300, [-1.0] * 300
    policy[0] = Thief(reference)
    with pytest.raises(ValueError, match="became shorter"):
        kl_from_logprobs(policy, reference)


class Act:
    """A number whose reading runs a function."""

    def __init__(self, act, value=1.0):
        self.act = act
        self.value = value

    def __float__(self):
        self.act()
        return self.value


def reshape(array, shape):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        array.shape = shape


def shrink(array):
    """Frees the memory of an array."""
    array.__setstate__((1, (1,), np.dtype("f8"), False, b"\0" * 8))


def retype(array):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        array.dtype = np.uint8


@pytest.mark.parametrize("reduction", ["none", "token_mean"])
@pytest.mark.parametrize("shape", [(2, 2), (4, 1), (1, 4), (2, 1, 2)])
def test_a_row_that_is_reshaped_while_lists_are_read(shape, reduction):
    for where in range(3):
        rows = [[[1.0], np.ones(4)] for _ in range(3)]
        rows[where][0] = [Act(lambda rows=rows, where=where: reshape(rows[where][1], shape))]
        with pytest.raises(ValueError, match="was changed while"):
            kl_from_logprobs(*rows, reduction=reduction)
    mask = np.ones(4, bool)
    with pytest.raises(ValueError, match="mask was changed while"):
        kl_penalties(
            [[Act(lambda: reshape(mask, shape))], [1.0] * 4], 0.1, [np.ones(1, bool), mask]
        )


@pytest.mark.parametrize("shape", [(0, 1), (1, 0)])
def test_an_empty_row_that_is_reshaped_while_lists_are_read(shape):
    for first in ([[1.0], [2.0]], [[1.0], np.zeros(0)]):
        array = np.zeros(0)
        policy = [[Act(lambda array=array: reshape(array, shape))], array]
        with pytest.raises(ValueError, match=r"changed while|tokens"):
            kl_from_logprobs(policy, first, reduction="none")


@pytest.mark.parametrize("shape", [(4,), (1, 4), (4, 1)])
def test_an_array_that_is_reshaped_while_lists_are_read(shape):
    for role in ("reference", "mask"):
        array = np.ones((2, 2), bool if role == "mask" else float)
        policy = [[Act(lambda array=array: reshape(array, shape)), 1.0], [1.0, 2.0]]
        others = {"reference": [[1.0] * 2] * 2, role: array}
        with pytest.raises(ValueError, match=r"changed while|expected the same shape|expected as"):
            kl_from_logprobs(policy, **others)
    mask = np.ones((2, 2), bool)
    with pytest.raises(ValueError, match=r"changed while|expected the same shape|expected as"):
        kl_penalties([[Act(lambda: reshape(mask, shape)), 1.0], [1.0, 2.0]], 0.1, mask)


@pytest.mark.parametrize("act", [shrink, retype])
def test_an_array_whose_memory_is_replaced_while_lists_are_read(act):
    size = 1 << 20
    for name in ("policy", "reference"):
        array = np.zeros(size)
        column = [Act(lambda array=array: act(array))] + [0.0] * (size - 1)
        arguments = {"policy": column, "reference": column, name: array}
        with pytest.raises(ValueError, match=r"changed while|tokens"):
            kl_from_logprobs(**arguments)


class Container:
    """What runs a function when it is read as an array."""

    def __init__(self, act):
        self.act = act

    def __array__(self, dtype=None, copy=None):
        self.act()
        return np.full(4, 0.25)


@pytest.mark.parametrize("act", [shrink, retype, lambda array: reshape(array, (2, 2))])
def test_an_array_that_changes_while_the_next_one_is_converted(act):
    array = np.full(4, 0.25)
    with pytest.raises(ValueError, match=r"changed while|tokens"):
        kl_from_logprobs(array, Container(lambda: act(array)))
    array = np.full(4, 0.25)
    assert kl_divergence(array, Container(lambda: act(array))) == 0.0


def test_a_subclass_cannot_choose_what_it_is_converted_to():
    class Liar(np.ndarray):
        def astype(self, *_, **__):
            return self

    values = np.arange(4).view(Liar)
    assert kl_from_logprobs(values, np.zeros(4)) == 1.5
    swapped = np.arange(4, dtype=">f8").view(Liar)
    assert kl_from_logprobs(swapped, np.zeros(4)) == 1.5


def test_masked_items_are_not_read():
    never = Act(lambda: pytest.fail("was read"))
    for mask in ([1, 0], np.array([1, 0]), [np.int64(1), np.False_]):
        assert kl_from_logprobs([Act(lambda: None), never], [0.0, never], mask) == 1.0
        rows = [[Act(lambda: None), never]]
        assert kl_from_logprobs(rows, [[0.0, None]], [mask]) == 1.0
        if isinstance(mask, np.ndarray):
            assert kl_from_logprobs(rows, [[0.0, None]], mask[None]) == 1.0


def test_numbers_of_other_kinds_are_numbers():
    policy = [1, np.float16(2), np.int8(3), fractions.Fraction(9, 2), decimal.Decimal("5.5")]
    policy += [np.float32(6), np.float64(7), np.array(8.0), np.longdouble(9)]
    got = kl_from_logprobs(policy, [0] * 9, reduction="none")
    assert list(got) == [1, 2, 3, 4.5, 5.5, 6, 7, 8, 9]
    assert list(kl_from_logprobs(range(3), np.zeros(3), reduction="none")) == [0, 1, 2]
    rows = np.array([[1.0, 2.0], [3.0]], dtype=object)
    assert list(kl_from_logprobs(rows, [[0.0, 0.0], [0.0]], reduction="per_sequence")) == [1.5, 3]
    mask = [np.True_, True, 1, 1.0, np.int64(1), np.uint8(0), np.False_, 0.0, False]
    assert kl_from_logprobs(policy, [0] * 9, mask) == 16 / 5
    wide = kl_from_logprobs(np.array([1.5], np.longdouble), np.array([1], np.uint64))
    assert wide == 0.5


# Anything at all ------------------------------------------------------------------------------

scalars = st.one_of(
    st.floats(width=32),
    st.integers(),
    st.booleans(),
    st.none(),
    st.text(max_size=2),
    st.binary(max_size=2),
    st.complex_numbers(max_magnitude=1e10),
    st.sampled_from(
        [np.float32(-1), np.int64(2), np.datetime64("2020"), np.str_("1"), np.bytes_()]
    ),
    st.sampled_from([np.zeros(()), np.zeros(0), np.zeros((2, 2)), object(), Broken(), int]),
)
nested = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4), max_leaves=12)
dtypes = ["?", "u1", "i2", "i8", "u8", "f2", "f4", "f8", "g", ">f4", ">i4"]
dtypes += ["c8", "S2", "U2", "O", "V3", "m8[s]", "M8[s]", "f4,f4"]


@st.composite
def arrays(draw):
    """An array of any dtype and rank."""
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    return np.zeros(shape, draw(st.sampled_from(dtypes)))


anything = nested | arrays() | st.dictionaries(st.integers(), scalars, max_size=2)


@given(anything, anything, st.none() | anything, st.booleans(), st.booleans())
def test_anything_is_a_number_or_an_error(policy, reference, mask, same, exclude):
    options = {"on_nonfinite": "exclude"} if exclude else {}
    try:
        value, counts = kl_from_logprobs(
            policy, policy if same else reference, mask, return_counts=True, **options
        )
    except (ValueError, TypeError) as error:
        assert str(error)  # noqa: PT017 - either is right
    else:
        assert np.isfinite(value)
        assert min(counts) >= 0


@given(anything, anything, st.none() | anything)
def test_any_penalty_is_an_array_or_an_error(kl, coefficient, mask):
    for arguments in ((kl, 0.5, mask), (kl, coefficient, mask), ([-1.0], coefficient)):
        try:
            rewards = kl_penalties(*arguments)
        except (ValueError, TypeError) as error:
            assert str(error)  # noqa: PT017 - either is right
        else:
            assert all(np.isfinite(row).all() for row in rewards)


@given(anything, anything, st.none() | anything, st.booleans())
def test_any_divergence_is_a_number_or_an_error(p, q, epsilon, same):
    try:
        value = kl_divergence(p, p if same else q, epsilon=epsilon)
    except (ValueError, TypeError) as error:
        assert str(error)  # noqa: PT017 - either is right
    else:
        assert (np.asarray(value) >= 0).all()


# The other two functions ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "q", "options", "error", "message"),
    [
        (
            [0.5, 0.6],
            [0.5, 0.5],
            {},
            ValueError,
            r"p sums to 1.1.*expected probabilities.*epsilon=",
        ),
        ([0.5, 0.5], [3, 4], {}, ValueError, r"q sums to 7"),
        ([[0.5, 0.5], [1, 1]], [0.5, 0.5], {}, ValueError, r"p\[1\] sums to 2"),
        ([1.5, -0.5], [0.5, 0.5], {}, ValueError, r"p\[1\] is -0.5; expected a number of at least"),
        ([0.5, NAN], [0.5, 0.5], {}, ValueError, r"p\[1\] is NaN; expected a finite number$"),
        ([[1.0], [INF]], [[1.0], [1.0]], {}, ValueError, r"p\[1\]\[0\] is inf"),
        ([3, -1], [1, 1], {"epsilon": 0.5}, ValueError, r"p\[1\] is -1"),
        ([1e308] * 2, [1, 1], {"epsilon": 0.5}, ValueError, "sum is beyond"),
        ([1.0], [0.5, 0.5], {}, ValueError, r"q has shape \(2,\), and p \(1,\)"),
        (np.ones((2, 1)), np.ones((3, 1)), {}, ValueError, r"q has shape \(3, 1\), and p \(2, 1\)"),
        (np.ones((2, 1)), np.ones((1, 1)), {}, ValueError, r"expected the same shape, or one"),
        ([], [], {}, ValueError, r"p has shape \(0,\); expected at least one cell"),
        (1.0, 1.0, {}, ValueError, r"p has shape \(\)"),
        ([1, 2], [1, 2], {"epsilon": 0.0}, ValueError, "epsilon must be a number above 0"),
        ([1, 2], [1, 2], {"epsilon": NAN}, ValueError, "epsilon must be a number above 0"),
        ([1, 2], [1, 2], {"epsilon": 2e6}, ValueError, "at most 1e6"),
        ([1, 2], [1, 2], {"epsilon": "1"}, TypeError, "epsilon must be a number"),
        (
            [1, 2],
            [1, 2],
            {"epsilon": np.True_},
            TypeError,
            "epsilon must be a number, got np.True_",
        ),
        ([1, 2], [1, 2], {"epsilon": np.complex64(1)}, TypeError, "epsilon must be a number, got "),
        (["a"], [1.0], {}, TypeError, "p has elements of type"),
        ([[1.0], [0.5, 0.5]], [1.0], {}, ValueError, "p is of type list and cannot be read"),
    ],
)
def test_divergence_messages(p, q, options, error, message):
    with pytest.raises(error, match=message):
        kl_divergence(p, q, **options)


def test_sums_may_be_off_by_what_their_dtype_rounds():
    generator = np.random.default_rng(0)
    for dtype, off in [(np.float16, 1e-2), (np.float32, 1e-4), (np.float64, 1e-7)]:
        p, q = generator.dirichlet(np.ones(8), 2)
        exact = kl_divergence(p, q)
        scaled = kl_divergence((p * (1 + off)).astype(dtype), (q * (1 - off)).astype(dtype))
        assert scaled == pytest.approx(exact, rel=30 * float(np.finfo(dtype).eps))
        with pytest.raises(ValueError, match="sums to"):
            kl_divergence((p * (1 + 20 * off)).astype(dtype), q.astype(dtype))


def test_nothing_counted_on_either_side_is_no_divergence():
    assert kl_divergence([0, 0], [0, 0], epsilon=0.5) == 0.0
    assert kl_divergence([0, 0], [3, 0], epsilon=0.5) == 0.0
    assert kl_divergence([0, 0], [3, 1], epsilon=0.5) > 0.0


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (
            ([0.1], -1.0),
            {},
            ValueError,
            "coefficient must be a finite number of at least 0, got -1",
        ),
        (([0.1], INF), {}, ValueError, "coefficient must be"),
        (([0.1], NAN), {}, ValueError, "coefficient must be"),
        (([0.1], True), {}, TypeError, "coefficient must be a number, got True"),
        (([0.1], np.True_), {}, TypeError, "coefficient must be a number, got np.True_"),
        (([0.1], np.complex128(1)), {}, TypeError, r"coefficient must be a number, got np.complex"),
        (([0.1], np.complex64(1)), {}, TypeError, r"coefficient must be a number, got np.complex"),
        (([0.1], "1"), {}, TypeError, "coefficient must be a number"),
        (([0.1], 1.0), {"kind": "all"}, ValueError, "kind must be 'immediate' or 'to_go'"),
        (([0.1], 1.0), {"kind": None}, TypeError, "kind must be 'immediate' or 'to_go', got None"),
        (([0.1], 1.0), {"discount": None}, TypeError, "discount must be a number, got None"),
        (([0.1], 1.0), {"discount": 1.1}, ValueError, "discount must be a number from 0 to 1"),
        (([0.1], 1.0), {"discount": NAN}, ValueError, "discount must be a number from 0 to 1"),
        (([0.1, NAN], 1.0), {}, ValueError, r"kl\[1\] is NaN"),
        (([[0.1], [INF]], 1.0), {}, ValueError, r"kl\[1\]\[0\] is inf"),
        (([0.1], 1.0, [0, 1]), {}, ValueError, "mask has 2 tokens, and kl 1"),
        (([1e308], 1e10), {}, ValueError, "beyond the largest"),
        (([1e308, 1e308], 1.0), {"kind": "to_go"}, ValueError, "beyond the largest"),
    ],
)
def test_penalty_messages(arguments, options, error, message):
    with pytest.raises(error, match=message):
        kl_penalties(*arguments, **options)


class Interrupted:
    """What the user interrupts while it is read."""

    def _interrupt(self, *_):
        raise KeyboardInterrupt

    __float__ = __index__ = __len__ = __array__ = _interrupt


@pytest.mark.parametrize(
    "call",
    [
        lambda item: kl_from_logprobs([item], [0.0]),
        lambda item: kl_from_logprobs([0.0], item),
        lambda item: kl_from_logprobs([0.0], [0.0], [item]),
        lambda item: kl_penalties([item], 0.1),
        lambda item: kl_penalties([0.1], item),
        lambda item: kl_penalties([0.1], 0.1, discount=item),
        lambda item: kl_divergence(item, [1.0]),
        lambda item: kl_divergence([1.0], [1.0], epsilon=item),
        lambda item: FixedKLController(0.1).update(item),
        lambda item: FixedKLController(0.1).update(0.1, item),
        lambda item: FixedKLController(item),
    ],
)
def test_an_interrupt_is_no_fault_of_the_input(call):
    with pytest.raises(KeyboardInterrupt):
        call(Interrupted())


@pytest.mark.parametrize("value", [np.True_, np.complex64(1), np.complex128(1), 1j, True])
def test_controllers_take_real_numbers_only(value):
    with pytest.raises(TypeError, match="current"):
        FixedKLController(0.1).update(value)
