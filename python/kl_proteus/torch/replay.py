"""Logits from hidden states by a model's own head, whatever it does after it."""

import copy
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn


def last_hidden_state(output: Any) -> Tensor:
    """The hidden states of what a backbone returns."""
    found = getattr(output, "last_hidden_state", None)
    return cast(Tensor, output[0] if found is None else found)


def replay_head(model: nn.Module, backbone: nn.Module, output: Any, hidden: Tensor) -> Tensor:
    """The logits of rows of hidden states.

    The model's own forward runs, with a backbone that returns these rows: scale, softcap, bias,
    casts and adapters of the head are the model's.

    Args:
        model: The causal language model.
        backbone: The part of it that makes hidden states.
        output: What the backbone returned for some input.
        hidden: Shape (rows, hidden size).

    Returns:
        Shape (rows, vocabulary).
    """
    rows = hidden.shape[0]
    ids = torch.zeros((1, rows), dtype=torch.long, device=hidden.device)
    with _returning(backbone, _with_hidden(output, hidden[None])):
        return cast(Tensor, model(input_ids=ids, use_cache=False).logits)[0]


def _with_hidden(output: Any, hidden: Tensor) -> Any:
    if isinstance(output, tuple):
        return (hidden, *cast(tuple[Any, ...], output)[1:])
    replaced = copy.copy(output)
    replaced.last_hidden_state = hidden
    return replaced


@contextmanager
def _returning(module: nn.Module, value: Any) -> Generator[None]:
    """A module that returns a value instead of computing it, within the block."""

    def forward(*_: Any, **__: Any) -> Any:
        return value

    missing = object()
    before = module.__dict__.get("forward", missing)
    module.forward = forward
    try:
        yield
    finally:
        if before is missing:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before
