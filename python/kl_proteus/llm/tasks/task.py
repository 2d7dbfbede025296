"""What a task description holds, and what is known about an environment while it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from kl_proteus.llm.tasks.quantities import Quantity

__all__ = ["Setting", "Task", "box_matches", "ending"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a language model has to know about an environment to act in it.

    Attributes:
        name: Name of the environment that is described, such as "CartPole"; empty if it is none
            of those that are described here.
        description: Goal, dynamics, end of an episode and reward, for a system message.
        observation_values: The values of an observation in their order, with units.
        observation_formatter: Writes a whole observation in words, where a list of values says
            little (the numbered states of a grid world); None elsewhere. It can be pickled.
        action_names: The names of the actions of a Discrete space in their order; empty for
            other spaces, and for a Discrete space with too many actions to name.
        action_values: The values of an action of another space in their order, with units.
    """

    name: str
    description: str
    observation_values: tuple[Quantity, ...] = ()
    observation_formatter: Callable[[Any], str] | None = None
    action_names: tuple[str, ...] = ()
    action_values: tuple[Quantity, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The facts that a description of a known environment is written from.

    Attributes:
        observation_space: Space of the observations that will be described.
        action_space: Space of the actions that will be described.
        kwargs: Keyword arguments that the environment was made with.
        max_episode_steps: Time limit in steps; None where there is none or it is not known.
        namespace: Namespace of the environment's id, such as "phys2d"; empty where it has none.
        grid: Rows of the map of a grid world, where the environment itself was at hand.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    kwargs: Mapping[str, Any]
    max_episode_steps: int | None = None
    namespace: str = ""
    grid: tuple[str, ...] | None = None

    def has_actions(self, n: int) -> bool:
        """Tell whether the action space is Discrete and its actions are 0 to n - 1."""
        space = self.action_space
        return isinstance(space, spaces.Discrete) and space.n == n and space.start == 0

    def has_states(self, n: int) -> bool:
        """Tell whether the observation space is Discrete and its states are 0 to n - 1."""
        space = self.observation_space
        return isinstance(space, spaces.Discrete) and space.n == n and space.start == 0

    def has_continuous_actions(self, *limits: float) -> bool:
        """Tell whether the action space is a Box of +-limits, or of no limits (clipped inside)."""
        infinite = [math.inf] * len(limits)
        return box_matches(self.action_space, [-x for x in limits], limits) or box_matches(
            self.action_space, [-x for x in infinite], infinite
        )


def box_matches(
    space: spaces.Space[Any], low: Sequence[float | None], high: Sequence[float | None]
) -> bool:
    """Tell whether a space is a one-dimensional Box of floats with these bounds.

    A wrapper that rescales or normalises values changes their bounds, and with them the space.

    Args:
        space: The space.
        low: Lower bounds, None where any will do.
        high: Upper bounds, in the same order.

    Returns:
        Whether the space has these bounds, to four digits.
    """
    if not isinstance(space, spaces.Box) or space.shape != (len(low),) or space.dtype.kind != "f":
        return False
    pairs = [
        *zip(space.low.tolist(), low, strict=True),
        *zip(space.high.tolist(), high, strict=True),
    ]
    return all(bound is None or bool(np.isclose(x, bound, rtol=1e-4)) for x, bound in pairs)


def ending(setting: Setting, *conditions: str) -> str:
    """Write the sentence about the end of an episode.

    Args:
        setting: Gives the time limit.
        conditions: What ends an episode, each as "when ...".

    Returns:
        Such as "The episode ends when the goal is reached, or after 100 steps."; empty if
        nothing is known to end an episode.
    """
    clauses = list(conditions)
    if setting.max_episode_steps is not None:
        clauses.append(f"after {setting.max_episode_steps} steps")
    if not clauses:
        return ""
    listed = ", ".join(clauses[:-1])
    return f"The episode ends {f'{listed}, or ' if listed else ''}{clauses[-1]}."
