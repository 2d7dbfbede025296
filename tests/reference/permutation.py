"""The divergences of two runs, and those after exchanges of their episodes, by the definitions."""

import itertools
from collections import Counter
from typing import Any

from . import drift


def divergences(a: list[Any], b: list[Any], epsilon: float) -> tuple[float, float, float]:
    """Joint divergence of run `a` from run `b`, its observation part and its policy part."""
    p, q = (Counter(pair for episode in run for pair in episode) for run in (a, b))
    parts = (drift.kl_joint, drift.kl_observation, drift.kl_policy)
    return tuple(max(0.0, part(p, q, epsilon)) for part in parts)


def every_exchange(a: list[Any], b: list[Any], epsilon: float) -> list[tuple[float, float, float]]:
    """The divergences of every way to deal the episodes out."""
    episodes = [*a, *b]
    results = []
    for chosen in itertools.combinations(range(len(episodes)), len(a)):
        first = [episodes[i] for i in chosen]
        second = [episodes[i] for i in range(len(episodes)) if i not in chosen]
        results.append(divergences(first, second, epsilon))
    return results
