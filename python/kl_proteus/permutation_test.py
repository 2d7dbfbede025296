"""Whether two recorded runs behave alike: a permutation test of whole episodes."""

import operator
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum, isfinite, sqrt
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from kl_proteus import _core

__all__ = ["DriftTestPart", "DriftTestResult", "Run", "drift_test"]

Run: TypeAlias = str | os.PathLike[str] | Iterable[Any]
"""A recording's directory, or episodes: each a recorded `Episode` or (observation keys, action
keys)."""

_CHUNK = 64
"""Permutations between two looks at the keyboard."""

_ROUNDING = 1e-12
"""Nats by which equal divergences may differ."""


@dataclass(frozen=True, slots=True)
class DriftTestPart:
    """One divergence and what it is without a change.

    Attributes:
        kl: Divergence of the first run from the second, in nats.
        pvalue: Share of exchanges with at least that divergence, the recorded one included:
            (1 + number of them) / (1 + n).
        null_mean: Mean divergence over the exchanges, in nats: the noise floor of these episodes.
        null_std: Its standard deviation (population), in nats.
    """

    kl: float
    pvalue: float
    null_mean: float
    null_std: float


@dataclass(frozen=True, slots=True)
class DriftTestResult:
    """What `drift_test` found.

    Attributes:
        joint: Over (observation, action) pairs.
        observation: The part that comes from where the agent goes.
        policy: The part that comes from what it does there.
        episodes: Number of episodes of each run.
        pairs: Number of pairs of each run.
        n: Number of exchanges.
        seed: What they were drawn with.
    """

    joint: DriftTestPart
    observation: DriftTestPart
    policy: DriftTestPart
    episodes: tuple[int, int]
    pairs: tuple[int, int]
    n: int
    seed: int


def drift_test(
    a: Run,
    b: Run,
    *,
    episodes: int | None = None,
    n: int = 999,
    seed: int = 0,
    epsilon: float = 0.5,
    progress: bool = False,
) -> DriftTestResult:
    """Tests whether two recorded runs behave alike.

    If nothing has changed between the runs, it does not matter which of them an episode is in. So
    the divergence is compared with those after random exchanges of whole episodes, which keep the
    likeness of successive steps within an episode. This holds for any environment and policy whose
    episodes do not depend on each other; a policy that learns meanwhile has drifted.

    Args:
        a: The first run, P: the `output_dir` of an `LLMTrainingWrapper` or of `kl-proteus collect`,
            or an iterable of episodes, each a recorded episode or a pair of equally long sequences
            (observation keys, action keys) of integers or strings.
        b: The second run, Q, binned in the same way.
        episodes: Only the last so many episodes of each run; None takes all.
        n: Number of exchanges; the smallest possible p-value is 1 / (n + 1). With few episodes
            there are few different exchanges, and the p-value stays above one over their number.
        seed: From 0 to 2**64 - 1; equal seeds give equal results on every platform.
        epsilon: Pseudocount of each occupied cell, above 0 and at most 1e6.
        progress: Show a progress bar on standard error.

    Returns:
        Divergence, p-value and null distribution of the joint divergence and of its two parts.

    Raises:
        OSError: A recording cannot be read.
        TypeError: An argument is of another type.
        ValueError: A run has no episode, an episode has no pair or two columns of different length,
            the runs are of different environments or binnings, or an argument is out of its range.
    """
    n = _whole("n", n, 1, 2**32)
    seed = _whole("seed", seed, 0, 2**64 - 1)
    last = None if episodes is None else _whole("episodes", episodes, 1, 2**63 - 1)
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"epsilon must be a number, got {epsilon!r}")
    if not (isfinite(epsilon) and 0 < epsilon <= 1e6):
        raise ValueError(f"epsilon must be above 0 and at most 1e6, got {epsilon!r}")
    columns_a, binning_a = _columns("a", a, last)
    columns_b, binning_b = _columns("b", b, last)
    if binning_a != binning_b:
        raise ValueError(
            "a and b must be runs of one environment with one binning, "
            f"got {_binning_text(binning_a)} and {_binning_text(binning_b)}"
        )
    observations: dict[Any, int] = {}
    actions: dict[Any, int] = {}

    def numbered(columns: list[tuple[list[Any], list[Any]]]) -> list[list[tuple[int, int]]]:
        return [
            [
                (
                    observations.setdefault(observation, len(observations)),
                    actions.setdefault(action, len(actions)),
                )
                for observation, action in zip(*episode, strict=True)
            ]
            for episode in columns
        ]

    runs = numbered(columns_a), numbered(columns_b)
    test = _core.EpisodePermutations(*runs, epsilon=float(epsilon), seed=seed)
    observed = test.observed()
    null: list[tuple[float, float, float]] = []
    with _bar(n, progress) as bar:
        while len(null) < n:
            count = min(_CHUNK, n - len(null))
            null += test.permuted(count)
            bar.update(count)
    joint, observation, policy = (
        _part(value, [split[i] for split in null]) for i, value in enumerate(observed)
    )
    return DriftTestResult(
        joint=joint,
        observation=observation,
        policy=policy,
        episodes=(len(runs[0]), len(runs[1])),
        pairs=(sum(map(len, runs[0])), sum(map(len, runs[1]))),
        n=n,
        seed=seed,
    )


def _part(value: float, null: list[float]) -> DriftTestPart:
    mean = fsum(null) / len(null)
    return DriftTestPart(
        kl=value,
        pvalue=(1 + sum(x >= value - _ROUNDING for x in null)) / (1 + len(null)),
        null_mean=mean,
        null_std=sqrt(fsum((x - mean) ** 2 for x in null) / len(null)),
    )


def _bar(total: int, visible: bool) -> Any:
    if not isinstance(visible, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"progress must be a bool, got {visible!r}")
    from tqdm import tqdm

    return tqdm(total=total, unit="exchange", disable=not visible, leave=False)


def _whole(name: str, value: Any, low: int, high: int) -> int:
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if not low <= number <= high:
        raise ValueError(f"{name} must be from {low} to {high}, got {number}")
    return number


def _columns(
    name: str, run: Run, last: int | None
) -> tuple[list[tuple[list[Any], list[Any]]], tuple[str, str] | None]:
    """The keys of each episode, and environment and binning where they are known."""
    # Recordings need more than the core; lists do not.
    from kl_proteus.llm.recording.episodes import Episode
    from kl_proteus.llm.recording.shards import read_episodes

    if isinstance(run, str | os.PathLike):
        path = Path(run)
        if not path.is_dir():
            raise ValueError(f"{name} must be the directory of a recording, got {str(path)!r}")
        run = read_episodes(path)
    elif isinstance(run, bytes) or not isinstance(run, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"{name} must be the directory of a recording or an iterable of episodes, "
            f"got {type(run).__name__}"
        )
    columns: list[tuple[list[Any], list[Any]]] = []
    binnings: set[tuple[str, str] | None] = set()
    for i, episode in enumerate(run):
        if isinstance(episode, Episode):
            keys = (episode.observation_keys, episode.action_keys)
            binnings.add((episode.env_id, episode.binning))
        else:
            keys = episode
            binnings.add(None)
        columns.append(_keys(f"{name}[{i}]", keys))
        if len(binnings) > 1:
            texts = " and ".join(sorted(map(_binning_text, binnings)))
            raise ValueError(f"{name} must be of one environment and one binning, got {texts}")
    if not columns:
        raise ValueError(f"{name} must hold at least one episode, got none")
    if last is not None:
        columns = columns[-last:]
    return columns, binnings.pop()


def _binning_text(binning: tuple[str, str] | None) -> str:
    if binning is None:
        return "keys without a recording"
    return f"{binning[0]} with binning {binning[1] or 'unknown'}"


def _keys(place: str, episode: Any) -> tuple[list[Any], list[Any]]:
    if isinstance(episode, str | bytes) or not isinstance(episode, Sequence | np.ndarray):
        raise TypeError(
            f"{place} must be a pair of sequences (observation keys, action keys), "
            f"got {type(episode).__name__}"
        )
    items = cast("Sequence[Any]", episode)
    if len(items) != 2:
        raise ValueError(
            f"{place} must be a pair of sequences (observation keys, action keys), "
            f"got {len(items)} items"
        )
    observations, actions = (_column(f"{place}[{i}]", keys) for i, keys in enumerate(items))
    if len(observations) != len(actions) or not observations:
        raise ValueError(
            f"{place} must hold as many observation keys as action keys and at least one, "
            f"got {len(observations)} and {len(actions)}"
        )
    return observations, actions


def _column(place: str, keys: Any) -> list[Any]:
    if isinstance(keys, np.ndarray):
        array = cast("np.ndarray[Any, Any]", keys)
        if array.ndim != 1 or array.dtype.kind not in "iuU":
            raise ValueError(
                f"{place} must be 1-D and hold integers or strings, got shape {array.shape} of "
                f"dtype {array.dtype}"
            )
        return array.tolist()
    if isinstance(keys, str | bytes) or not isinstance(keys, Sequence):
        raise TypeError(
            f"{place} must be a sequence of integers or strings, got {type(keys).__name__}"
        )
    column = list(cast("Sequence[Any]", keys))
    for key in column:
        if isinstance(key, bool) or not isinstance(key, int | str | np.integer):
            raise TypeError(f"{place} must hold integers or strings, got {key!r}")
    return column
