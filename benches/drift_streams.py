"""Streams of (observation, action) cells from Gymnasium environments, with and without a change.

A stream is played with a seed, and its pairs are the keys that `JointKLDivergenceWrapper` would
count with its defaults. Policies choose a uniform action at a rate `eps` and else what a rule says.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from kl_proteus.spaces import layout_from_space

Rate = Callable[[int], float]
Rule = Callable[[Any], Any]


@dataclass(frozen=True)
class Stream:
    """How a stream is played."""

    name: str
    env_id: str
    eps: float
    rule: Rule | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    physics: Mapping[str, float] = field(default_factory=dict)
    chosen_on: bool = False
    """Whether the detector's constants were found on it."""


@dataclass(frozen=True)
class Recorded:
    """A played stream: keys of the pairs, and the scalars that a peer may watch."""

    observations: np.ndarray
    actions: np.ndarray
    last_axis: np.ndarray
    """The last axis of the observation."""
    action_values: np.ndarray

    def __len__(self) -> int:
        return len(self.actions)


def upright(observation: Any) -> int:
    """CartPole: push toward the side that the pole falls to."""
    return int(observation[2] + observation[3] > 0)


def along(observation: Any) -> int:
    """MountainCar: push along the velocity."""
    return 2 if observation[1] >= 0 else 0


def pump(observation: Any) -> np.ndarray:
    """Pendulum: full torque along the velocity."""
    return np.array([2.0 if observation[2] >= 0 else -2.0], np.float32)


def pump_car(observation: Any) -> np.ndarray:
    """MountainCarContinuous: full force along the velocity."""
    return np.array([1.0 if observation[1] >= 0 else -1.0], np.float32)


def swing(observation: Any) -> int:
    """Acrobot: torque along the velocity of the second joint."""
    return 2 if observation[5] >= 0 else 0


def toward_goal(observation: Any) -> int:
    """FrozenLake 4x4: right where possible, else down."""
    return 2 if observation % 4 < 3 else 1


LARGE_MAP = {"map_name": "8x8"}
NO_CHANGE = (
    Stream("CartPole, random", "CartPole-v1", 1.0, chosen_on=True),
    Stream("CartPole, eps 0.1", "CartPole-v1", 0.1, upright, chosen_on=True),
    Stream("MountainCar, random", "MountainCar-v0", 1.0, chosen_on=True),
    Stream("MountainCar, eps 0.1", "MountainCar-v0", 0.1, along, chosen_on=True),
    Stream("Pendulum, random", "Pendulum-v1", 1.0, chosen_on=True),
    Stream("Pendulum, pump", "Pendulum-v1", 0.1, pump, chosen_on=True),
    Stream("Acrobot, random", "Acrobot-v1", 1.0, chosen_on=True),
    Stream("FrozenLake 8x8, random", "FrozenLake-v1", 1.0, options=LARGE_MAP),
    Stream("FrozenLake 4x4, eps 0.3", "FrozenLake-v1", 0.3, toward_goal),
    Stream("Taxi, random", "Taxi-v4", 1.0),
    Stream("Blackjack, random", "Blackjack-v1", 1.0),
    Stream("CliffWalking, random", "CliffWalking-v1", 1.0),
    Stream("MountainCarContinuous, pump", "MountainCarContinuous-v0", 0.1, pump_car),
    Stream("CartPole, eps 0.5", "CartPole-v1", 0.5, upright),
    Stream("Acrobot, eps 0.1", "Acrobot-v1", 0.1, swing),
    Stream("LunarLander, random", "LunarLander-v3", 1.0),
)


@dataclass(frozen=True)
class Scenario:
    """A change of the rate of uniform actions, or of the physics."""

    name: str
    before: Stream
    eps: float
    physics: Mapping[str, float] = field(default_factory=dict)


CART, CAR = "CartPole-v1", "MountainCar-v0"
POLICY_CHANGES = tuple(
    Scenario(f"{short} {a:g} -> {b:g}", Stream(f"{short} {a:g}", env_id, a, rule), b)
    for short, env_id, rule in (("CartPole", CART, upright), ("MountainCar", CAR, along))
    for a, b in ((1.0, 0.0), (1.0, 0.7), (0.1, 0.2))
)
PHYSICS_CHANGES = (
    # `polemass_length` follows from the length.
    Scenario(
        "CartPole, pole length 0.5 -> 1",
        Stream("CartPole 1", CART, 1.0),
        1.0,
        {"length": 1.0, "polemass_length": 0.1},
    ),
    Scenario("CartPole, force 10 -> 7", Stream("CartPole 1", CART, 1.0), 1.0, {"force_mag": 7.0}),
    Scenario(
        "MountainCar, gravity 0.0025 -> 0.002",
        Stream("MountainCar 1", CAR, 1.0),
        1.0,
        {"gravity": 0.002},
    ),
)


def play(
    stream: Stream,
    steps: int,
    seed: int,
    change: Scenario | None = None,
    segment: int = 0,
) -> Recorded:
    """Plays a stream; with a change every other `segment` steps are played after it.

    Returns:
        The keys of `steps` pairs, and two scalars of each.
    """
    env = gym.make(stream.env_id, **stream.options)
    observation_layout = layout_from_space(env.observation_space, "observation", bins=10)
    action_layout = layout_from_space(env.action_space, "action", bins=10)
    inner: Any = env.unwrapped
    original = {} if change is None else {name: getattr(inner, name) for name in change.physics}
    random = np.random.default_rng(seed)
    uniform = random.random(steps)
    env.action_space.seed(seed)
    keys = np.empty((2, steps), np.int64)
    scalars = np.empty((2, steps), np.float32)
    observation, _ = env.reset(seed=seed)
    rule, eps = stream.rule, stream.eps
    for t in range(steps):
        if change is not None and t % segment == 0:
            changed = t // segment % 2 == 1
            eps = change.eps if changed else stream.eps
            for name, value in (change.physics if changed else original).items():
                setattr(inner, name, value)
        if rule is None or uniform[t] < eps:
            action = env.action_space.sample()
        else:
            action = rule(observation)
        keys[0, t] = observation_layout.key(observation)
        keys[1, t] = action_layout.key(action)
        scalars[0, t] = observation[-1] if np.ndim(observation) else 0.0
        scalars[1, t] = action if np.ndim(action) == 0 else action[0]
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()
    env.close()
    return Recorded(keys[0], keys[1], scalars[0], scalars[1])


def cached(
    directory: Path | None,
    stream: Stream,
    steps: int,
    seed: int,
    change: Scenario | None = None,
    segment: int = 0,
) -> Recorded:
    """As `play`, but reads what an earlier run has played and left in `directory`."""
    if directory is None:
        return play(stream, steps, seed, change, segment)
    name = f"{stream.name} to {change.name}" if change is not None else stream.name
    words = "".join(c if c.isalnum() else "_" for c in f"{name} {steps} {segment} {seed}")
    path = directory / f"{words}.npz"
    if path.exists():
        with np.load(path) as arrays:
            return Recorded(*(arrays[name] for name in ("o", "a", "x", "u")))
    recorded = play(stream, steps, seed, change, segment)
    directory.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        o=recorded.observations,
        a=recorded.actions,
        x=recorded.last_axis,
        u=recorded.action_values,
    )
    return recorded
