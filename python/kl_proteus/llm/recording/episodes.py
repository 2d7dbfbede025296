"""The record of one completed episode: its columns, its JSON row and its discounted returns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import cast

from kl_proteus import _checks
from kl_proteus.llm.recording import columns

__all__ = [
    "EPISODE_FORMAT",
    "EPISODE_VERSION",
    "Episode",
    "EpisodeBuilder",
    "Step",
    "check_episode",
    "returns_to_go",
]

EPISODE_FORMAT = "kl_proteus.episode"
"""Value of the field ``format`` of every row."""

EPISODE_VERSION = 1
"""Value of the field ``version`` of every row."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an episode.

    Attributes:
        observation_text: The observation the policy acted on, as text.
        action_text: The action it took, as text.
        observation_key: Cell of the observation: a decimal number below 2^128.
        action_key: Cell of the action: a decimal number below 2^128.
        base_reward: Reward of the environment.
        shaped_reward: Reward after shaping.
        kl_penalty: What shaping subtracted.
        kl_bonus: What shaping added.
        kl_divergence: Joint divergence after this step, in nats.
        kl_observation: Share of the observation marginals, in nats.
        kl_policy: Share of the conditional action distribution, in nats.
    """

    observation_text: str
    action_text: str
    observation_key: str
    action_key: str
    base_reward: float
    shaped_reward: float
    kl_penalty: float
    kl_bonus: float
    kl_divergence: float
    kl_observation: float
    kl_policy: float


@dataclass(frozen=True, slots=True)
class Episode:
    """One completed episode, a column per quantity and an entry per step.

    All columns have the same length, at least 1. Construction checks every value, so an episode
    that exists can always be written.

    Attributes:
        env_id: Identifier of the environment.
        episode: Index of the episode within its file; a recording assigns it.
        system_prompt: Task description that precedes every observation; may be empty.
        binning: Fingerprint of the axes behind the keys: keys of different binnings do not
            compare.
        observation_texts: What the policy saw, per step.
        action_texts: What it did, per step; never blank.
        observation_keys: Decimal cell keys below 2^128, per step.
        action_keys: Decimal cell keys below 2^128, per step.
        base_rewards: Rewards of the environment.
        shaped_rewards: Rewards after shaping.
        kl_penalties: What shaping subtracted.
        kl_bonuses: What shaping added.
        kl_divergences: Joint divergence, in nats.
        kl_observations: Share of the observation marginals, in nats.
        kl_policies: Share of the conditional action distribution, in nats.
        terminated: Whether the environment ended the episode.
        truncated: Whether the episode was cut off.

    Raises:
        TypeError: If a value has the wrong type; the message names the field.
        ValueError: If columns differ in length or are empty, a number is not finite, a key is not
            a decimal below 2^128, or text cannot be encoded as UTF-8.
    """

    env_id: str
    episode: int
    system_prompt: str
    binning: str
    observation_texts: tuple[str, ...]
    action_texts: tuple[str, ...]
    observation_keys: tuple[str, ...]
    action_keys: tuple[str, ...]
    base_rewards: tuple[float, ...]
    shaped_rewards: tuple[float, ...]
    kl_penalties: tuple[float, ...]
    kl_bonuses: tuple[float, ...]
    kl_divergences: tuple[float, ...]
    kl_observations: tuple[float, ...]
    kl_policies: tuple[float, ...]
    terminated: bool
    truncated: bool

    def __post_init__(self) -> None:
        _checks.text("env_id", self.env_id, blank=False)
        _checks.text("system_prompt", self.system_prompt)
        _checks.text("binning", self.binning)
        columns.check_index(self.episode)
        for name in ("terminated", "truncated"):
            columns.check_bool(name, getattr(self, name))
        for name in columns.NAMES:
            object.__setattr__(self, name, columns.CHECKS[name](name, getattr(self, name)))
        n_steps = len(self.observation_texts)
        if n_steps == 0:
            raise ValueError("an episode must have at least one step, got empty columns")
        for name in columns.NAMES:
            length = len(cast("tuple[object, ...]", getattr(self, name)))
            if length != n_steps:
                raise ValueError(
                    f"{name} must have one entry per step ({n_steps}, as observation_texts), "
                    f"got {length}"
                )

    def __len__(self) -> int:
        return len(self.observation_texts)

    def steps(self) -> Iterator[Step]:
        """Iterate over the steps, first to last."""
        entries = (cast("tuple[object, ...]", getattr(self, name)) for name in columns.NAMES)
        for values in zip(*entries, strict=True):
            yield Step(*values)  # pyright: ignore[reportArgumentType] (columns in Step's order)

    def to_row(self) -> dict[str, object]:
        """Return the JSON row: the same keys in the same order for every episode."""
        row: dict[str, object] = {"format": EPISODE_FORMAT, "version": EPISODE_VERSION}
        for field in fields(self):
            value: object = getattr(self, field.name)
            if field.name in columns.CHECKS:
                value = list(cast("tuple[object, ...]", value))
            row[field.name] = value
        return row

    @classmethod
    def from_row(cls, row: object) -> Episode:
        """Build an episode from its JSON row.

        Args:
            row: What `to_row` returned, possibly after a round trip through JSON.

        Returns:
            The episode.

        Raises:
            TypeError: If the row is not a mapping or a field has the wrong type.
            ValueError: If the format or version is another one, a field is missing or unknown, or
                a value is illegal.
        """
        if not isinstance(row, Mapping):
            raise TypeError(f"row must be a JSON object, got {type(row).__name__}")
        values = dict(cast("Mapping[str, object]", row))
        kind = (values.pop("format", None), values.pop("version", None))
        if kind != (EPISODE_FORMAT, EPISODE_VERSION):
            raise ValueError(
                f"format and version must be {(EPISODE_FORMAT, EPISODE_VERSION)!r}, got {kind!r}"
            )
        expected = [field.name for field in fields(cls)]
        if values.keys() != set(expected):
            missing = sorted(set(expected) - values.keys())
            unknown = sorted(values.keys() - set(expected))
            raise ValueError(
                f"row must have the fields of {EPISODE_FORMAT}, got missing {missing} and "
                f"unknown {unknown}"
            )
        return cls(**values)  # pyright: ignore[reportArgumentType] (__post_init__ checks each)


class EpisodeBuilder:
    """Collects the steps of a running episode.

    Args:
        env_id: Identifier of the environment.
        system_prompt: Task description that precedes every observation; may be empty.

    Raises:
        TypeError: If an argument is not a str.
        ValueError: If ``env_id`` is blank, or text cannot be encoded as UTF-8.
    """

    def __init__(self, env_id: str, system_prompt: str = "") -> None:
        self.env_id = _checks.text("env_id", env_id, blank=False)
        self.system_prompt = _checks.text("system_prompt", system_prompt)
        self._steps: list[tuple[object, ...]] = []

    def __len__(self) -> int:
        return len(self._steps)

    def append(
        self,
        observation_text: str,
        action_text: str,
        observation_key: int | str,
        action_key: int | str,
        base_reward: float,
        shaped_reward: float,
        kl_penalty: float,
        kl_bonus: float,
        kl_divergence: float,
        kl_observation: float,
        kl_policy: float,
    ) -> None:
        """Add a step, checked here so that a bad value is reported by the step that made it.

        Args:
            observation_text: The observation the policy acted on, as text.
            action_text: The action it took, as text; not blank.
            observation_key: Cell of the observation, below 2^128.
            action_key: Cell of the action, below 2^128.
            base_reward: Reward of the environment.
            shaped_reward: Reward after shaping.
            kl_penalty: What shaping subtracted.
            kl_bonus: What shaping added.
            kl_divergence: Joint divergence, in nats.
            kl_observation: Share of the observation marginals, in nats.
            kl_policy: Share of the conditional action distribution, in nats.

        Raises:
            TypeError: If a text is not a str or a number is not a real number.
            ValueError: If a number is not finite, ``action_text`` is blank, or text cannot be
                encoded as UTF-8. The episode is as it was.
        """
        numbers = (
            base_reward,
            shaped_reward,
            kl_penalty,
            kl_bonus,
            kl_divergence,
            kl_observation,
            kl_policy,
        )
        _checks.text("observation_text", observation_text)
        _checks.text("action_text", action_text, blank=False)
        if not columns.sum_is_finite(numbers):
            for name, number in zip(_STEP_NUMBERS, numbers, strict=True):
                _checks.finite(name, number)
        self._steps.append(
            (observation_text, action_text, str(observation_key), str(action_key), *numbers)
        )

    def discard(self) -> None:
        """Forget the steps so far."""
        self._steps.clear()

    def finish(
        self, *, terminated: bool, truncated: bool, binning: str = "", episode: int = 0
    ) -> Episode | None:
        """End the episode and begin the next one.

        Args:
            terminated: Whether the environment ended the episode.
            truncated: Whether the episode was cut off.
            binning: Fingerprint of the axes behind the keys.
            episode: Index of the episode; a recording assigns its own.

        Returns:
            The episode, or None if it had no step: an empty episode is never written.

        Raises:
            TypeError: If a value has the wrong type.
            ValueError: If a value is illegal. The steps are kept.
        """
        if not self._steps:
            return None
        entries = dict(zip(columns.NAMES, zip(*self._steps, strict=True), strict=True))
        finished = Episode(
            env_id=self.env_id,
            episode=episode,
            system_prompt=self.system_prompt,
            binning=binning,
            terminated=terminated,
            truncated=truncated,
            **entries,  # pyright: ignore[reportArgumentType] (__post_init__ checks each)
        )
        self._steps = []
        return finished


def check_episode(value: object) -> Episode:
    """Return ``value`` if it is an episode.

    Args:
        value: What arrived where an episode was expected.

    Returns:
        The same object.

    Raises:
        TypeError: If it is something else.
    """
    if not isinstance(value, Episode):
        raise TypeError(f"episode must be an Episode, got {value!r} ({type(value).__name__})")
    return value


def returns_to_go(rewards: Iterable[float], gamma: float) -> list[float]:
    """Return the discounted sum of this and all later rewards, for every step.

    What an episode would have earned after it was truncated is not estimated: the returns of a
    truncated episode are cut at its last step.

    Args:
        rewards: Rewards of one episode, first to last.
        gamma: Discount factor, in [0, 1].

    Returns:
        ``rewards[t] + gamma * rewards[t + 1] + gamma**2 * rewards[t + 2] + ...`` for every t.

    Raises:
        TypeError: If ``gamma`` or a reward is not a real number.
        ValueError: If ``gamma`` is outside [0, 1], a reward is not finite, or a sum overflows.
    """
    gamma = _checks.real_number("gamma", gamma, minimum=0.0, maximum=1.0)
    returns = list(columns.floats("rewards", list(rewards)))
    for step in range(len(returns) - 2, -1, -1):
        returns[step] += gamma * returns[step + 1]
    for step, value in enumerate(returns):
        if not math.isfinite(value):
            raise ValueError(
                f"rewards must have finite discounted sums, got {value!r} from step {step} on"
            )
    return returns


_STEP_NUMBERS = tuple(field.name for field in fields(Step))[4:]
