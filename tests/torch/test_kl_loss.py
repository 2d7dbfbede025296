"""Estimates and losses on tensors: the twin's values, and the gradient of the divergence."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kl_proteus
from kl_proteus.torch import TokenLogprobs, kl_from_logprobs, kl_loss, token_logprobs

ESTIMATORS = ("k1", "abs", "k2", "k3")
REDUCTIONS = ("none", "per_sequence", "token_mean", "sequence_mean", "sequence_sum")
POLICY = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
REFERENCE = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
SAMPLER = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
EXACT = [0.249532985001580, -0.0831776616671934, -0.166355323334387]
INF, NAN = math.inf, math.nan


def tensor(*values, **options):
    return torch.tensor(values, dtype=torch.float64, **options)


def logits():
    return POLICY.log().requires_grad_()


# The gradient ---------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("sampler", [None, SAMPLER])
def test_the_gradient_is_that_of_the_divergence(estimator, sampler):
    z = logits()
    loss = kl_loss(
        z.log_softmax(-1),
        REFERENCE.log(),
        estimator=estimator,
        behaviour_logprobs=None if sampler is None else sampler.log(),
        reduction="none",
    )
    weights = POLICY if sampler is None else sampler
    (weights * loss).sum().backward()
    assert z.grad.tolist() == pytest.approx(EXACT, abs=1e-14)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_the_gradient_of_an_estimate_is_not(estimator):
    z = logits()
    values = kl_from_logprobs(
        z.log_softmax(-1), REFERENCE.log(), estimator=estimator, reduction="none"
    )
    (POLICY * values).sum().backward()
    other = {"k1": [0, 0, 0], "k3": [0.3, 0, -0.3]}[estimator]
    assert z.grad.tolist() == pytest.approx(other, abs=1e-14)


def test_all_sequences_of_a_small_model():
    """Three tokens of three ids each, drawn elsewhere: the gradient at the visited prefixes."""
    torch.manual_seed(0)
    table = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    reference, sampler = (torch.randn(4, 3, dtype=torch.float64).log_softmax(-1) for _ in "ab")
    sequences = torch.tensor(list(itertools.product(range(3), repeat=3)))
    before = torch.cat([torch.full((27, 1), 3), sequences[:, :-1]], dim=1)

    def of(rows):
        return rows[before].gather(-1, sequences[..., None])[..., 0]

    policy = table.log_softmax(-1)
    drawn = of(sampler).sum(-1).exp()
    # The mean over drawn prefixes of the exact divergence at each.
    each = (policy.exp() * (policy - reference)).sum(-1)[before].sum(-1)
    (want,) = torch.autograd.grad((drawn * each).sum(), table)
    loss = kl_loss(
        of(table.log_softmax(-1)),
        of(reference),
        behaviour_logprobs=of(sampler),
        reduction="none",
    )
    (got,) = torch.autograd.grad((drawn * loss.sum(-1)).sum(), table)
    torch.testing.assert_close(got, want, atol=1e-14, rtol=0)
    assert (drawn * loss.sum(-1)).sum().item() == pytest.approx((drawn * each).sum().item())


@pytest.mark.parametrize("clamp", [None, 10.0])
def test_a_clamp_limits_the_value_and_not_the_gradient(clamp):
    policy = tensor(-6.0, requires_grad=True)
    loss = kl_loss(policy, tensor(-2.0), clamp=clamp)
    assert loss.item() == pytest.approx(10.0 if clamp else 49.598150033144236, rel=1e-14)
    loss.backward()
    assert policy.grad.item() == pytest.approx(-4.0, abs=1e-14)
    far = torch.tensor([-900.0], requires_grad=True)
    loss = kl_loss(far, torch.tensor([-1.0]), clamp=clamp)
    assert loss.item() == 10.0 if clamp else math.isnan(loss.item())
    loss.backward()
    assert far.grad.item() == -899.0
    assert kl_loss(tensor(-6.0), tensor(-2.0), estimator="k1", clamp=2.5).item() == -2.5


def test_the_clamp_is_of_the_weighted_value():
    policy, reference, sampler = tensor(-1.0), tensor(-3.0), tensor(-4.0)
    loss = kl_loss(policy, reference, behaviour_logprobs=sampler, estimator="k1", clamp=7.0)
    assert loss.item() == 7.0


def test_no_gradient_flows_elsewhere():
    policy, reference, sampler = (tensor(-1.0, -2.0, requires_grad=True) for _ in range(3))
    kl_loss(policy, reference * 2, behaviour_logprobs=sampler * 2).backward()
    assert policy.grad.any()
    assert reference.grad is None
    assert sampler.grad is None


@pytest.mark.parametrize("function", [kl_loss, kl_from_logprobs])
def test_masked_places_hold_anything_and_get_no_gradient(function):
    policy = tensor(-1.0, -2.0, -INF, NAN, -1e300, requires_grad=True)
    reference = tensor(-1.5, -1.0, -3.0, INF, 1e300)
    mask = torch.tensor([1, 1, 0, 0, 0])
    value = function(policy, reference, mask, estimator="k3")
    assert value.item() == pytest.approx(0.412406244085839, rel=1e-14)
    value.backward()
    assert policy.grad.isfinite().all()
    assert policy.grad[2:].tolist() == [0, 0, 0]
    assert policy.grad[:2].all()


def test_a_kept_token_that_is_not_finite_is_seen():
    for bad in (-INF, INF, NAN):
        for clamp in (None, 1.0):
            loss = kl_loss(tensor(-1.0, bad), tensor(-1.0, -1.0), clamp=clamp)
            assert math.isnan(loss.item())
    assert math.isnan(kl_loss(tensor(-1.0), tensor(-1.0), behaviour_logprobs=tensor(-INF)).item())


def test_an_estimate_that_its_type_cannot_hold_overflows():
    far = [torch.tensor([-1.0, x], dtype=torch.float32) for x in (-100.0, -1.0)]
    with pytest.raises(ValueError, match=r"token at \[1\] overflows"):
        kl_from_logprobs(*far, estimator="k3")
    value, counts = kl_from_logprobs(
        *far, estimator="k3", on_nonfinite="exclude", return_counts=True
    )
    assert value.item() == 0.0
    assert counts.excluded.item() == 1
    assert math.isnan(kl_loss(*far).item())
    assert kl_loss(*far, clamp=5.0).item() == 2.5
    wide = [x.double() for x in far]
    assert kl_from_logprobs(*wide, estimator="k3").item() == pytest.approx(math.exp(99) / 2)
    assert math.isfinite(kl_loss(*wide).item())


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2", "k3"])
def test_nothing_waits_for_the_device(estimator):
    # Tensors without values: reading one raises.
    policy, other, mask = (torch.ones(2, 3, device="meta") for _ in range(3))
    policy.requires_grad_()
    kl_loss(
        policy, other, mask, estimator=estimator, behaviour_logprobs=other, clamp=1.0
    ).backward()
    kl_from_logprobs(
        policy, other, mask, estimator=estimator, on_nonfinite="exclude", return_counts=True
    )
    with pytest.raises(RuntimeError, match="meta"):
        kl_from_logprobs(policy, other, mask, estimator=estimator)


def test_nothing_kept_is_zero_with_a_gradient_of_zero():
    for shape in ((0,), (3,), (2, 3), (0, 3), (2, 0)):
        policy = torch.full(shape, NAN, requires_grad=True)
        for reduction in REDUCTIONS:
            mask = torch.zeros(shape)
            loss = kl_loss(policy, policy.detach(), mask, reduction=reduction)
            assert (loss == 0).all()
            loss.sum().backward()
            assert not policy.grad.any()
        value, counts = kl_from_logprobs(policy, policy, mask, return_counts=True)
        assert value.item() == 0.0
        assert [count.item() for count in counts] == [0, 0, 0]


# Values ---------------------------------------------------------------------------------------

NUMBERS = st.one_of(st.floats(-30, 0), st.sampled_from([-INF, INF, NAN, -1e-9, 0.0, -12.34, -1e3]))


@st.composite
def batches(draw):
    """Policy, reference and mask of rank 1 or 2."""
    shape = draw(st.sampled_from([(0,), (4,), (1, 5), (3, 4), (2, 0)]))
    size = math.prod(shape)

    def column(elements):
        return np.array(draw(st.lists(elements, min_size=size, max_size=size))).reshape(shape)

    return column(NUMBERS).astype(float), column(NUMBERS).astype(float), column(st.booleans())


@given(batches(), st.sampled_from(ESTIMATORS), st.sampled_from(REDUCTIONS))
def test_values_are_those_of_arrays(batch, estimator, reduction):
    policy, reference, mask = batch
    mask = mask.astype(bool)
    options = {"estimator": estimator, "reduction": reduction, "on_nonfinite": "exclude"}
    want, counts = kl_proteus.kl_from_logprobs(
        policy, reference, mask, return_counts=True, **options
    )
    tensors = [torch.from_numpy(np.array(x)) for x in (policy, reference, mask)]
    got, ours = kl_from_logprobs(*tensors, return_counts=True, **options)
    assert got.dtype == torch.float64
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-12, atol=1e-13)
    assert tuple(count.item() for count in ours) == tuple(counts)
    finite = np.isfinite(policy) & np.isfinite(reference)
    if finite[mask].all() and counts.excluded == 0:
        loss = kl_loss(*tensors, estimator=estimator, reduction=reduction)
        np.testing.assert_allclose(loss.numpy(), want, rtol=1e-12, atol=1e-13)


def test_digits_where_k3_cancels():
    for difference in (1e-9, -1e-9, 1e-160, -5e-5):
        got = kl_from_logprobs(tensor(difference), tensor(0.0), estimator="k3").item()
        want = kl_proteus.kl_from_logprobs([difference], [0.0], estimator="k3")
        assert got == pytest.approx(want, rel=1e-14)
    low = torch.tensor([-12.34], dtype=torch.bfloat16)
    assert kl_from_logprobs(low, torch.tensor([-12.35])).dtype == torch.float32
    assert kl_loss(low, low.half()).dtype == torch.float32


def test_the_parts_of_a_batch_add_up():
    shards = [(torch.ones(10), 10), (0.2 * torch.ones(30), 30), (torch.ones(0), 0)]
    total, kept = torch.zeros(()), torch.zeros((), dtype=torch.long)
    for values, size in shards:
        value, counts = kl_from_logprobs(values, torch.zeros(size), return_counts=True)
        total, kept = total + value * counts.kept, kept + counts.kept
    assert (total / kept).item() == pytest.approx(0.4)


# Log-probabilities that know how they were made ------------------------------------------------


def test_results_bring_their_mask(trained, policy, text_bytes):
    ids = text_bytes[:24].view(2, 12)
    mask = torch.ones(2, 12)
    mask[1, :5] = 0
    ours = token_logprobs(policy, ids, mask)
    with torch.no_grad():
        theirs = token_logprobs(trained, ids, mask)
    value, counts = kl_from_logprobs(ours, theirs, mask, return_counts=True)
    assert counts.kept == 11 + 6
    assert value.item() == pytest.approx((ours.values - theirs.values).sum().item() / 17, rel=1e-5)
    loss = kl_loss(ours, theirs)
    loss.backward()
    assert any(p.grad is not None and p.grad.any() for p in policy.parameters())


@pytest.mark.parametrize(
    "other", [{"temperature": 0.7}, {"vocab_size": 200}, {"alignment": "next"}]
)
def test_results_made_in_different_ways_are_not_combined(trained, text_bytes, other):
    ids = text_bytes[None, :12]
    fine, odd = token_logprobs(trained, ids), token_logprobs(trained, ids, **other)
    assert isinstance(odd, TokenLogprobs)
    (fact,) = other
    for function in (kl_from_logprobs, kl_loss):
        assert function(odd, odd) == 0
        assert function(fine, odd.values).isfinite()
        with pytest.raises(ValueError, match=f"policy and reference must have the same {fact}"):
            function(fine, odd)
    with pytest.raises(ValueError, match="policy and behaviour_logprobs"):
        kl_loss(fine, fine, behaviour_logprobs=odd)


# Refusals -------------------------------------------------------------------------------------

ONE = torch.tensor([-1.0, -2.0])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"policy": [-1.0, -2.0]}, TypeError, "policy must be a tensor of log-probabilities"),
        ({"reference": ONE.long()}, TypeError, "reference must hold floats, got torch.int64"),
        ({"policy": torch.tensor(-1.0)}, ValueError, r"shape \(tokens,\) or \(batch, tokens\)"),
        ({"policy": ONE[None, None]}, ValueError, r"shape \(tokens,\) or \(batch, tokens\)"),
        ({"reference": ONE[:1]}, ValueError, "reference must have the shape of policy"),
        ({"reference": ONE.to("meta")}, ValueError, "on the device of policy, cpu; got meta"),
        ({"mask": ONE}, ValueError, r"mask must hold bools, 0 or 1, got -1.0 at \[0\]"),
        ({"mask": torch.ones(3)}, ValueError, "mask must have the shape"),
        ({"mask": [1, 1]}, TypeError, "mask must be a tensor"),
        ({"estimator": "k4"}, ValueError, "estimator must be one of 'k1'"),
        ({"estimator": 3}, TypeError, "estimator must be a str"),
        ({"reduction": "mean"}, ValueError, "reduction must be one of 'none'"),
    ],
)
@pytest.mark.parametrize("function", [kl_loss, kl_from_logprobs])
def test_bad_arguments(function, arguments, error, message):
    with pytest.raises(error, match=message):
        function(**{"policy": ONE, "reference": ONE, **arguments})


def test_bad_options():
    for clamp in (0.0, -1.0, NAN, INF):
        with pytest.raises(ValueError, match="clamp must be"):
            kl_loss(ONE, ONE, clamp=clamp)
    with pytest.raises(ValueError, match="behaviour_logprobs must have the shape"):
        kl_loss(ONE, ONE, behaviour_logprobs=ONE[:1])
    with pytest.raises(ValueError, match="on_nonfinite must be one of"):
        kl_from_logprobs(ONE, ONE, on_nonfinite="drop")
    with pytest.raises(TypeError, match="return_counts must be True or False"):
        kl_from_logprobs(ONE, ONE, return_counts="no")
    with pytest.raises(ValueError, match=r"policy\[0\]\[1\] is -inf and the mask keeps it"):
        kl_from_logprobs(tensor(-1.0, -INF)[None], tensor(-1.0, -INF)[None])
    with pytest.raises(ValueError, match=r"reference\[1\] is nan"):
        kl_from_logprobs(ONE, tensor(-1.0, NAN))
    with pytest.raises(ValueError, match=r"token at \[0\] overflows"):
        kl_from_logprobs(tensor(-900.0), tensor(0.0), estimator="k3")
