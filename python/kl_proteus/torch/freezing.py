"""Running a model as a frozen one, and putting back everything that was changed for it."""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["evaluating"]


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """Runs a block without dropout, gradients and autocast.

    Every module is in evaluation mode inside and has its own training flag back afterwards,
    whatever happens in the block. Autocast would turn a float32 output head into bfloat16.

    Args:
        model: The model that the block runs.
    """
    training = [module for module in model.modules() if module.training]
    kinds = {parameter.device.type for parameter in model.parameters()} | {"cpu"}
    kinds = {kind for kind in kinds if torch.amp.is_autocast_available(kind)}
    try:
        for module in training:
            # Not `train(False)`, which is recursive and overridden by some models.
            module.training = False
        with torch.no_grad(), _without_autocast(sorted(kinds)):
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _without_autocast(kinds: list[str]) -> Generator[None]:
    if not kinds:
        yield
        return
    with torch.autocast(kinds[0], enabled=False), _without_autocast(kinds[1:]):
        yield
