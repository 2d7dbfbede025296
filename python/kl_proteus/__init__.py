"""Has my policy drifted, by how much, and is it the states or the actions?

Public names load when they are touched, so that `import kl_proteus` costs no more than its native
module: gymnasium is imported with the first wrapper.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kl_proteus._core import VERSION as __version__

if TYPE_CHECKING:
    from kl_proteus.divergence import kl_divergence
    from kl_proteus.drift import JointKLDivergenceWrapper
    from kl_proteus.estimators import TokenCounts, kl_from_logprobs
    from kl_proteus.llm.wrapper import LLMTrainingWrapper
    from kl_proteus.penalties import kl_penalties
    from kl_proteus.snapshots import merge_snapshots

__all__ = [
    "JointKLDivergenceWrapper",
    "LLMTrainingWrapper",
    "TokenCounts",
    "__version__",
    "kl_divergence",
    "kl_from_logprobs",
    "kl_penalties",
    "merge_snapshots",
]

_HOMES = {
    "JointKLDivergenceWrapper": "kl_proteus.drift",
    "LLMTrainingWrapper": "kl_proteus.llm.wrapper",
    "TokenCounts": "kl_proteus.estimators",
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
    return sorted({*globals(), *__all__})
