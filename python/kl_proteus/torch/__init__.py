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
    from kl_proteus.torch.cache import CacheSize, LogprobCache
    from kl_proteus.torch.causal_lm import ModelState
    from kl_proteus.torch.estimators import TensorTokenCounts, kl_from_logprobs, kl_loss
    from kl_proteus.torch.fingerprint import model_fingerprint
    from kl_proteus.torch.kl_controller import KLController, create_kl_controller
    from kl_proteus.torch.lazy_logits import LazyLogits
    from kl_proteus.torch.logprobs import logprobs_from_logits, token_logprobs
    from kl_proteus.torch.reference import ReferenceModel
    from kl_proteus.torch.results import TokenKL, TokenLogprobs
    from kl_proteus.torch.tokenizer_identity import tokenizer_hash
    from kl_proteus.torch.trl import KLControlCallback as KLControlCallback
    from kl_proteus.torch.vocabulary_kl import full_kl

__all__ = [
    "CacheSize",
    "KLController",
    "LazyLogits",
    "LogprobCache",
    "ModelState",
    "ReferenceModel",
    "TensorTokenCounts",
    "TokenKL",
    "TokenLogprobs",
    "create_kl_controller",
    "full_kl",
    "kl_from_logprobs",
    "kl_loss",
    "logprobs_from_logits",
    "model_fingerprint",
    "token_logprobs",
    "tokenizer_hash",
]

# KLControlCallback is not in `__all__`: it needs an extra of its own.
_HOMES = {
    "CacheSize": "cache",
    "KLControlCallback": "trl",
    "KLController": "kl_controller",
    "LazyLogits": "lazy_logits",
    "LogprobCache": "cache",
    "ModelState": "causal_lm",
    "ReferenceModel": "reference",
    "TensorTokenCounts": "estimators",
    "TokenKL": "results",
    "TokenLogprobs": "results",
    "create_kl_controller": "kl_controller",
    "full_kl": "vocabulary_kl",
    "kl_from_logprobs": "estimators",
    "kl_loss": "estimators",
    "logprobs_from_logits": "logprobs",
    "model_fingerprint": "fingerprint",
    "token_logprobs": "logprobs",
    "tokenizer_hash": "tokenizer_identity",
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
