"""A copy of a policy that follows it: an exponential moving average, or a later copy."""

import torch
from torch import nn

__all__ = ["MovingAverage"]


class MovingAverage:
    """Moves the weights of one model towards those of another, of the same structure.

    The average of weights in half precision is kept in float32 beside the model: in bfloat16 a
    step of less than 1/256 of a weight would be rounded away, and the average would stand still.

    Args:
        model: The model to move; a copy of the policy.
        rate: Share of the policy in each step, in (0, 1].
    """

    def __init__(self, model: nn.Module, rate: float) -> None:
        self._model = model
        self._rate = rate
        self._exact: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def step(self, policy: nn.Module) -> None:
        """Makes one step: weight = (1 - rate) * weight + rate * policy's; buffers are copied.

        Args:
            policy: Where to move.

        Raises:
            ValueError: The policy has other parameters, or one that is not finite. The model is
                then as it was.
        """
        target: dict[str, torch.Tensor] = dict(policy.named_parameters())
        weights: dict[str, torch.Tensor] = dict(self._model.named_parameters())
        sources = dict(policy.named_buffers())
        buffers = dict(self._model.named_buffers())
        _check_same("parameters", weights, target)
        _check_same("buffers", buffers, sources)
        _check_finite(target)
        for name, weight in weights.items():
            self._move(name, weight, target[name].detach())
        for name, buffer in buffers.items():
            buffer.copy_(sources[name])

    def _move(self, name: str, weight: torch.Tensor, target: torch.Tensor) -> None:
        if self._rate == 1.0 or not weight.is_floating_point():
            weight.copy_(target)
            return
        if weight.dtype in (torch.float32, torch.float64):
            weight.lerp_(target.to(weight), self._rate)
            return
        exact = self._exact.get(name)
        if exact is None or exact.device != weight.device:
            exact = self._exact[name] = weight.float() if exact is None else exact.to(weight.device)
        exact.lerp_(target.to(exact), self._rate)
        weight.copy_(exact)


def _check_same(what: str, expected: dict[str, torch.Tensor], got: dict[str, torch.Tensor]) -> None:
    for name in sorted(expected.keys() ^ got.keys()):
        raise ValueError(f"policy must have the {what} of the reference, got a difference: {name}")
    for name, tensor in expected.items():
        if tensor.shape != got[name].shape:
            raise ValueError(
                f"policy must have the {what} of the reference, got {name} of shape "
                f"{tuple(got[name].shape)}, expected {tuple(tensor.shape)}"
            )


def _check_finite(weights: dict[str, torch.Tensor]) -> None:
    """Looks at all weights before it waits for the first answer of the device."""
    floating = {n: t for n, t in weights.items() if t.is_floating_point()}
    answers = {n: torch.isfinite(t).all() for n, t in floating.items()}
    for name, finite in answers.items():
        if not bool(finite):
            raise ValueError(f"policy must have finite parameters, got {name} with NaN or infinity")
