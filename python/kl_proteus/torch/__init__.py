"""Log-probabilities, exact divergences and differentiable penalties of language models, in torch.

Needs the extra `torch`. Names load when they are touched: what works on tensors alone does not wait
for transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import torch as _torch  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError as error:
    raise ImportError(
        "kl_proteus.torch needs the extra 'torch': pip install 'kl-proteus[torch]' "
        f"({type(error).__name__}: {error})"
    ) from error

if TYPE_CHECKING:
    from kl_proteus.torch.causal_lm import ModelState
    from kl_proteus.torch.estimators import TensorTokenCounts, kl_from_logprobs, kl_loss
    from kl_proteus.torch.lazy_logits import LazyLogits
    from kl_proteus.torch.logprobs import logprobs_from_logits, token_logprobs
    from kl_proteus.torch.results import TokenKL, TokenLogprobs

__all__ = [
    "LazyLogits",
    "ModelState",
    "TensorTokenCounts",
    "TokenKL",
    "TokenLogprobs",
    "kl_from_logprobs",
    "kl_loss",
    "logprobs_from_logits",
    "token_logprobs",
]

_HOMES = {
    "LazyLogits": "lazy_logits",
    "ModelState": "causal_lm",
    "TensorTokenCounts": "estimators",
    "TokenKL": "results",
    "TokenLogprobs": "results",
    "kl_from_logprobs": "estimators",
    "kl_loss": "estimators",
    "logprobs_from_logits": "logprobs",
    "token_logprobs": "logprobs",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kl_proteus.torch' has no attribute {name!r}")
    value = getattr(import_module(f"kl_proteus.torch.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
