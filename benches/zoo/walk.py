"""One environment, played three times: what the wrapper reports, and whether it sees a change."""

import copy
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from kl_proteus import JointKLDivergenceWrapper, merge_snapshots

from .catalogue import reason_policy_does_not_matter

STEPS = 300
REFERENCE_SEED, RANDOM_SEED, HELD_SEED = 1, 2, 3
ACTION_SEED = 7
"""Of the action that is held."""


@dataclass(frozen=True)
class Row:
    """What a walk found; divergences are in nats, from a random run of as many steps.

    Attributes:
        family: Where the environment comes from.
        name: Its id.
        observation: Its observation space, in short.
        encoder: What "auto" picked, by array.
        observation_random: `kl_observation` of a second random run.
        observation_held: `kl_observation` of a run that holds one action.
        joint_random: `kl_divergence` of the second random run.
        joint_held: `kl_divergence` of the run that holds one action.
        verdict: "sees" where the held run is further away in its states than the random one,
            "blind" where it is not, or "same states".
        reason: Why the states are the same.
        shift: What was added to the seeds, because a level of the environment never got ready.
    """

    family: str
    name: str
    observation: str
    encoder: str
    observation_random: float
    observation_held: float
    joint_random: float
    joint_held: float
    verdict: str
    reason: str
    shift: int


class Tap(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps what the environment returned, to see that it comes through."""

    returned: tuple[Any, ...] = ()

    def step(self, action: Any) -> Any:
        self.returned = self.env.step(action)
        return self.returned

    def reset(self, **keywords: Any) -> Any:
        self.returned = self.env.reset(**keywords)
        return self.returned


Policy = Callable[[gym.Env[Any, Any]], Any]


def at_random(env: gym.Env[Any, Any]) -> Any:
    return env.action_space.sample()


def held_action(name: str) -> Policy:
    """The policy that answers everything with one action."""
    env = make(name)
    env.action_space.seed(ACTION_SEED)
    action = env.action_space.sample()
    env.close()
    return lambda _: copy.deepcopy(action)


def make(name: str) -> gym.Env[Any, Any]:
    """Makes an environment without Gymnasium's own checks of it."""
    return gym.make(name, disable_env_checker=True)


def play(
    name: str, policy: Policy, seed: int, steps: int = STEPS, **options: Any
) -> tuple[JointKLDivergenceWrapper[Any, Any], dict[str, Any]]:
    """Plays an environment in the wrapper and checks each step.

    Returns:
        The wrapper, closed, and the info of its last step.

    Raises:
        AssertionError: A value is not finite, or something does not pass through.
    """
    tap = Tap(make(name))
    env = JointKLDivergenceWrapper(tap, **options)
    assert env.observation_space is tap.observation_space
    assert env.action_space is tap.action_space
    env.action_space.seed(seed)
    observation, _ = env.reset(seed=seed)
    assert observation is tap.returned[0], "reset returned another observation"
    info: dict[str, Any] = {}
    for _ in range(steps):
        result = env.step(policy(env))
        for ours, theirs in zip(result[:4], tap.returned[:4], strict=True):
            assert ours is theirs, "step returned another object than the environment"
        info = result[4]
        assert info.keys() >= tap.returned[4].keys()
        for key, value in info.items():
            if key.startswith("kl_"):
                assert type(value) is float, f"{key} is {value!r}"
                assert math.isfinite(value), f"{key} is {value!r}"
        if result[2] or result[3]:
            observation, _ = env.reset()
            assert observation is tap.returned[0], "reset returned another observation"
    env.close()
    return env, info


def same_states(name: str, policy: Policy, seeds: tuple[int, ...] = (11, 12, 13)) -> bool:
    """Whether episodes of one seed show the same under two policies, as long as both last."""
    seen_before: set[str] = set()
    for seed in seeds:
        streams: list[list[Any]] = []
        for one in (at_random, policy):
            env = make(name)
            env.action_space.seed(seed)
            stream = [env.reset(seed=seed)[0]]
            for _ in range(STEPS):
                observation, _, terminated, truncated, _ = env.step(one(env))
                stream.append(copy.deepcopy(observation))
                if terminated or truncated:
                    break
            env.close()
            streams.append(stream)
        if any(not equal(a, b) for a, b in zip(*streams, strict=False)):
            return False
        seen_before |= {repr(observation) for observation in streams[0]}
    # One that never changes at all says nothing.
    return len(seen_before) > 1


def equal(a: Any, b: Any) -> bool:
    """Whether two observations are the same."""
    if isinstance(a, dict):
        return all(equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return all(map(equal, a, b))
    return bool(np.array_equal(a, b))


def walk(family: str, name: str, shift: int = 0) -> Row:
    """Walks one environment.

    Raises:
        AssertionError: It does not come through the wrapper as it should.
        RuntimeWarning: Arithmetic went wrong.
    """
    with warnings.catch_warnings():
        # Environments that are out of date, or careless with precision, say so; that is theirs.
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", category=RuntimeWarning, module="kl_proteus")
        return _walked(family, name, shift)


def _walked(family: str, name: str, shift: int) -> Row:
    base, _ = play(name, at_random, REFERENCE_SEED + shift)
    reference = merge_snapshots(base.snapshot("previous"), base.snapshot("current"))
    assert json.loads(json.dumps(reference)) == reference
    assert sum(sum(row.values()) for row in reference["counts"].values()) == STEPS
    hold = held_action(name)
    _, again = play(name, at_random, RANDOM_SEED + shift, reference=reference)
    _, held = play(name, hold, HELD_SEED + shift, reference=reference)
    reason = reason_policy_does_not_matter(name)
    if reason is None and same_states(name, hold):
        reason = "episodes of one seed show the same under both policies"
    sees = held["kl_observation"] > again["kl_observation"]
    verdict = "same states" if reason else "sees" if sees else "blind"
    return Row(
        family,
        name,
        _in_short(base.observation_space),
        _encoders(base.kl_encoder),
        again["kl_observation"],
        held["kl_observation"],
        again["kl_divergence"],
        held["kl_divergence"],
        verdict,
        reason or "",
        shift,
    )


def _in_short(space: gym.Space[Any]) -> str:
    if isinstance(space, gym.spaces.Box):
        return f"Box{tuple(space.shape)} {space.dtype}".replace(",)", ")")
    if isinstance(space, gym.spaces.Dict):
        return ", ".join(f"{key}: {_in_short(inner)}" for key, inner in space.spaces.items())
    if isinstance(space, gym.spaces.Tuple):
        return ", ".join(map(_in_short, space.spaces))
    if isinstance(space, gym.spaces.Discrete):
        return f"Discrete({space.n})"
    size = int(np.prod(space.shape or ()))
    return f"{type(space).__name__}({size})" if space.shape else type(space).__name__


def _encoders(name: str | None) -> str:
    """The encoders without the hashes of shapes and bounds."""
    parts = [part.rsplit(" ", 1)[0].split(": ", 1)[1] for part in name.split("; ")] if name else []
    return "; ".join(parts) or "none"
