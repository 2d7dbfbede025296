"""What holds for every batch."""

import itertools
import sys
import threading

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from estimators.strategies import batches, columns, not_finite, tokens
from kl_proteus import kl_divergence, kl_from_logprobs, kl_penalties
from reference import estimators as twin

estimators = st.sampled_from(twin.ESTIMATORS)
reductions = st.sampled_from(["none", "per_sequence", *twin.BATCH_REDUCTIONS])


def means(policy, reference, mask, estimator):
    return kl_from_logprobs(policy, reference, mask, estimator=estimator, reduction="per_sequence")


def padded(row, width, left, fill):
    """One column of a sequence in an array row."""
    space = [fill] * (width - len(row))
    return space + row if left else row + space


@given(batch=batches(), estimator=st.sampled_from(["abs", "k2", "k3"]))
def test_never_negative(batch, estimator):
    values = kl_from_logprobs(*columns(batch), estimator=estimator, reduction="none")
    assert all((row >= 0).all() for row in values)
    assert kl_from_logprobs(*columns(batch), estimator=estimator) >= 0


@given(batch=batches(), estimator=estimators, data=st.data())
def test_a_sequence_does_not_depend_on_the_others(batch, estimator, data):
    whole = means(*columns(batch), estimator) if batch else []
    alone = [means(*columns([row]), estimator)[0] for row in batch]
    np.testing.assert_array_equal(whole, alone)
    order = data.draw(st.permutations(range(len(batch))))
    if batch:
        shuffled = means(*columns([batch[i] for i in order]), estimator)
        np.testing.assert_array_equal(shuffled, np.array(alone)[list(order)])


@given(
    batch=batches().filter(bool),
    estimator=estimators,
    left=st.booleans(),
    more=st.integers(0, 700),
    fill=not_finite | st.floats(allow_nan=False, width=32),
    dtype=st.sampled_from(["f4", "f8"]),
)
def test_padding_changes_no_bit(batch, estimator, left, more, fill, dtype):
    policy, reference, mask = columns(batch)
    policy, reference = ([np.array(row, dtype).tolist() for row in c] for c in (policy, reference))
    width = max(map(len, mask)) + more
    arrays = (
        np.array([padded(row, width, left, fill) for row in policy]).astype(dtype),
        np.array([padded(row, width, left, fill) for row in reference]).astype(dtype),
        np.array([padded(row, width, left, False) for row in mask]),
    )
    expected = means(policy, reference, mask, estimator)
    np.testing.assert_array_equal(means(*arrays, estimator), expected)


@given(
    batch=batches().filter(bool),
    estimator=estimators,
    reduction=reductions,
    policy_junk=not_finite,
    reference_junk=not_finite,
    on_nonfinite=st.sampled_from(["raise", "exclude"]),
)
def test_masked_places_are_not_looked_at(
    batch, estimator, reduction, policy_junk, reference_junk, on_nonfinite
):
    options = {"estimator": estimator, "reduction": reduction, "on_nonfinite": on_nonfinite}
    options["return_counts"] = True
    junk = [
        [(p, r, k) if k else (policy_junk, reference_junk, k) for p, r, k in row] for row in batch
    ]
    value, counts = kl_from_logprobs(*columns(batch), **options)
    other, other_counts = kl_from_logprobs(*columns(junk), **options)
    assert counts == other_counts
    pairs = zip(value, other, strict=True) if reduction == "none" else [(value, other)]
    for a, b in pairs:
        np.testing.assert_array_equal(a, b)


@given(st.lists(tokens(), min_size=1, max_size=20), estimators)
def test_dropping_a_token_is_masking_it(sequence, estimator):
    kept = [token for token in sequence if token[2]]
    got = means(*columns([sequence]), estimator)
    np.testing.assert_array_equal(got, means(*columns([kept]), estimator))


@given(batch=batches().filter(bool), estimator=estimators, data=st.data())
def test_any_split_adds_up_to_the_whole(batch, estimator, data):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(batch)))) | {0, len(batch)})
    shards = [batch[a:b] for a, b in itertools.pairwise(cuts)]
    for reduction, weight in [
        ("token_mean", "kept"),
        ("sequence_mean", "sequences"),
        ("sequence_sum", "sequences"),
    ]:
        options = {"estimator": estimator, "reduction": reduction, "return_counts": True}
        whole, counts = kl_from_logprobs(*columns(batch), **options)
        parts = [kl_from_logprobs(*columns(shard), **options) for shard in shards]
        weights = [getattr(part, weight) for _, part in parts]
        assert sum(weights) == getattr(counts, weight)
        total = sum(value * n for (value, _), n in zip(parts, weights, strict=True))
        scale = max([1.0, *(abs(value) * n for (value, _), n in zip(parts, weights, strict=True))])
        assert total == pytest.approx(whole * sum(weights), rel=1e-13, abs=1e-13 * scale)


@st.composite
def categoricals(draw):
    """Two distributions on the same support, as log-probabilities."""
    n = draw(st.integers(2, 8))
    logits = st.lists(st.floats(-8, 8), min_size=n, max_size=n)
    result = []
    for _ in range(2):
        x = np.array(draw(logits))
        result.append(x - x.max() - np.log(np.exp(x - x.max()).sum()))
    return result


@given(categoricals())
def test_expectations_are_the_divergence(pair):
    policy, reference = pair
    p, q = np.exp(policy), np.exp(reference)
    exact = kl_divergence(p, q)
    scale = max(1.0, float(np.abs(policy - reference).max()))

    def expected(estimator):
        values = kl_from_logprobs(policy, reference, estimator=estimator, reduction="none")
        return float(p @ values)

    assert expected("k1") == pytest.approx(exact, rel=1e-12, abs=1e-14 * scale)
    assert expected("k3") == pytest.approx(exact, rel=1e-12, abs=1e-13 * scale)
    assert expected("abs") >= exact - 1e-14 * scale
    half_the_second_moment = float(p @ (policy - reference) ** 2) / 2
    assert expected("k2") == pytest.approx(half_the_second_moment, rel=1e-12)


@given(categoricals())
def test_divergence_is_zero_only_of_equals(pair):
    p, q = map(np.exp, pair)
    assert kl_divergence(p, p) == 0.0
    assert kl_divergence(p, q) > 0.0 or np.allclose(p, q)


@given(categoricals(), st.integers(1, 4))
def test_arrays_of_distributions_are_their_vectors(pair, rows):
    p, q = map(np.exp, pair)
    many = np.stack([np.roll(p, i) for i in range(rows)])
    expected = [kl_divergence(row, q) for row in many]
    np.testing.assert_array_equal(kl_divergence(many, q), expected)
    np.testing.assert_array_equal(kl_divergence(many, np.stack([q] * rows)), expected)
    np.testing.assert_array_equal(kl_divergence(many[:, None], q[None, None][0, 0])[:, 0], expected)
    backwards = [kl_divergence(q, row) for row in many]
    np.testing.assert_array_equal(kl_divergence(q, many), backwards)


@given(st.lists(tokens(), min_size=1, max_size=20), st.floats(0, 1))
def test_rewards_to_go_add_up_to_the_whole_charge(sequence, coefficient):
    policy, reference, mask = columns([sequence])
    kl = kl_from_logprobs(policy, reference, reduction="none")
    immediate = kl_penalties(kl, coefficient, mask)[0]
    to_go = kl_penalties(kl, coefficient, mask, kind="to_go")[0]
    assume(any(mask[0]))
    assert to_go[mask[0].index(True)] == pytest.approx(immediate.sum(), rel=1e-12, abs=1e-12)
    assert (to_go[~np.array(mask[0])] == 0.0).all()
    undiscounted = kl_penalties(kl, coefficient, mask, kind="to_go", discount=0.0)[0]
    np.testing.assert_array_equal(undiscounted, immediate)


def test_long_sums_lose_nothing():
    # In float32 the sum of these would stop growing at 2^24 times the step.
    n = 1 << 20
    policy = np.full((32, n), np.float32(-1.0))
    reference = np.full((32, n), np.float32(-1.1))
    step = float(policy[0, 0]) - float(reference[0, 0])
    assert kl_from_logprobs(policy, reference) == pytest.approx(step, rel=1e-15)
    value = kl_from_logprobs(policy, reference, reduction="sequence_sum")
    assert value == pytest.approx(step * n, rel=1e-15)


@pytest.mark.parametrize("wrap", [np.array, lambda rows: rows, lambda rows: np.array(rows, "f4")])
def test_the_bits_do_not_depend_on_the_machine(wrap):
    # The Rust tests pin the same number, where it comes from the narrowest registers there are.
    policy = [(i * 37 % 101 - 50) / 16 for i in range(200)]
    value = kl_from_logprobs(
        wrap([policy]), wrap([[0.0] * 200]), estimator="k3", reduction="sequence_sum"
    )
    assert value == 545.8865830285872


def test_large_arrays_are_read_without_the_interpreter():
    # On a busy machine the other thread may come too late: then it is tried again.
    assert any(another_thread_ran() for _ in range(300))


def another_thread_ran():
    """Whether another thread got the interpreter while a large array was read."""
    policy = np.zeros((64, 1 << 17), np.float32)
    gate, seen = threading.Lock(), []
    gate.acquire()
    other = threading.Thread(target=lambda: (gate.acquire(), seen.append(True)))
    interval = sys.getswitchinterval()
    # Nobody is made to give up the interpreter within the test: it is released, or kept.
    sys.setswitchinterval(60)
    try:
        other.start()
        gate.release()
        kl_from_logprobs(policy, policy, estimator="k3")
        return bool(seen)
    finally:
        sys.setswitchinterval(interval)
        other.join()


def test_many_threads_get_the_same():
    generator = np.random.default_rng(0)
    policy, reference = generator.normal(size=(2, 64, 2048))
    mask = generator.random(policy.shape) < 0.7
    expected = kl_from_logprobs(policy, reference, mask, estimator="k3")
    results = []

    def work():
        for _ in range(20):
            results.append(kl_from_logprobs(policy, reference, mask, estimator="k3"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 160
