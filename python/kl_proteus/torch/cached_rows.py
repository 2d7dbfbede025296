"""Batches whose rows come from a cache where it has them, and from the model where not."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from kl_proteus.torch.cache import LogprobCache, row_key
from kl_proteus.torch.logprobs import token_logprobs
from kl_proteus.torch.repack import Request, make_request, repack
from kl_proteus.torch.results import Alignment, TokenLogprobs

__all__ = ["cached_token_logprobs"]


def cached_token_logprobs(
    reference: Any,
    cache: LogprobCache,
    identity: Mapping[str, Any],
    tokens: Tensor,
    attention_mask: Tensor | None,
    *,
    columns: slice | None,
    score_mask: Tensor | None,
    alignment: Alignment,
    temperature: float,
    vocab_size: int | None,
    byte_budget: int | None,
) -> TokenLogprobs:
    """What `kl_proteus.torch.token_logprobs` returns, through a cache.

    Args:
        reference: The frozen model.
        cache: Where rows are.
        identity: JSON values that tell this model from others, among them `fingerprint`.
        tokens: As there.
        attention_mask: As there.
        columns: As there.
        score_mask: As there.
        alignment: As there.
        temperature: As there.
        vocab_size: As there.
        byte_budget: As there.
    """
    request = make_request(
        tokens, attention_mask, columns=columns, score_mask=score_mask, alignment=alignment
    )
    settings = {
        **identity,
        "temperature": temperature,
        "vocab_size": vocab_size,
        # Matrix products of float32 in fewer bits are another computation.
        "precision": torch.get_float32_matmul_precision(),
    }
    fingerprint = str(identity["fingerprint"])
    keys = _keys(request, settings)
    found = {row: cache.get(fingerprint, key) for row, key in keys.items()}
    missing = [row for row, values in found.items() if values is None]
    whole = torch.zeros(request.tokens.shape, dtype=torch.float32)
    wanted = request.wanted.to("cpu")
    sizes: set[int] = set()
    for row, values in found.items():
        if values is not None:
            whole[row, wanted[row]] = values.logprobs
            sizes.add(values.vocab_size)
    if missing or not sizes:
        index = torch.tensor(missing, dtype=torch.long, device=request.tokens.device)
        fresh = token_logprobs(
            reference,
            request.tokens[index],
            request.kept[index],
            score_mask=request.wanted[index],
            temperature=temperature,
            vocab_size=vocab_size,
            byte_budget=byte_budget,
        )
        values = fresh.logprobs.to("cpu")
        rows = {keys[row]: values[i][wanted[row]] for i, row in enumerate(missing)}
        facts = {"device": request.tokens.device.type, "dtype": _dtype(reference)}
        cache.put(fingerprint, rows, fresh.vocab_size, facts)
        whole[torch.tensor(missing, dtype=torch.long)] = values
        sizes.add(fresh.vocab_size)
    packed = repack(request)
    values = whole.to(request.tokens.device).flatten()[packed.origin]
    return TokenLogprobs._of(  # pyright: ignore[reportPrivateUsage]
        request.spread(values, packed),
        mask=request.mask(),
        temperature=temperature,
        vocab_size=sizes.pop(),
        alignment=alignment,
    )


def _keys(request: Request, settings: Mapping[str, Any]) -> dict[int, str]:
    """The names of the rows that have something to score."""
    keys: dict[int, str] = {}
    ids, kept, wanted = (part.to("cpu") for part in (request.tokens, request.kept, request.wanted))
    for row in cast("list[int]", wanted.any(1).nonzero().flatten().tolist()):
        places = cast("list[int]", wanted[row][kept[row]].nonzero().flatten().tolist())
        visible = cast("list[int]", ids[row][kept[row]].tolist())
        keys[row] = row_key({**settings, "slice": _ranges(places)}, visible)
    return keys


def _ranges(places: list[int]) -> list[list[int]]:
    """Increasing numbers as ranges, each a start and an end."""
    ranges: list[list[int]] = []
    for place in places:
        if ranges and ranges[-1][1] == place:
            ranges[-1][1] = place + 1
        else:
            ranges.append([place, place + 1])
    return ranges


def _dtype(reference: Any) -> str:
    parameter = next(iter(reference.model.parameters()), None)
    return str(getattr(parameter, "dtype", None))
