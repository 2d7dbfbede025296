"""Every estimator, reduction and container gives what the slow twin gives."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from estimators.strategies import LAYOUTS, NESTINGS, batches, columns, rectangular
from kl_proteus import kl_divergence, kl_from_logprobs, kl_penalties
from reference import estimators as twin

CLOSE = {"rtol": 1e-13, "atol": 1e-13}
estimators = st.sampled_from(twin.ESTIMATORS)


def size(estimator, batch):
    """How large the terms are that a sum may cancel."""
    terms = [abs(v) for row in batch for v in twin.kept_values(estimator, row)]
    return max([1.0, *terms])


def compare(policy, reference, mask, batch, estimator, on_nonfinite="raise"):
    """All reductions of what a container holds against the twin's of the batch."""
    options = {"estimator": estimator, "on_nonfinite": on_nonfinite}
    scale = size(estimator, batch)
    for reduction in twin.BATCH_REDUCTIONS:
        got, counts = kl_from_logprobs(
            policy, reference, mask, reduction=reduction, return_counts=True, **options
        )
        assert type(got) is float
        expected = twin.reduced(estimator, reduction, batch)
        assert_allclose(got, expected, rtol=1e-13, atol=1e-12 * scale)
        assert counts == twin.counts(estimator, batch)
    got = kl_from_logprobs(policy, reference, mask, reduction="per_sequence", **options)
    assert got.dtype == np.float64
    expected = twin.per_sequence(estimator, batch)
    assert_allclose(got, expected, rtol=1e-13, atol=1e-13 * scale)
    got = kl_from_logprobs(policy, reference, mask, reduction="none", **options)
    for values, row in zip(got, batch, strict=True):
        assert_allclose(values, twin.token_values(estimator, row), rtol=2e-15, atol=1e-323)


@given(batch=batches(), estimator=estimators, nesting=st.sampled_from(sorted(NESTINGS)))
def test_nested_lists(batch, estimator, nesting):
    policy, reference, mask = map(NESTINGS[nesting], columns(batch))
    if batch:
        compare(policy, reference, mask, batch, estimator)


@given(
    batch=batches(ragged=False).filter(rectangular),
    estimator=estimators,
    dtypes=st.tuples(*[st.sampled_from(["f2", "f4", "f8"])] * 2),
    mask_dtype=st.sampled_from(["?", "u1", "i1", "i4", "i8", "u2", "f2", "f4", "f8"]),
    layouts=st.tuples(*[st.sampled_from(sorted(LAYOUTS))] * 3),
    one=st.booleans(),
)
def test_arrays(batch, estimator, dtypes, mask_dtype, layouts, one):
    values, others, keep = columns(batch)
    policy = LAYOUTS[layouts[0]](np.array(values, dtypes[0]))
    reference = LAYOUTS[layouts[1]](np.array(others, dtypes[1]))
    mask = LAYOUTS[layouts[2]](np.array(keep, mask_dtype))
    rounded = [
        list(zip(p.tolist(), r.tolist(), k, strict=True))
        for p, r, k in zip(policy, reference, keep, strict=True)
    ]
    compare(policy, reference, mask, rounded, estimator)
    if one:
        got = kl_from_logprobs(policy[0], reference[0], mask[0], estimator=estimator)
        expected = twin.reduced(estimator, "token_mean", rounded[:1])
        assert_allclose(got, expected, rtol=1e-13, atol=1e-13 * size(estimator, rounded))


@given(batch=batches(broken=True), estimator=estimators)
def test_excluding_what_is_not_finite(batch, estimator):
    if batch:
        compare(*columns(batch), batch, estimator, on_nonfinite="exclude")
    if rectangular(batch):
        compare(*map(np.array, columns(batch)), batch, estimator, on_nonfinite="exclude")


@given(batch=batches(broken=True).filter(bool), estimator=estimators)
def test_raising_where_a_kept_token_is_not_finite(batch, estimator):
    excluded = twin.counts(estimator, batch)[1]
    if not excluded:
        compare(*columns(batch), batch, estimator)
        return
    sequence, token = next(
        (i, t)
        for i, row in enumerate(batch)
        for t, (p, r, keep) in enumerate(row)
        if keep and not math.isfinite(twin.estimate(estimator, p, r))
    )
    for reduction in ("none", "per_sequence", *twin.BATCH_REDUCTIONS):
        with pytest.raises(ValueError, match=rf"\[{sequence}\]\[{token}\]"):
            kl_from_logprobs(*columns(batch), estimator=estimator, reduction=reduction)


def test_every_float16_is_read_exactly():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    got, counts = kl_from_logprobs(
        every,
        np.zeros_like(every),
        reduction="none",
        on_nonfinite="exclude",
        return_counts=True,
    )
    finite = np.isfinite(every)
    np.testing.assert_array_equal(got, np.where(finite, every.astype(np.float64), 0.0))
    assert counts == (finite.sum(), (~finite).sum(), 1)


@given(
    data=st.data(),
    kl=st.lists(st.floats(-10, 10), max_size=12),
    coefficient=st.floats(0, 100),
    discount=st.sampled_from([0.0, 1.0]) | st.floats(0, 1),
    kind=st.sampled_from(["immediate", "to_go"]),
)
def test_penalties(data, kl, coefficient, discount, kind):
    mask = data.draw(st.lists(st.booleans(), min_size=len(kl), max_size=len(kl)))
    got = kl_penalties(kl, coefficient, mask, kind=kind, discount=discount)
    expected = twin.penalties(kl, mask, coefficient, kind, discount)
    assert_allclose(got, expected, rtol=1e-12, atol=1e-11)
    both = kl_penalties([kl, kl[:1]], coefficient, [mask, mask[:1]], kind=kind, discount=discount)
    np.testing.assert_array_equal(both[0], got)
    array = kl_penalties(
        np.array([kl]), coefficient, np.array([mask]), kind=kind, discount=discount
    )
    np.testing.assert_array_equal(array, got[None])


weights = st.just(0.0) | st.floats(0, 1) | st.floats(1e-12, 1e-6)


@st.composite
def weight_pairs(draw):
    """Two vectors of weights of the same length, often close."""
    p = draw(st.lists(weights, min_size=1, max_size=8).filter(lambda p: sum(p) > 0.1))
    near = [x * draw(st.floats(0.99, 1.01)) for x in p]
    q = draw(st.just(near) | st.lists(weights, min_size=len(p), max_size=len(p)))
    return p, q if sum(q) > 0.1 else near


@given(weight_pairs())
def test_divergence_of_probabilities(pair):
    p, q = (np.array(x) / np.sum(x) for x in pair)
    got = kl_divergence(p, q)
    assert type(got) is float
    assert got >= 0.0
    assert_allclose(got, twin.divergence(p.tolist(), q.tolist()), rtol=1e-12, atol=1e-14)


counts_of_cells = st.lists(
    st.tuples(*[st.integers(0, 50) | st.floats(0, 1e6)] * 2), min_size=1, max_size=8
)


@given(counts_of_cells, st.floats(1e-6, 1e6))
def test_divergence_of_counts(cells, epsilon):
    c, d = map(list, zip(*cells, strict=True))
    got = kl_divergence(c, d, epsilon=epsilon)
    assert got >= 0.0
    assert_allclose(got, twin.smoothed_divergence(c, d, epsilon), rtol=1e-12, atol=1e-13)
