"""The tile routines: against the slow twin, their gradients, and the memory that they take."""

import math

import numpy as np
import pytest
import torch
from allocations import Largest
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from kl_proteus.torch import LazyLogits, full_kl, logprobs_from_logits
from kl_proteus.torch.kl_tiles import tiled_divergence
from kl_proteus.torch.tile_sources import tile_source
from kl_proteus.torch.tiles import tile_shape, tiled_logprobs
from reference import vocabulary

INF = math.inf


@st.composite
def logit_rows(draw, count=1):
    """Rows of float32 logits, some -inf, of a vocabulary that a tile may or may not hold."""
    rows = draw(st.integers(1, 4))
    vocab = draw(st.sampled_from([1, 2, 5, 255, 256, 257, 600]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.1, 3.0, 30.0]))
    made = []
    for _ in range(count):
        logits = (
            generator.normal(draw(st.sampled_from([0.0, 40.0])), spread, (rows, vocab))
        ).astype(np.float32)
        if draw(st.booleans()):
            logits[generator.random((rows, vocab)) < 0.4] = -INF
        made.append(torch.from_numpy(logits))
    return made


# Values ---------------------------------------------------------------------------------------


@given(logit_rows(), st.sampled_from([0.5, 1.0, 2.0]), st.integers(0, 599))
def test_log_probabilities_are_those_of_the_twin(made, temperature, seed):
    (logits,) = made
    ids = (torch.arange(len(logits)) * 7 + seed) % logits.shape[1]
    got = logprobs_from_logits(logits, ids, temperature=temperature, byte_budget=1)
    for row, one, value in zip(logits.tolist(), ids.tolist(), got.tolist(), strict=True):
        want = vocabulary.log_softmax(row, temperature)[one]
        assert value == pytest.approx(want, abs=2e-5, rel=1e-6, nan_ok=True)


@given(
    logit_rows(count=2),
    st.sampled_from([0.5, 1.0]),
    st.sampled_from(["policy_reference", "reference_policy"]),
    st.sampled_from([None, 1, 3, 300]),
)
def test_divergences_are_those_of_the_twin(made, temperature, direction, k):
    policy, reference = made
    got = full_kl(
        policy,
        reference,
        temperature=temperature,
        direction=direction,
        top_k=k,
        byte_budget=1,
    )
    assert got.lower_bound == (k is not None and k < policy.shape[1])
    for p_row, q_row, value in zip(policy.tolist(), reference.tolist(), got.tolist(), strict=True):
        p = vocabulary.log_softmax(p_row, temperature)
        q = vocabulary.log_softmax(q_row, temperature)
        if not any(map(math.isnan, (*p, *q))) and got.lower_bound:
            p, q = vocabulary.binned(p, q, k)
        want = vocabulary.divergence(*((p, q) if direction == "policy_reference" else (q, p)))
        assert value == pytest.approx(want, abs=2e-5, rel=2e-6, nan_ok=True)


@pytest.mark.parametrize("columns", [256, 600])
def test_a_tile_of_nothing_but_minus_infinity(columns):
    logits = torch.randn(3, 600, generator=torch.Generator().manual_seed(0))
    logits[:, :columns] = -INF
    logits[:, 599] = 1.0
    ids = torch.tensor([599, 0, 599])
    got = logprobs_from_logits(logits, ids, byte_budget=1)
    want = logits.double().log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    torch.testing.assert_close(got.double(), want, atol=2e-6, rtol=0)
    nothing = logprobs_from_logits(torch.full((1, 600), -INF), torch.tensor([3]))
    assert nothing.isnan().all()


def test_zeros_of_either_distribution():
    p, q = torch.tensor([0.7, 0.3, 0.0]).log(), torch.tensor([0.5, 0.25, 0.25]).log()
    assert full_kl(p, q).item() == pytest.approx(0.290227032673035, rel=1e-6)
    assert full_kl(q, p).item() == INF
    assert full_kl(q, p, direction="reference_policy").item() == pytest.approx(0.290227032673035)


def test_a_divergence_that_is_tiny_is_not_negative():
    logits = 3 * torch.randn(50, 3000, generator=torch.Generator().manual_seed(0))
    near = logits + 1e-4 * torch.randn(50, 3000, generator=torch.Generator().manual_seed(1))
    got = full_kl(logits, near)
    assert (got >= 0).all()
    assert got.max() < 2e-6
    assert (full_kl(logits, logits + 50.0) < 2e-5).all()


def test_the_known_categorical():
    policy, reference = torch.tensor([0.6, 0.3, 0.1]).log(), torch.tensor([0.3, 0.3, 0.4]).log()
    assert full_kl(policy, reference).item() == pytest.approx(0.277258872223978, rel=1e-6)
    back = full_kl(policy, reference, direction="reference_policy").item()
    assert back == pytest.approx(0.346573590279973, rel=1e-6)


# Gradients ------------------------------------------------------------------------------------


def head(vocab=600, hidden=4, rows=5):
    generator = torch.Generator().manual_seed(3)

    def normal(*shape):
        values = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return values.requires_grad_()

    return normal(rows, hidden), normal(vocab, hidden), normal(vocab)


def lazy(hidden, weight, bias):
    return tile_source(LazyLogits(hidden, weight, bias, 0.5, 3.0), 0.7, 590)


def test_gradients_of_log_probabilities():
    ids = torch.tensor([0, 255, 256, 589, 3])
    assert gradcheck(
        lambda *tensors: tiled_logprobs(lazy(*tensors), ids, 1), head(), fast_mode=True
    )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("top_k", [None, 1, 7])
def test_gradients_of_divergences(reverse, top_k):
    reference = torch.randn(5, 600, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    q = tile_source(reference, 0.7, 590)
    options = {"reverse": reverse, "top_k": top_k, "budget": 1}
    assert gradcheck(
        lambda *tensors: tiled_divergence(lazy(*tensors), q, **options), head(), fast_mode=True
    )
    # Rows of a larger tensor that do not follow each other.
    logits = torch.randn(1, 6, 600, dtype=torch.float64, requires_grad=True)
    assert gradcheck(
        lambda z: tiled_divergence(tile_source(z[:, :-1], 0.7, 590), q, **options),
        (logits,),
        fast_mode=True,
    )


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_what_is_frozen_gets_no_gradient(frozen):
    tensors = head()
    tensors[frozen].requires_grad_(False)
    tiled_logprobs(lazy(*tensors), torch.arange(5), 1).sum().backward()
    assert [tensor.grad is not None for tensor in tensors] == [i != frozen for i in range(3)]


def test_gradients_at_impossible_ids():
    p = torch.tensor([[0.7, 0.3, 0.0], [0.2, 0.2, 0.6]]).log().requires_grad_()
    q = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]).log()
    full_kl(p, q).sum().backward()
    want = []
    for row, other in zip(p.detach(), q, strict=True):
        ratio = torch.where(row > -INF, row - other, 0.0)
        want.append(row.exp() * (ratio - (row.exp() * ratio).sum()))
    torch.testing.assert_close(p.grad, torch.stack(want), atol=1e-6, rtol=0)


def test_places_that_do_not_count_may_hold_anything():
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    logits[1] = math.nan
    logits[2, 5] = INF
    logits.requires_grad_()
    reference = torch.zeros(4, 300)
    reference[3] = math.nan
    mask = torch.tensor([1, 0, 0, 0])
    got = full_kl(logits, reference, score_mask=mask)
    assert got.mask.tolist() == [True, False, False, False]
    assert got[0] > 0
    assert (got[1:] == 0).all()
    got.sum().backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[1:] == 0).all()
    logits.grad = None
    lp = logprobs_from_logits(logits, torch.arange(4))
    torch.where(mask.bool(), lp, 0.0).sum().backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize(("dtype", "worst"), [(torch.bfloat16, 2e-2), (torch.float16, 5e-3)])
def test_gradients_in_low_precision(dtype, worst):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(32, 64, generator=generator).to(dtype)
    weight = (3 / 8 * torch.randn(2000, 64, generator=generator)).to(dtype)
    ids = torch.randint(2000, (32,), generator=generator)
    upstream = torch.randn(32, generator=generator)
    ours = [x.clone().requires_grad_() for x in (hidden, weight)]
    logprobs_from_logits(LazyLogits(*ours), ids, byte_budget=1 << 16).backward(upstream)
    exact = [x.double().requires_grad_() for x in (hidden, weight)]
    lp = (exact[0] @ exact[1].T).log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    lp.backward(upstream.double())
    for got, want in zip(ours, exact, strict=True):
        assert (got.grad.double() - want.grad).norm() < worst * want.grad.norm()


def test_there_is_one_derivative():
    hidden, weight, bias = head()
    lp = tiled_logprobs(lazy(hidden, weight, bias), torch.arange(5), 1)
    (first,) = torch.autograd.grad(lp.square().sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_backward_within_autocast_is_the_same():
    hidden = torch.randn(8, 16).requires_grad_()
    weight = torch.randn(300, 16)
    grads = []
    for enabled in (False, True):
        hidden.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            logprobs_from_logits(LazyLogits(hidden, weight), torch.arange(8)).sum().backward()
        grads.append(hidden.grad)
    torch.testing.assert_close(grads[0], grads[1], atol=0, rtol=0)


# Memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_tensor_is_larger_than_the_budget(dtype):
    rows, vocab, width, budget = 128, 50_000, 8, 1 << 18
    hidden = torch.randn(rows, width, dtype=dtype).requires_grad_()
    weight = torch.randn(vocab, width, dtype=dtype)
    ids = torch.arange(rows)
    with Largest() as largest:
        lp = logprobs_from_logits(LazyLogits(hidden, weight), ids, byte_budget=budget)
        kl = full_kl(LazyLogits(hidden, weight), LazyLogits(-hidden, weight), byte_budget=budget)
        (lp.sum() + kl.sum()).backward()
    assert largest.bytes <= budget
    assert largest.bytes < rows * vocab * 4 / 50


def test_the_gradient_of_the_head_is_the_only_large_tensor():
    rows, vocab, width, budget = 128, 50_000, 8, 1 << 18
    hidden = torch.randn(rows, width).requires_grad_()
    weight = torch.randn(vocab, width).requires_grad_()
    with Largest() as largest:
        logprobs_from_logits(
            LazyLogits(hidden, weight), torch.arange(rows), byte_budget=budget
        ).sum().backward()
    assert largest.bytes == weight.nbytes < rows * vocab * 4


def test_the_shape_of_a_tile():
    def shape(rows, vocab, budget):
        return tile_shape(tile_source(torch.empty(rows, vocab), 1.0), budget)

    assert shape(2000, 152_064, 4 << 20) == (512, 2048)
    assert shape(64, 152_064, 4 << 20) == (64, 16_384)
    assert shape(2000, 152_064, 1) == (512, 256)
    assert shape(10, 97, 4 << 20) == (10, 256)
