"""Vector environments of every kind, and the same run in single wrappers."""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from environments.scripted import AUTORESET_MODES, INFO_KEYS, Walk
from kl_proteus import JointKLDivergenceWrapper, VectorJointKLDivergenceWrapper

__all__ = ["AUTORESET_MODES", "INFO_KEYS"]

SMALL = {"window": 12, "min_window": 3, "history_size": 9}
"""Arguments under which short runs fill every window."""


class Nested(gym.Env):
    """A walk whose observation is a dict and whose action is a tuple; it reuses its arrays."""

    def __init__(self, length: int) -> None:
        self.observation_space = spaces.Dict(
            {
                "place": spaces.Box(-3.0, 3.0, (2, 2), np.float32),
                "lamp": spaces.Discrete(3, start=5),
            }
        )
        self.action_space = spaces.Tuple(
            [spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,), np.float32)]
        )
        self.length = length
        self.place = np.zeros((2, 2), np.float32)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.place[:] = self.np_random.normal(size=(2, 2))
        return self._seen(), {}

    def step(self, action):
        self.steps += 1
        self.place += self.np_random.normal(size=(2, 2)) * (1 + int(action[0])) + action[1]
        return self._seen(), 1.0, self.steps == self.length, False, {}

    def _seen(self):
        return {"place": self.place, "lamp": 5 + self.steps % 3}


class Spoken(gym.Env):
    """A walk that is told in words."""

    def __init__(self, length: int) -> None:
        self.observation_space = spaces.Text(8)
        self.action_space = spaces.MultiDiscrete([2, 3])
        self.length = length
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return "start", {"said": "start"}

    def step(self, action):
        self.steps += 1
        word = f"w{self.np_random.integers(4)}{action[1]}"
        return word, 1.0, False, self.steps == self.length, {"said": word}


class Pictured(gym.Env):
    """A walk that is shown as a picture, a grid of codes, and a long vector."""

    def __init__(self, length: int) -> None:
        self.observation_space = spaces.Dict(
            picture=spaces.Box(0, 255, (36, 33, 3), np.uint8),
            codes=spaces.Box(0, 255, (5, 5, 3), np.uint8),
            vector=spaces.Box(-np.inf, np.inf, (15,), np.float32),
        )
        self.action_space = spaces.Discrete(3)
        self.length = length
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(0), {}

    def step(self, action):
        self.steps += 1
        return self._seen(int(action)), 1.0, self.steps == self.length, False, {}

    def _seen(self, action):
        return {
            "picture": np.full((36, 33, 3), 90 * action, np.uint8),
            "codes": np.full((5, 5, 3), self.steps % 3, np.uint8),
            "vector": self.np_random.normal(size=15).astype(np.float32) / 9 + action,
        }


def spoken(length: int) -> gym.Env:
    return Spoken(length)


def walk(length: int) -> gym.Env:
    return Walk(length=length)


def pictured(length: int) -> gym.Env:
    return Pictured(length)


def nested(length: int) -> gym.Env:
    return Nested(length)


def cartpole(length: int) -> gym.Env:
    return gym.make("CartPole-v1", max_episode_steps=length)


def bounded(observation: Any) -> np.ndarray:
    """An encoder."""
    return np.round(np.asarray(observation, np.float64).ravel() * 2)


KINDS: dict[str, Callable[[int], gym.Env]] = {
    "walk": walk,
    "nested": nested,
    "cartpole": cartpole,
    "spoken": spoken,
    "pictured": pictured,
}
LENGTHS = (4, 7, 5)


def factories(
    kind: str, settings: dict[str, Any] | None = None, lengths: Sequence[int] = LENGTHS
) -> list[Callable[[], gym.Env]]:
    """One environment for each length; wrapped where there are settings."""
    makes = [functools.partial(KINDS[kind], length) for length in lengths]
    if settings is None:
        return makes

    def wrapped(make: Callable[[], gym.Env]) -> gym.Env:
        return JointKLDivergenceWrapper(make(), **settings)

    return [functools.partial(wrapped, make) for make in makes]


def vector_of(
    makes: Sequence[Callable[[], gym.Env]], mode: str, how: str = "sync", **options: Any
) -> gym.vector.VectorEnv:
    """A vector environment that resets its rows in one of the three ways."""
    modes = getattr(gym.vector, "AutoresetMode", None)
    if modes is not None:
        options["autoreset_mode"] = modes[mode]
    elif mode != "NEXT_STEP":
        pytest.skip("Gymnasium 1.0 knows NEXT_STEP only")
    if how == "sync":
        return gym.vector.SyncVectorEnv(makes, **options)
    return gym.vector.AsyncVectorEnv(makes, shared_memory=True, **options)


def batches(env: gym.vector.VectorEnv, steps: int, seed: int = 3) -> list[Any]:
    """Actions for all rows."""
    env.action_space.seed(seed)
    return [env.action_space.sample() for _ in range(steps)]


def run(
    env: gym.vector.VectorEnv, actions: Sequence[Any], mode: str, seed: int | None = 11
) -> list[tuple[Any, ...]]:
    """Observations, rewards, ends and infos of every step; rows that have ended are reset."""
    results: list[tuple[Any, ...]] = []
    if seed is not None:
        results.append(copy.deepcopy(env.reset(seed=seed)))
    for step, action in enumerate(actions):
        observations, rewards, terminations, truncations, infos = env.step(action)
        done = np.logical_or(terminations, truncations)
        # Its observations may be overwritten by the next step.
        results.append((copy.deepcopy(observations), rewards, done, infos))
        if mode == "DISABLED" and done.any():
            again = env.reset(seed=step, options={"reset_mask": done})
            results.append(copy.deepcopy(again))
        elif mode != "DISABLED" and step % 17 == 16:
            # Some of the rows, in mid-episode; one that has just ended may be among them.
            some = np.array([True, False, True])
            results.append(copy.deepcopy(env.reset(options={"reset_mask": some})))
    return results


def assert_same_infos(ours: dict[str, Any], singles: dict[str, Any], keys: Sequence[str]) -> None:
    """Bit for bit, masks included, and zero outside them."""
    rows = next((len(value) for key, value in ours.items() if key.startswith("_")), 0)
    for key in keys:
        mask = singles.get("_" + key, np.zeros(rows, bool))
        np.testing.assert_array_equal(ours.get("_" + key, np.zeros(rows, bool)), mask, key)
        if key in ours:
            assert ours[key].dtype == np.float64
            assert ours[key].shape == ours["_" + key].shape == (rows,)
            assert ours["_" + key].dtype == np.bool_
            np.testing.assert_array_equal(ours[key], singles.get(key, np.zeros(rows)), key)


def assert_same_runs(ours: Sequence[Any], singles: Sequence[Any], keys=INFO_KEYS) -> None:
    """Every result of two runs, but only those infos that the wrappers add."""
    assert len(ours) == len(singles)
    for step, (a, b) in enumerate(zip(ours, singles, strict=True)):
        np.testing.assert_equal(a[:-1], b[:-1], f"step {step}")
        assert_same_infos(a[-1], b[-1], keys)
        finals = a[-1].get("final_info", {}), b[-1].get("final_info", {})
        if finals[0] or finals[1]:
            assert_same_infos(*finals, keys)
            np.testing.assert_array_equal(a[-1]["_final_info"], b[-1]["_final_info"])


def wrap(env: gym.vector.VectorEnv, **settings: Any) -> VectorJointKLDivergenceWrapper:
    """The wrapper under small windows."""
    return VectorJointKLDivergenceWrapper(env, **(SMALL | settings))
