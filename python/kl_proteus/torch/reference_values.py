"""Log-probabilities of a reference that may be anything that has logits."""

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kl_proteus.torch.arguments import check_ids
from kl_proteus.torch.causal_lm import causal_lm
from kl_proteus.torch.freezing import evaluating
from kl_proteus.torch.reference import ReferenceModel
from kl_proteus.torch.tiles import accumulator


class ReferenceValues(NamedTuple):
    """Log-probabilities of the tokens of a batch.

    Attributes:
        values: Shape (batch, tokens), in the widest float: position t is that of token t.
        known: bool, the same shape: where there is one.
        vocab_size: Over how many ids the probabilities sum to one; 0 where nothing was computed.
    """

    values: Tensor
    known: Tensor
    vocab_size: int


def reference_values(
    model: Any,
    reference: ReferenceModel | None,
    tokens: Tensor,
    mask: Tensor,
    temperature: float,
) -> tuple[ReferenceValues, ReferenceModel | None]:
    """Runs a reference on a batch.

    Args:
        model: What the user set.
        reference: What was made of it before; None at first.
        tokens: Checked ids of shape (batch, tokens).
        mask: bool, the same shape.
        temperature: Divides the logits.

    Returns:
        The values, and the `ReferenceModel` to use the next time; None for a model of which
        nothing is known but that it has logits.

    Raises:
        ValueError: The reference has another temperature, or its logits another shape.
    """
    if reference is None and causal_lm(model).path == "as_is":
        return _from_plain_logits(model, tokens, mask, temperature), None
    if reference is None:
        reference = ReferenceModel(model, temperature=temperature)
    found = reference.token_logprobs(tokens, mask, temperature=temperature)
    values = found.logprobs.to(accumulator(tokens.device))
    return ReferenceValues(values, found.mask, found.vocab_size), reference


def _from_plain_logits(
    model: Any, tokens: Tensor, mask: Tensor, temperature: float
) -> ReferenceValues:
    """Calls the model as it is on the batch as it came, padding included."""
    values = torch.zeros(tokens.shape, dtype=accumulator(tokens.device), device=tokens.device)
    known = mask.clone()
    known[:, :1] = False
    if not tokens.numel():
        return ReferenceValues(values, known, 0)
    quiet: AbstractContextManager[None]
    quiet = evaluating(model) if isinstance(model, nn.Module) else torch.no_grad()
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    device = next(parameters, tokens).device
    with quiet:
        logits = model(
            input_ids=tokens.clamp(min=0).to(device), attention_mask=mask.long().to(device)
        ).logits
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != tokens.shape:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"ref_model must return logits of shape {(*tokens.shape, 'vocabulary')}, got {shape}"
        )
    check_ids(tokens, mask, logits.shape[-1], "the ids that the logits are of")
    ids = torch.where(mask, tokens, 0)[:, 1:, None].to(logits.device)
    with torch.no_grad():
        for row, some in enumerate(logits[:, :-1].detach()):
            # One row at a time: the whole in float64 would be four times the logits.
            logs = (
                (some.to(accumulator(some.device)) / temperature)
                .log_softmax(-1)
                .gather(-1, ids[row])
            )
            values[row, 1:] = logs.squeeze(-1)
    return ReferenceValues(values, known, logits.shape[-1])
