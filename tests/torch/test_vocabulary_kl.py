"""The exact divergence of models: places, every way to logits, both directions, gradients."""

import pytest
import torch
from model_families import make
from test_token_logprobs import LENGTHS, WAYS, padded, text_rows

from kl_proteus.torch import LazyLogits, full_kl, logprobs_from_logits


def exact(p, q, reverse=False, temperature=1.0):
    """Float64 from plain logits."""
    p, q = ((z.double() / temperature).log_softmax(-1) for z in (p, q))
    return (q.exp() * (q - p)).sum(-1) if reverse else (p.exp() * (p - q)).sum(-1)


def close(got, want, atol=2e-5):
    torch.testing.assert_close(torch.as_tensor(got).double(), want.double(), atol=atol, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("direction", ["policy_reference", "reference_policy"])
def test_models(trained, policy, text_bytes, side, direction):
    rows = text_rows(text_bytes)
    ids, mask = padded(rows, side, filler=-100)
    got = full_kl(policy, trained, ids, mask, direction=direction, temperature=0.8)
    assert got.requires_grad
    assert got.dtype == torch.float32
    assert (got.direction, got.lower_bound, got.temperature) == (direction, False, 0.8)
    assert got.mask.sum() == sum(LENGTHS) - len(LENGTHS)
    assert (got.values[~got.mask] == 0).all()
    for i, row in enumerate(rows):
        with torch.no_grad():
            p, q = (m(input_ids=row[None]).logits[0, :-1] for m in (policy, trained))
        want = exact(p, q, direction == "reference_policy", 0.8)
        close(got[i][got.mask[i]].detach(), want)
    assert got.kl[got.mask].mean() > 1e-3


def test_logits_of_the_policy_and_a_model_of_the_reference(trained, policy, text_bytes):
    ids, mask = padded(text_rows(text_bytes), "right")
    logits = policy(input_ids=ids, attention_mask=mask.long()).logits
    hidden = policy.model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    lazy = LazyLogits(hidden, policy.lm_head.weight)
    want = full_kl(policy, trained, ids, mask)
    for given in (logits, lazy):
        got = full_kl(given, trained, ids, mask)
        close(got.detach(), want.detach())
        assert torch.equal(got.mask, want.mask)
    # As they are, position t holds what may come at t + 1.
    with torch.no_grad():
        q = trained(input_ids=ids, attention_mask=mask.long()).logits
    plain = full_kl(logits, q, score_mask=mask)
    assert plain.alignment == "next"
    following = full_kl(policy, trained, ids, mask, alignment="next")
    close(torch.where(following.mask, plain.values, 0.0).detach(), following.detach())


@pytest.mark.parametrize("way", WAYS)
def test_every_way(way):
    policy, reference = WAYS[way](), make("qwen2")
    policy.requires_grad_(True)
    ids = torch.arange(14).view(2, 7) * 5 % 97
    weights = torch.linspace(-1, 1, 12).view(2, 6)

    def gradients(kl):
        policy.zero_grad()
        (kl * weights).sum().backward()
        return {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}

    p, q = policy(input_ids=ids).logits[:, :-1], reference(input_ids=ids).logits[:, :-1]
    kl = exact(p, q)
    got = full_kl(policy, reference, ids, byte_budget=4096)
    close(got[:, 1:].detach(), kl.detach(), atol=5e-5)
    ours, plain = gradients(got[:, 1:]), gradients(kl)
    assert ours.keys() == plain.keys()
    for name, gradient in plain.items():
        assert (ours[name] - gradient).norm() <= 2e-5 * gradient.norm() + 1e-7, name
    swapped = full_kl(reference, policy, ids, direction="reference_policy", byte_budget=4096)
    close(swapped[:, 1:], kl.detach(), atol=5e-5)
    assert not swapped.requires_grad


def test_columns_and_what_is_wanted(trained, policy, text_bytes):
    ids, mask = padded(text_rows(text_bytes), "left")
    with torch.no_grad():
        whole = full_kl(policy, trained, ids, mask)
        part = full_kl(policy, trained, ids, mask, columns=slice(16, None))
        some = full_kl(policy, trained, ids, mask, score_mask=ids % 2 == 0)
        following = full_kl(policy, trained, ids, mask, alignment="next")
    close(part.values, whole.values[:, 16:], atol=2e-6)
    assert torch.equal(some.mask, whole.mask & (ids % 2 == 0))
    close(some.values, torch.where(some.mask, whole.values, 0.0), atol=2e-6)
    assert torch.equal(following[:, :-1], whole[:, 1:])
    empty = full_kl(policy, trained, ids[:0], mask[:0])
    assert empty.shape == (0, 24)


def test_the_top_is_a_lower_bound_that_rises(trained, policy, text_bytes):
    ids = text_bytes[None, :200]
    with torch.no_grad():
        whole = full_kl(policy, trained, ids)
        bounds = [full_kl(policy, trained, ids, top_k=k) for k in (1, 8, 64, 255, 256)]
    assert [bound.lower_bound for bound in bounds] == [True, True, True, True, False]
    last = torch.zeros_like(whole.values)
    for bound in bounds:
        assert (bound.values >= last - 2e-6).all()
        last = bound.values
    close(last, whole.values)
    assert bounds[0].values.mean() < bounds[2].values.mean() <= whole.values.mean()


def test_it_is_what_samples_estimate(trained, policy, text_bytes):
    """The mean of k1 over ids drawn from the policy."""
    ids = text_bytes[None, :40]
    with torch.no_grad():
        kl = full_kl(policy, trained, ids)[0, 1:]
        p, q = (m(input_ids=ids).logits[0, :-1] for m in (policy, trained))
        generator = torch.Generator().manual_seed(0)
        drawn = torch.multinomial(p.softmax(-1), 4000, replacement=True, generator=generator)
        each = [logprobs_from_logits(z[:, None].expand(-1, 4000, -1), drawn) for z in (p, q)]
    k1 = each[0] - each[1]
    error = (k1.mean() - kl.mean()).abs()
    assert error < 5 * k1.std() / k1.numel() ** 0.5


def test_vocabularies_of_two_sizes(trained, text_bytes):
    small = make("llama", vocab_size=200)
    ids = text_bytes[None, :20]
    with pytest.raises(ValueError, match="256 and 200 ids; pass vocab_size"):
        full_kl(trained, small, ids)
    got = full_kl(trained, small, ids, vocab_size=190)
    p, q = (m(input_ids=ids).logits[0, :-1, :190] for m in (trained, small))
    close(got[0, 1:], exact(p, q))
    assert got.vocab_size == 190
    with pytest.raises(ValueError, match="at most the 200 ids of policy and reference"):
        full_kl(trained, small, ids, vocab_size=201)


@pytest.mark.parametrize(("dtype", "worst"), [(torch.bfloat16, 3e-2), (torch.float16, 5e-3)])
def test_low_precision(dtype, worst):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(32, 64, generator=generator).to(dtype)
    other = (hidden + 0.3 * torch.randn(32, 64, generator=generator)).to(dtype)
    weight = (3 / 8 * torch.randn(2000, 64, generator=generator)).to(dtype)
    got = full_kl(LazyLogits(hidden, weight), LazyLogits(other, weight))
    assert got.dtype == torch.float32
    want = exact(hidden.double() @ weight.double().T, other.double() @ weight.double().T)
    close(got.values, want, atol=worst)
    # Rounding of the head aside there is none.
    close(got.values, exact(hidden @ weight.T, other @ weight.T))


Z = torch.zeros(2, 3, 5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"policy": Z.long()}, TypeError, "policy must be a tensor of floats"),
        ({"reference": None}, TypeError, "reference must be a tensor of floats"),
        ({"policy": torch.nn.Linear(2, 2)}, TypeError, "tokens must be given where policy is"),
        ({"reference": Z[:1]}, ValueError, "same shape without the last axis"),
        ({"reference": Z[..., :4]}, ValueError, "5 and 4 ids; pass vocab_size"),
        ({"direction": "forward"}, ValueError, "direction must be"),
        ({"top_k": 0}, ValueError, "top_k must be at least 1"),
        ({"top_k": True}, TypeError, "top_k must be an int"),
        ({"temperature": -1}, ValueError, "temperature must be > 0"),
        ({"temperature": 1e-40}, ValueError, "temperature must be >= 1e-30"),
        ({"columns": slice(1)}, ValueError, "columns goes only with tokens"),
        ({"attention_mask": Z[..., 0]}, ValueError, "attention_mask goes only with tokens"),
        ({"score_mask": Z}, ValueError, r"score_mask must have the shape \(2, 3\)"),
        ({"tokens": torch.zeros(2, 4, dtype=torch.long)}, ValueError, r"shape \(2, 4, vocab"),
        ({"vocab_size": 6}, ValueError, "vocab_size must be at most the 5 ids"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        full_kl(**{"policy": Z, "reference": Z, **arguments})
