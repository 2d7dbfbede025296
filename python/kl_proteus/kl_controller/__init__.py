"""The drop-in KL controller: log-probabilities go in, reward penalties come out."""

from importlib import import_module
from typing import Any

from kl_proteus.kl_controller.base import KLControllerBase
from kl_proteus.kl_controller.config import KLConfig
from kl_proteus.kl_controller.distributions import compute_kl_divergence, estimate_kl_from_samples
from kl_proteus.kl_controller.factory import create_kl_controller
from kl_proteus.kl_controller.stats import KLStats

__all__ = [
    "KLConfig",
    "KLControllerBase",
    "KLStats",
    "compute_kl_divergence",
    "create_kl_controller",
    "estimate_kl_from_samples",
]


def __getattr__(name: str) -> Any:
    if name != "KLController":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module("kl_proteus.torch").KLController
    except ImportError as error:
        raise ImportError(
            "KLController runs a reference model, for which kl_proteus needs the extra 'torch': "
            f"pip install 'kl-proteus[torch]' ({error}). KLControllerBase does without: it takes "
            "reference log-probabilities that you computed."
        ) from error
