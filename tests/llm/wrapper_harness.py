"""Environments, a spy, a controller and readers for the tests of `LLMTrainingWrapper`."""

import copy
import json
from itertools import cycle

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from kl_proteus import LLMTrainingWrapper

DRIFT_KEYS = {
    "kl_divergence",
    "kl_divergence_mean",
    "kl_divergence_std",
    "kl_observation",
    "kl_policy",
    "kl_noise_floor",
    "kl_excess",
}
REWARD_KEYS = {"base_reward", "kl_penalty", "kl_bonus", "shaped_reward"}
ALL_KEYS = DRIFT_KEYS | REWARD_KEYS


class Line(gym.Env):
    """Five places in a ring; the action is how far to go. Lengths and rewards come in turn."""

    def __init__(self, lengths=(4,), rewards=(1.0,), *, truncates=False, info=None):
        self.observation_space = spaces.Discrete(5)
        self.action_space = spaces.Discrete(3)
        self._lengths = tuple(lengths)
        self._rewards = tuple(rewards)
        self._truncates = truncates
        self._info = info
        self._episode = self._step = -1
        self._total = 0
        self._place = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._episode += 1
        self._step = self._place = 0
        return np.int64(0), {}

    def step(self, action):
        self._place = (self._place + int(action)) % 5
        reward = self._rewards[self._total % len(self._rewards)]
        self._step += 1
        self._total += 1
        done = self._step >= self._lengths[self._episode % len(self._lengths)]
        info = {"place": self._place} if self._info is None else self._info
        place = np.int64(self._place)
        return place, reward, done and not self._truncates, done and self._truncates, info


class Nested(gym.Env):
    """Dict and Tuple spaces with every kind of leaf, on both sides."""

    observation_space = spaces.Dict(
        {
            "where": spaces.Box(-1.0, 1.0, (2,), np.float32),
            "tags": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary(2))),
        }
    )
    action_space = spaces.Dict(
        {
            "move": spaces.MultiDiscrete([2, 3]),
            "force": spaces.Box(-1.0, 1.0, (1,), np.float32),
            "kind": spaces.Discrete(2, start=5),
        }
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._step = 0
        return self._look(), {}

    def step(self, action):
        self._step += 1
        reward = float(action["force"][0]) + int(action["move"][1]) - 0.5 * self.np_random.random()
        return self._look(), reward, self._step == 15, False, {}

    def _look(self):
        random = self.np_random
        return {
            "where": random.uniform(-1.0, 1.0, 2).astype(np.float32),
            "tags": (np.int64(random.integers(-1, 2)), random.integers(0, 2, 2, dtype=np.int8)),
        }


class Spy(gym.Wrapper):
    """Keeps what the environment was given and returned, apart from the wrapper under test."""

    def __init__(self, env):
        super().__init__(env)
        self.episodes = []
        self.returned = None

    def reset(self, **kwargs):
        self.returned = super().reset(**kwargs)
        self.episodes.append([])
        self._seen = copy.deepcopy(self.returned[0])
        return self.returned

    def step(self, action):
        self.returned = super().step(action)
        self.episodes[-1].append((self._seen, copy.deepcopy(action), self.returned[1]))
        self._seen = copy.deepcopy(self.returned[0])
        return self.returned

    @property
    def steps(self):
        """(observation before the action, action, reward) of all episodes."""
        return [step for episode in self.episodes for step in episode]


class Controller:
    """A coefficient controller as small as the wrapper may be given."""

    def __init__(self, value=0.5, unit="nats/step", factor=2.0):
        self.value = value
        self.unit = unit
        self.factor = factor
        self.updates = []

    def update(self, current, n_steps=1):
        self.updates.append((current, n_steps))
        self.value *= self.factor
        return self.value


def on_line(directory, *, lengths=(4,), rewards=(1.0,), truncates=False, **arguments):
    """The wrapper on a `Line`, with windows that are full after eight steps."""
    arguments = {"window": 4, "min_window": 1} | arguments
    line = Line(lengths, rewards, truncates=truncates)
    return LLMTrainingWrapper(Spy(line), directory, **arguments)


def spy_of(env):
    """The spy inside a wrapper."""
    while not isinstance(env, Spy):
        env = env.env
    return env


def play(env, episodes=1, *, actions=None, seed=0):
    """What `step` returned, for whole episodes; the actions are given in turn or sampled."""
    env.action_space.seed(seed)
    source = (env.action_space.sample() for _ in cycle([0])) if actions is None else cycle(actions)
    results = []
    for number in range(episodes):
        env.reset(seed=seed + number)
        ended = False
        while not ended:
            results.append(env.step(next(source)))
            ended = results[-1][2] or results[-1][3]
    return results


def names(directory):
    """The names of everything below a directory."""
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*"))


def load(path):
    """The rows of a JSON Lines file, read as strictly as JSON is written."""

    def refuse(constant):
        raise AssertionError(f"{constant} in {path}")

    data = path.read_bytes()
    assert data.endswith(b"\n")
    return [json.loads(line, parse_constant=refuse) for line in data.decode("utf-8").splitlines()]


def recorded(directory):
    """The episodes in the files of a directory, file by file; a new file may have none yet."""
    paths = [path for path in sorted(directory.glob("episodes-*.jsonl")) if path.stat().st_size]
    return [row for path in paths for row in load(path)]


def contents(directory):
    """Every file below a directory with its bytes."""
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def cell(space, value, bins):
    """The cell of a value by the table of axes, written down once more for float spaces."""
    if isinstance(space, spaces.Tuple):
        return tuple(cell(part, item, bins) for part, item in zip(space, value, strict=True))
    if isinstance(space, spaces.Dict):
        return tuple(cell(part, value[key], bins) for key, part in space.items())
    if not isinstance(space, spaces.Box):
        return tuple(np.ravel(value).tolist())
    sides = [np.ravel(side).astype(np.float64).tolist() for side in (space.low, space.high)]
    return tuple(
        _digit(float(x), low, high, bins)
        for x, low, high in zip(np.ravel(value), *sides, strict=True)
    )


def _digit(x, low, high, bins):
    if max(abs(low), abs(high)) > 1e6:
        assert min(abs(low), abs(high)) > 1e6, "no half-bounded space is used here"
        x, low, high = (1 + x / (1 + abs(x))) / 2, 0.0, 1.0
    if x < low or x > high:
        return -1 if x < low else bins
    return min(int((x - low) / (high - low) * bins), bins - 1)


# Hooks that a string can name.


def write_place(observation):
    """An observation_formatter."""
    return f"at {int(observation)} ▲"


def write_move(action):
    """An action_formatter."""
    return ("stay", "one", "two")[int(action)]


def read_move(text):
    """An action_parser."""
    return {"stay": 0, "one": 1, "two": 2}[text.strip().lower()]


def mean_of_image(observation):
    """An encoder."""
    return np.array([observation.mean() / 255.0, observation[0, 0, 0] / 255.0])


def parity(observation):
    """An encoder that returns digits."""
    return np.array([int(observation) % 2])
