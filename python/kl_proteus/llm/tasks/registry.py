"""What an environment is about: words for the classic environments, sensible names elsewhere."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from kl_proteus.llm.tasks.box2d import bipedal_walker, lunar_lander
from kl_proteus.llm.tasks.classic_control import (
    acrobot,
    cart_pole,
    mountain_car,
    mountain_car_continuous,
    pendulum,
)
from kl_proteus.llm.tasks.quantities import Quantity
from kl_proteus.llm.tasks.task import Setting, Task, ending
from kl_proteus.llm.tasks.toy_text import blackjack, cliff_walking, frozen_lake, taxi
from kl_proteus.llm.text.space_names import LARGE, value_names
from kl_proteus.llm.text.wording import single_line

__all__ = ["Quantity", "Task", "task_for"]

_Describe = Callable[[Setting], Task | None]

# Name without namespace and version -> how to describe it, and the arguments the name stands for.
_KNOWN: Mapping[str, tuple[_Describe, Mapping[str, Any]]] = {
    "CartPole": (cart_pole, {}),
    "MountainCar": (mountain_car, {}),
    "MountainCarContinuous": (mountain_car_continuous, {}),
    "Pendulum": (pendulum, {}),
    "Acrobot": (acrobot, {}),
    "FrozenLake": (frozen_lake, {"map_name": "4x4"}),
    "FrozenLake8x8": (frozen_lake, {"map_name": "8x8"}),
    "CliffWalking": (cliff_walking, {}),
    "CliffWalkingSlippery": (cliff_walking, {"is_slippery": True}),
    "Taxi": (taxi, {}),
    "Blackjack": (blackjack, {}),
    "LunarLander": (lunar_lander, {}),
    "LunarLanderContinuous": (lunar_lander, {}),
    "BipedalWalker": (bipedal_walker, {}),
    "BipedalWalkerHardcore": (bipedal_walker, {"hardcore": True}),
}

_UNKNOWN: tuple[None, Mapping[str, Any]] = (None, {})

# Gymnasium's own versions of the environments above.
_OWN_NAMESPACES = frozenset({"", "phys2d", "tabular"})

_ID = re.compile(r"(?:[^/]*:)?(?:(?P<namespace>.*)/)?(?P<name>.+?)(?:-v[0-9]+)?")


def task_for(
    env_id: str | None,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    *,
    env: gymnasium.Env[Any, Any] | None = None,
) -> Task:
    """Describe the task of an environment.

    The classic environments of Gymnasium are known by their ids, whatever namespace or version
    the id names. Their names are used only for spaces that are really theirs: where a wrapper
    changed the actions, the whole task is generic; where it changed the observations, the values
    of an observation have generic names.

    Args:
        env_id: Id such as "CartPole-v1"; None where the environment has none.
        observation_space: Space of the observations to describe, after all wrappers.
        action_space: Space of the actions to describe, after all wrappers.
        env: The environment, if it is at hand: then the arguments it was made with, its map and
            its time limit are described, and not those that are registered for the id.

    Returns:
        The task. It does not refer to `env` and can be pickled.

    Raises:
        TypeError: If an argument is of another type.
    """
    _check_type("env_id", env_id, str, type(None))
    _check_type("observation_space", observation_space, spaces.Space)
    _check_type("action_space", action_space, spaces.Space)
    _check_type("env", env, gymnasium.Env, type(None))
    spec = gymnasium.registry.get(env_id) if env_id and env is None else getattr(env, "spec", None)
    if env_id is None and spec is not None:
        env_id = spec.id
    match = _ID.fullmatch(env_id) if env_id else None
    namespace, name = (match["namespace"] or "", match["name"]) if match else ("", "")
    describe, implied = _KNOWN.get(name, _UNKNOWN)
    setting = Setting(
        observation_space=observation_space,
        action_space=action_space,
        kwargs={**implied, **(spec.kwargs if spec else {})},
        max_episode_steps=spec.max_episode_steps if spec else None,
        namespace=namespace,
        grid=_grid(env),
    )
    task = describe(setting) if describe else None
    if task is None:
        return _generic(env_id, setting)
    if task.observation_values or task.observation_formatter:
        return task
    if namespace not in _OWN_NAMESPACES:
        # Other observations under a foreign namespace are a sign of another environment.
        return _generic(env_id, setting)
    return dataclasses.replace(task, observation_values=_generic_values(setting))


def _generic(env_id: str | None, setting: Setting) -> Task:
    where = f"the environment {single_line(env_id)}" if env_id else "an environment"
    sentences = [
        f"Act in {where}: you are given one observation after the other, and choose an action for "
        "each.",
        ending(setting),
        "Choose the actions that make the sum of the rewards of an episode as large as possible.",
    ]
    actions = setting.action_space
    names: tuple[str, ...] = ()
    values: tuple[Quantity, ...] = ()
    if not isinstance(actions, spaces.Discrete):
        values = tuple(map(Quantity, value_names(actions, "action")))
    elif actions.n <= LARGE:
        names = tuple(f"action {int(actions.start) + index}" for index in range(int(actions.n)))
    return Task(
        name="",
        description=" ".join(sentence for sentence in sentences if sentence),
        observation_values=_generic_values(setting),
        action_names=names,
        action_values=values,
    )


def _generic_values(setting: Setting) -> tuple[Quantity, ...]:
    return tuple(map(Quantity, value_names(setting.observation_space, "observation")))


def _check_type(argument: str, value: object, *kinds: type) -> None:
    if not isinstance(value, kinds):
        raise TypeError(
            f"{argument} must be {' or '.join(kind.__name__ for kind in kinds)}, "
            f"got {value!r} ({type(value).__name__})"
        )


def _grid(env: Any) -> tuple[str, ...] | None:
    """Read the map of a grid world, which is a matrix of single bytes."""
    desc = getattr(getattr(env, "unwrapped", None), "desc", None)
    if not isinstance(desc, np.ndarray) or desc.ndim != 2 or desc.dtype.kind != "S":
        return None
    return tuple(b"".join(row).decode("ascii", "replace") for row in desc.tolist())
