"""Has my policy drifted, by how much, and is it the states or the actions?

Public names load when they are touched, so that `import kl_proteus` costs no more than its native
module: gymnasium is imported with the first wrapper.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kl_proteus._core import VERSION as __version__

if TYPE_CHECKING:
    from kl_proteus.controllers import (
        AdaptiveKLController,
        CoefficientChange,
        FixedKLController,
        KLCoefficientController,
        PIDKLController,
        PPOPenaltyController,
        ScheduledKLController,
        ThresholdKLController,
    )
    from kl_proteus.detector import DriftAlarm, DriftDetector
    from kl_proteus.divergence import kl_divergence
    from kl_proteus.drift import JointKLDivergenceWrapper
    from kl_proteus.estimators import TokenCounts, kl_from_logprobs
    from kl_proteus.kl_controller import (
        KLConfig,
        KLControllerBase,
        KLStats,
        compute_kl_divergence,
        create_kl_controller,
        estimate_kl_from_samples,
    )
    from kl_proteus.llm.vector_wrapper import VectorLLMTrainingWrapper
    from kl_proteus.llm.wrapper import LLMTrainingWrapper
    from kl_proteus.penalties import kl_penalties
    from kl_proteus.permutation_test import DriftTestPart, DriftTestResult, drift_test
    from kl_proteus.snapshots import merge_snapshots
    from kl_proteus.torch.kl_controller import KLController as KLController
    from kl_proteus.vector_drift import VectorJointKLDivergenceWrapper

__all__ = [
    "AdaptiveKLController",
    "CoefficientChange",
    "DriftAlarm",
    "DriftDetector",
    "DriftTestPart",
    "DriftTestResult",
    "FixedKLController",
    "JointKLDivergenceWrapper",
    "KLCoefficientController",
    "KLConfig",
    "KLControllerBase",
    "KLStats",
    "LLMTrainingWrapper",
    "PIDKLController",
    "PPOPenaltyController",
    "ScheduledKLController",
    "ThresholdKLController",
    "TokenCounts",
    "VectorJointKLDivergenceWrapper",
    "VectorLLMTrainingWrapper",
    "__version__",
    "compute_kl_divergence",
    "create_kl_controller",
    "drift_test",
    "estimate_kl_from_samples",
    "kl_divergence",
    "kl_from_logprobs",
    "kl_penalties",
    "merge_snapshots",
]

_HOMES = {
    "AdaptiveKLController": "kl_proteus.controllers",
    "CoefficientChange": "kl_proteus.controllers",
    "DriftAlarm": "kl_proteus.detector",
    "DriftDetector": "kl_proteus.detector",
    "DriftTestPart": "kl_proteus.permutation_test",
    "DriftTestResult": "kl_proteus.permutation_test",
    "FixedKLController": "kl_proteus.controllers",
    "JointKLDivergenceWrapper": "kl_proteus.drift",
    "KLCoefficientController": "kl_proteus.controllers",
    "KLConfig": "kl_proteus.kl_controller",
    "KLController": "kl_proteus.kl_controller",
    "KLControllerBase": "kl_proteus.kl_controller",
    "KLStats": "kl_proteus.kl_controller",
    "LLMTrainingWrapper": "kl_proteus.llm.wrapper",
    "PIDKLController": "kl_proteus.controllers",
    "PPOPenaltyController": "kl_proteus.controllers",
    "ScheduledKLController": "kl_proteus.controllers",
    "ThresholdKLController": "kl_proteus.controllers",
    "TokenCounts": "kl_proteus.estimators",
    "VectorJointKLDivergenceWrapper": "kl_proteus.vector_drift",
    "VectorLLMTrainingWrapper": "kl_proteus.llm.vector_wrapper",
    "compute_kl_divergence": "kl_proteus.kl_controller",
    "create_kl_controller": "kl_proteus.kl_controller",
    "drift_test": "kl_proteus.permutation_test",
    "estimate_kl_from_samples": "kl_proteus.kl_controller",
    "kl_divergence": "kl_proteus.divergence",
    "kl_from_logprobs": "kl_proteus.estimators",
    "kl_penalties": "kl_proteus.penalties",
    "merge_snapshots": "kl_proteus.snapshots",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kl_proteus' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
