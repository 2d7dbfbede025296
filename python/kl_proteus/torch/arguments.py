"""Checks of tensors that callers pass."""

from typing import cast

import torch
from torch import Tensor

from kl_proteus._checks import real_number
from kl_proteus.torch.lazy_logits import LazyLogits
from kl_proteus.torch.tiles import default_budget

_COLDEST = 1e-30
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_temperature(value: object) -> float:
    """A temperature: finite, above 0, and not so small that float32 logits overflow."""
    temperature = real_number("temperature", value, minimum=0.0, above_minimum=True)
    return real_number("temperature", temperature, minimum=_COLDEST)


def check_budget(value: object, device: torch.device) -> int:
    """Bytes of a tile, the device's default for None."""
    if value is None:
        return default_budget(device)
    return check_count("byte_budget", value)


def check_count(name: str, value: object) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r} ({type(value).__name__})")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def check_vocab_size(value: object, limit: int, whose: str) -> int:
    """How many ids are used, all for None."""
    if value is None:
        return limit
    size = check_count("vocab_size", value)
    if size > limit:
        raise ValueError(f"vocab_size must be at most the {limit} ids of {whose}, got {size}")
    return size


def check_tokens(tokens: object) -> Tensor:
    """Token ids of shape (batch, tokens), as int64."""
    ids = check_ids_type(tokens)
    if ids.ndim != 2:
        raise ValueError(f"tokens must have the shape (batch, tokens), got {tuple(ids.shape)}")
    return ids


def check_ids_type(tokens: object) -> Tensor:
    """A tensor of integers, as int64."""
    if not isinstance(tokens, Tensor) or tokens.dtype not in _INTEGERS:
        raise TypeError(f"tokens must be a tensor of token ids, integers; got {kind(tokens)}")
    return tokens.long()


def kind(value: object) -> str:
    """What a value is, for messages."""
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def check_mask(name: str, mask: object, like: Tensor) -> Tensor:
    """A mask of bools, 0 and 1 in the shape of a tensor, as bool on its device; all for None."""
    if mask is None:
        return torch.ones(like.shape, dtype=torch.bool, device=like.device)
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name} must be a tensor or None, got {type(mask).__name__}")
    if mask.shape != like.shape:
        raise ValueError(f"{name} must have the shape {tuple(like.shape)}, got {tuple(mask.shape)}")
    if mask.dtype == torch.bool:
        return mask.to(like.device)
    if mask.is_complex():
        raise TypeError(f"{name} must hold bools, 0 or 1, got {mask.dtype}")
    # Reading values would wait for an accelerator.
    if mask.device.type == "cpu":
        strange = (mask != 0) & (mask != 1)
        if strange.any():
            place = first_place(strange)
            raise ValueError(
                f"{name} must hold bools, 0 or 1, got {mask[*place].item()} at {place}"
            )
    return (mask != 0).to(like.device)


def first_place(wrong: Tensor) -> list[int]:
    """The index of the first True."""
    return cast(list[int], wrong.nonzero()[0].tolist())


def check_ids(ids: Tensor, where: Tensor, limit: int, what: str) -> None:
    """Refuses ids outside 0..limit-1 at the places that count; waits for an accelerator once."""
    wrong = where & ((ids < 0) | (ids >= limit))
    if wrong.any():
        place = first_place(wrong)
        raise ValueError(
            f"tokens must be from 0 to {limit - 1}, {what}; got {ids[*place].item()} at {place}"
        )


def check_logits(name: str, logits: object) -> Tensor | LazyLogits:
    """Logits of shape (..., vocabulary)."""
    if isinstance(logits, LazyLogits):
        return logits
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise TypeError(f"{name} must be a tensor of floats or LazyLogits, got {kind(logits)}")
    if logits.ndim < 1 or logits.shape[-1] == 0:
        raise ValueError(f"{name} must have the shape (..., vocabulary), got {tuple(logits.shape)}")
    return logits
