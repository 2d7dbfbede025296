"""Log-probabilities of tokens, without the logits of a whole batch in float32."""

from typing import Any

import torch
from torch import Tensor

from kl_proteus.torch.arguments import (
    check_budget,
    check_ids,
    check_ids_type,
    check_logits,
    check_temperature,
    check_vocab_size,
)
from kl_proteus.torch.causal_lm import activated, causal_lm, check_request, check_stated
from kl_proteus.torch.lazy_logits import LazyLogits
from kl_proteus.torch.repack import Packed, Request, make_request, repack
from kl_proteus.torch.results import Alignment, TokenLogprobs
from kl_proteus.torch.sides import Side, by_chunks, model_side
from kl_proteus.torch.tile_sources import tile_source
from kl_proteus.torch.tiles import autocast_off, tiled_logprobs


def token_logprobs(
    model: Any,
    tokens: Tensor,
    attention_mask: Tensor | None = None,
    *,
    temperature: float = 1.0,
    vocab_size: int | None = None,
    columns: slice | None = None,
    score_mask: Tensor | None = None,
    alignment: Alignment = "token",
    byte_budget: int | None = None,
) -> TokenLogprobs:
    """Log-probability of each token given those before it, under a causal language model, in nats.

    Logits of shape (batch, tokens, vocabulary) are never held in float32. Rows are repacked to
    right padding, the backbone runs once, and its hidden states meet the output head in tiles that
    stay within `byte_budget`, with sums over the vocabulary in float64. So padding may be on any
    side and of any length, and models of bfloat16 or float16 give what float32 makes of their
    logits. Heads that are more than a product with their weight (LoRA on the head, hooks) run
    themselves on chunks of rows; where even that does not give the model's own logits, the whole
    model runs, one row of the batch at a time. What is done is logged at debug level.

    The result has gradients to the model's parameters where gradients are on; backward makes the
    tiles again. Put the call into `torch.no_grad()` for a reference. The model's mode is left as it
    is: call `model.eval()` first, unless dropout is meant. Autocast is off inside: the model runs
    in its own dtype.

    Args:
        model: A Hugging Face causal language model (a PEFT model runs with the adapters that are
            active), a `ModelState` such as a `ReferenceModel`, or anything that maps `input_ids`
            and `attention_mask` to an object with `logits` of shape (batch, tokens, vocabulary).
        tokens: Token ids, integers of shape (batch, tokens). What lies at padding does not matter.
        attention_mask: True or 1 where there is a token, False or 0 at padding, the same shape;
            None: everywhere. Padding may be left, right, or between.
        temperature: Divides the logits, after the model's own scale and cap. Use the one of
            sampling, for policy and reference alike.
        vocab_size: Uses the first ids only, so that models whose vocabularies were padded to
            different sizes share one; None: all of the model's.
        columns: Which columns the result has, such as `slice(prompt_length, None)` for a
            completion; the others are context only. None: all.
        score_mask: True or 1 where a value is wanted, the shape of `tokens`; other kept tokens are
            context only. None: everywhere.
        alignment: `"token"`: position t holds the log-probability of token t. `"next"`: position t
            holds that of token t + 1, and the last one holds 0.0.
        byte_budget: Bytes of logits worked on at a time; None: 4 MB on a CPU, else 64 MB. A tile
            has at least 256 columns.

    Returns:
        Float32 of shape (batch, columns) on the device of `tokens`. Padding, the first kept token
        of a row, which has no context, and what is not wanted are 0.0, and False in `.mask`.

    Raises:
        TypeError: An argument is of another type.
        ValueError: Shapes differ, an id is not in the vocabulary, a row is longer than the model's
            table of positions, a number is out of its range, or a `ReferenceModel` was made for
            another temperature or vocabulary.
    """
    temperature = check_temperature(temperature)
    check_stated("the model", model, temperature, vocab_size)
    request = make_request(
        tokens,
        attention_mask,
        columns=columns,
        score_mask=score_mask,
        alignment=alignment,
    )
    with activated(model) as module:
        lm = causal_lm(module)
        check_request(lm, request)
        packed = repack(request)
        vocab = check_vocab_size(vocab_size, lm.vocab, "the model") if lm.vocab else vocab_size
        if not packed.lengths:
            values = torch.zeros((0,), device=tokens.device)
            return _result(request, packed, values, temperature, vocab or 0, alignment)
        side = model_side(model, lm, request, packed)
        vocab = check_vocab_size(vocab_size, side.vocab, "the model")
        check_ids(request.tokens, request.wanted, vocab, "the ids that probabilities are over")
        budget = check_budget(byte_budget, side.device)
        # Still active: the head of a frozen model gives no gradient either.
        values = _scored(side, packed, temperature, vocab, budget).to(tokens.device)
    return _result(request, packed, values, temperature, vocab, alignment)


def _scored(side: Side, packed: Packed, temperature: float, vocab: int, budget: int) -> Tensor:
    """One log-probability a wanted token."""
    targets = packed.targets.to(side.device)

    def measure(start: int, stop: int) -> Tensor:
        source = side.source(start, stop, temperature, vocab)
        return tiled_logprobs(source, targets[start:stop].to(source.device), budget)

    with autocast_off(side.device):
        return by_chunks([side], budget, measure)


def _result(
    request: Request,
    packed: Packed,
    values: Tensor,
    temperature: float,
    vocab: int,
    alignment: Alignment,
) -> TokenLogprobs:
    return TokenLogprobs._of(  # pyright: ignore[reportPrivateUsage]
        request.spread(values.float(), packed),
        mask=request.mask(),
        temperature=temperature,
        vocab_size=vocab,
        alignment=alignment,
    )


def logprobs_from_logits(
    logits: Tensor | LazyLogits,
    tokens: Tensor,
    *,
    temperature: float = 1.0,
    vocab_size: int | None = None,
    byte_budget: int | None = None,
) -> Tensor:
    """Log-probability of one id at each position of logits that you computed, in nats.

    Nothing is shifted: `logits[..., t, :]` scores `tokens[..., t]`. To score a sequence by a causal
    model, pass `logits[:, :-1]` and `tokens[:, 1:]`.

    Args:
        logits: Shape (..., vocabulary): a tensor of any float dtype, or `LazyLogits`.
        tokens: Ids of shape (...).
        temperature: Divides the logits.
        vocab_size: Uses the first ids only; None: all.
        byte_budget: Bytes of logits worked on at a time; None: 4 MB on a CPU, else 64 MB.

    Returns:
        Float32 of shape (...), with gradients to the logits.

    Raises:
        TypeError: An argument is of another type.
        ValueError: Shapes differ, an id is outside the vocabulary, or a number out of its range.
    """
    temperature = check_temperature(temperature)
    check_logits("logits", logits)
    ids = check_ids_type(tokens)
    if tokens.shape != logits.shape[:-1]:
        raise ValueError(
            f"tokens must have the shape of logits without the last axis, "
            f"{tuple(logits.shape[:-1])}; got {tuple(tokens.shape)}"
        )
    vocab = check_vocab_size(vocab_size, logits.shape[-1], "logits")
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    check_ids(ids, everywhere, vocab, "the ids that probabilities are over")
    with autocast_off(logits.device):
        source = tile_source(logits, temperature, vocab)
        ids = ids.reshape(-1).to(source.device)
        budget = check_budget(byte_budget, source.device)
        return tiled_logprobs(source, ids, budget).float().view(tokens.shape)
