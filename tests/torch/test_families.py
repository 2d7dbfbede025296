"""Every family of models: the path found, the values, and what padding and batches change."""

import warnings

import pytest
import torch
from model_families import FAMILIES, MAIN, VOCAB, make

from kl_proteus.torch import token_logprobs
from kl_proteus.torch.causal_lm import causal_lm

LENGTHS = (24, 9, 17, 1)


@pytest.fixture(scope="module")
def models():
    """Models by family, made once."""
    return {}


def get(models, family):
    if family not in models:
        models[family] = make(family)
    return models[family]


@pytest.fixture(autouse=True)
def _quiet():
    # Kernels that are not installed, and mixtures of experts that count tokens, warn.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def rows():
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(VOCAB, (n,), generator=generator) for n in LENGTHS]


def batch(side):
    """The rows with padding of ids that exist, and of ids that do not."""
    width = max(LENGTHS)
    ids, mask = torch.full((len(LENGTHS), width), -100), torch.zeros(len(LENGTHS), width)
    for i, row in enumerate(rows()):
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[i, place], mask[i, place] = row, 1
    return ids, mask


def plain(model, ids):
    """Float64 log-probabilities from the plain logits of a batch without padding."""
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
    want = logits.double().log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
    return want, logits.abs().max().item()


@pytest.mark.parametrize("family", FAMILIES)
def test_tiles_give_the_logits_of_the_family(models, family):
    lm = causal_lm(get(models, family))
    _, scale, softcap = FAMILIES[family]
    assert (lm.path, lm.scale, lm.softcap, lm.vocab) == ("tiles", scale, softcap, VOCAB)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_and_the_rest_of_the_batch_change_nothing(models, family, side):
    model = get(models, family)
    ids, mask = batch(side)
    with torch.no_grad():
        got = token_logprobs(model, ids, mask)
    assert got.dtype == torch.float32
    assert got.mask.sum() == sum(LENGTHS) - len(LENGTHS)
    assert (got.values[~got.mask] == 0).all()
    assert (got.values <= 1e-6).all()
    for i, row in enumerate(rows()):
        want, size = plain(model, row[None])
        error = (got[i][got.mask[i]] - want[0]).abs()
        assert error.numel() == 0 or error.max() < 2e-5 + 2e-6 * size


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", MAIN)
def test_low_precision_is_that_of_the_logits(models, family, dtype):
    model = make(family).to(dtype)
    ids = torch.stack([row[:9] for row in rows() if len(row) >= 9])
    with torch.no_grad():
        got = token_logprobs(model, ids)
    want, size = plain(model, ids)
    # A cap is applied in float32 here, and rounded once more by the model.
    once_more = torch.finfo(dtype).eps * size if causal_lm(model).softcap else 0.0
    assert got.dtype == torch.float32
    assert (got[:, 1:] - want).abs().max() < 2e-5 + 2e-6 * size + once_more


@pytest.mark.parametrize(
    ("dtype", "worst", "mean"), [(torch.bfloat16, 0.15, 1e-2), (torch.float16, 2e-2, 2e-3)]
)
@pytest.mark.parametrize("family", MAIN)
def test_low_precision_and_padding(models, family, dtype, worst, mean):
    model = make(family).to(dtype)
    ids, mask = batch("left")
    with torch.no_grad():
        got = token_logprobs(model, ids, mask)
        alone = [token_logprobs(model, row[None])[0, 1:] for row in rows()]
    error = torch.cat([got[i][got.mask[i]] - one for i, one in enumerate(alone)]).abs()
    assert error.max() < worst
    assert error.mean() < mean
