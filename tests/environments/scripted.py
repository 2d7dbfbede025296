"""Environments that do what a test tells them to, and the runs that tests make of them."""

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from kl_proteus import JointKLDivergenceWrapper
from reference.tracker import ReferenceTracker

INFO_KEYS = (
    "kl_divergence",
    "kl_divergence_mean",
    "kl_divergence_std",
    "kl_observation",
    "kl_policy",
    "kl_noise_floor",
    "kl_excess",
)
AUTORESET_MODES = ("NEXT_STEP", "SAME_STEP", "DISABLED")
UNIT = spaces.Box(0.0, 1.0, (2,), np.float64)


def shown(value):
    """An id for a parameter: its repr without addresses, the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


class Scripted(gym.Env):
    """Shows a list of observations over and over; each time round is an episode."""

    def __init__(
        self,
        observations: Sequence[Any],
        observation_space: spaces.Space = UNIT,
        action_space: spaces.Space | None = None,
        *,
        reward: Any = 0.0,
        info: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.observations = list(observations)
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(2) if action_space is None else action_space
        self.reward = reward
        self.make_info = info
        self.at = 0
        self.actions: list[Any] = []
        self.resets: list[tuple[Any, Any]] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets.append((seed, options))
        self.at = 0
        return self.observations[0], self.make_info()

    def step(self, action):
        self.actions.append(action)
        self.at += 1
        terminated = self.at == len(self.observations) - 1
        return self.observations[self.at], self.reward, terminated, False, self.make_info()


class Walk(gym.Env):
    """A random walk on a few states: small, seeded, and with every kind of information."""

    metadata = {"render_modes": [], "render_fps": 4}  # noqa: RUF012 -- as Gymnasium has it

    def __init__(self, states: int = 6, length: int = 9) -> None:
        self.observation_space = spaces.Discrete(states)
        self.action_space = spaces.Discrete(3)
        self.length = length
        self.state = self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.steps = int(self.np_random.integers(self.observation_space.n)), 0
        return self.state, {"state": self.state}

    def step(self, action):
        drift = int(action) - 1 + int(self.np_random.integers(-1, 2))
        self.state = (self.state + drift) % int(self.observation_space.n)
        self.steps += 1
        return self.state, 1.0, self.steps == self.length, False, {"state": self.state}


def make_walk(length: int = 9, **settings: Any) -> JointKLDivergenceWrapper:
    """A wrapped walk, in a function that processes can import."""
    settings = {"window": 8, "min_window": 2} | settings
    return JointKLDivergenceWrapper(Walk(length=length), **settings)


def vector_of(factories: Sequence[Callable[[], gym.Env]], mode: str) -> gym.vector.SyncVectorEnv:
    """A vector environment that resets its rows in one of the three ways."""
    modes = getattr(gym.vector, "AutoresetMode", None)
    if modes is not None:
        return gym.vector.SyncVectorEnv(factories, autoreset_mode=modes[mode])
    if mode != "NEXT_STEP":
        pytest.skip("Gymnasium 1.0 knows NEXT_STEP only")
    return gym.vector.SyncVectorEnv(factories)


def random_actions(space: spaces.Space, steps: int, seed: int = 0) -> list[Any]:
    """Actions that no environment's generator has a part in."""
    space = copy.deepcopy(space)
    space.seed(seed)
    return [space.sample() for _ in range(steps)]


def play(env: gym.Env, actions: Sequence[Any], seed: int | None = 1) -> list[dict[str, Any]]:
    """The info of every step, with a reset wherever an episode ends."""
    env.reset(seed=seed)
    infos = []
    for action in actions:
        *_, terminated, truncated, info = env.step(action)
        infos.append(info)
        if terminated or truncated:
            env.reset()
    return infos


def proceed(env: gym.Env, actions: Sequence[Any]) -> list[dict[str, Any]]:
    """As `play`, from where the environment is."""
    infos = []
    for action in actions:
        *_, terminated, truncated, info = env.step(action)
        infos.append(info)
        if terminated or truncated:
            env.reset()
    return infos


def pairs_of(env: gym.Env, actions: Sequence[Any], seed: int | None = 1) -> list[tuple[Any, Any]]:
    """The (observation before, action) pairs of the same run, in copies of their own."""
    observation, _ = env.reset(seed=seed)
    pairs = []
    for action in actions:
        pairs.append((copy.deepcopy(observation), copy.deepcopy(action)))
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()
    return pairs


def twin_of(env: gym.Env, **settings: Any) -> ReferenceTracker:
    """The slow tracker that follows the definitions, on the spaces of an environment."""
    return ReferenceTracker(env.observation_space, env.action_space, **settings)


def values(info: dict[str, Any], prefix: str = "") -> tuple[float, ...]:
    """What the wrapper put into an info."""
    return tuple(info[prefix + key] for key in INFO_KEYS)


def assert_reports(infos: Sequence[dict[str, Any]], twin: ReferenceTracker, pairs: Any) -> None:
    """Every info has what the definitions give for the pairs up to it."""
    assert len(infos) == len(pairs)
    for step, (info, pair) in enumerate(zip(infos, pairs, strict=True)):
        for key, expected in twin.update(*pair).items():
            # The standard deviation is the root of a variance that is exact to 1e-12.
            tolerance = 1e-7 if key.endswith("_std") else 1e-12
            assert abs(info[key] - expected) <= tolerance, (step, key, info[key], expected)
