"""Log-probabilities of tokens against a float64 softmax of the model's own logits."""

import pytest
import torch

from kl_proteus.torch import token_logprobs

LENGTHS = (24, 9, 17, 1)


def padded(rows, side, filler=0):
    """Rows of ids, padded on one side; ids and mask."""
    width = max(map(len, rows))
    ids, mask = torch.full((len(rows), width), filler), torch.zeros(len(rows), width)
    for i, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[i, place], mask[i, place] = row, 1
    return ids, mask


def expected(model, row, temperature=1.0):
    """Float64 log-softmax of the plain logits of a row alone."""
    with torch.no_grad():
        logits = model(input_ids=row[None]).logits[0].double() / temperature
    return logits.log_softmax(-1)[:-1].gather(-1, row[1:, None]).squeeze(-1)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_of_a_trained_model(trained, text_bytes, side, temperature):
    rows = [text_bytes[100 * i : 100 * i + n] for i, n in enumerate(LENGTHS)]
    ids, mask = padded(rows, side, filler=-100)
    with torch.no_grad():
        got = token_logprobs(trained, ids, mask, temperature=temperature)
    assert got.shape == ids.shape
    assert got.dtype == torch.float32
    assert got.temperature == temperature
    assert got.vocab_size == 256
    assert got.mask.sum() == sum(LENGTHS) - len(LENGTHS)
    assert (got.logprobs[~got.mask] == 0).all()
    for i, row in enumerate(rows):
        want = expected(trained, row, temperature)
        torch.testing.assert_close(
            got[i][got.mask[i]].double(), want, atol=2e-5, rtol=0, msg=str(i)
        )
