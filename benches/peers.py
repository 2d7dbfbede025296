"""What one would write without kl_proteus: the same numbers in NumPy and in plain Python.

Both give the divergence of the newest window from the one before it, its mean and deviation over
the history, and its observation and policy parts, with the same axes, pseudocount and windows.
They have no noise floor.
They take the spaces of the benchmark: Discrete, and float Box with both bounds or none.
"""

import math
from bisect import bisect_right
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

WINDOW = 1000
MIN_WINDOW = 32
HISTORY = 1000
BINS = 10
EPSILON = 0.5
LARGEST_USABLE_BOUND = 1e6

Report = tuple[float, float, float, float, float]
NOTHING: Report = (0.0, 0.0, 0.0, 0.0, 0.0)


def axis_edges(low: float, high: float) -> list[float]:
    """Edges such that the number of edges at or below a value is its digit."""
    usable = [math.isfinite(x) and abs(x) <= LARGEST_USABLE_BOUND for x in (low, high)]
    if all(usable):
        width = high - low
        inner = [low + width * k / BINS for k in range(BINS)]
        # The upper bound itself belongs to the last bin.
        return [*inner, math.nextafter(high, math.inf)]
    if any(usable):
        raise NotImplementedError("a Box with one bound")
    # x -> (1 + x/(1 + |x|))/2, undone at the inner edges of equal bins over [0, 1].
    places = [2 * k / BINS - 1 for k in range(1, BINS)]
    return [place / (1 - abs(place)) for place in places]


def box_edges(space: spaces.Box) -> list[list[float]]:
    """The edges of every axis."""
    bounds = zip(space.low.ravel().tolist(), space.high.ravel().tolist(), strict=True)
    return [axis_edges(low, high) for low, high in bounds]


def number_of_cells(space: gym.Space[Any]) -> int:
    """A bound on the keys of a space."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    assert isinstance(space, spaces.Box)
    return math.prod(len(edges) + 1 for edges in box_edges(space))


class NumpyTracker:
    """Plain NumPy: the windows are arrays of cells, and every step counts them anew."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        self.observation_key = self._encoder(observation_space)
        self.action_key = self._encoder(action_space)
        self.actions = number_of_cells(action_space)
        self.pairs = np.empty(0, dtype=np.int64)
        self.history = np.empty(0)

    @staticmethod
    def _encoder(space: gym.Space[Any]) -> Any:
        if isinstance(space, spaces.Discrete):
            start = int(space.start)
            return lambda value: int(value) - start
        assert isinstance(space, spaces.Box)
        axes = [np.array(edges) for edges in box_edges(space)]

        def encode(value: np.ndarray) -> int:
            key = 0
            for x, edges in zip(value.ravel(), axes, strict=True):
                key = key * (len(edges) + 1) + int(np.digitize(x, edges))
            return key

        return encode

    def update(self, observation: Any, action: Any) -> Report:
        """Counts a pair."""
        cell = self.observation_key(observation) * self.actions + self.action_key(action)
        self.pairs = np.append(self.pairs[-(2 * WINDOW - 1) :], cell)
        half = len(self.pairs) // 2
        if half < min(MIN_WINDOW, WINDOW):
            return NOTHING
        cells, place = np.unique(self.pairs, return_inverse=True)
        current = np.bincount(place[half:], minlength=len(cells)) + EPSILON
        previous = np.bincount(place[:half], minlength=len(cells)) + EPSILON
        joint = self._divergence(current, previous)
        _, row = np.unique(cells // self.actions, return_inverse=True)
        marginal = self._divergence(
            np.bincount(row, weights=current), np.bincount(row, weights=previous)
        )
        self.history = np.append(self.history[-(HISTORY - 1) :], joint)
        mean, std = float(self.history.mean()), float(self.history.std())
        return joint, mean, std, marginal, max(joint - marginal, 0.0)

    @staticmethod
    def _divergence(current: np.ndarray, previous: np.ndarray) -> float:
        p, q = current / current.sum(), previous / previous.sum()
        return max(float(np.sum(p * np.log(p / q))), 0.0)


class _Row:
    """An observation with the counts of both windows and its term of the sum."""

    __slots__ = ("cells", "current", "key", "previous", "term")

    def __init__(self, key: int) -> None:
        self.key = key
        self.current = self.previous = self.cells = 0
        self.term = 0.0


class _Cell:
    """The same of an observation with an action."""

    __slots__ = ("current", "key", "previous", "row", "term")

    def __init__(self, key: int, row: _Row) -> None:
        self.key = key
        self.row = row
        self.current = self.previous = 0
        self.term = 0.0


class PythonTracker:
    """Smart Python: a step replaces the terms of the cells that it changes, three at most.

    Dicts and deques hold the cells, `bisect` bins, and sums run along in floats, so the cost does
    not depend on the number of cells. (The float sums lose a little with every step; over the
    lengths measured here that is far below 1e-9.)
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        self.observation_key = self._encoder(observation_space)
        self.action_key = self._encoder(action_space)
        self.actions = number_of_cells(action_space)
        self.cells: dict[int, _Cell] = {}
        self.rows: dict[int, _Row] = {}
        self.current: deque[_Cell] = deque()
        self.previous: deque[_Cell] = deque()
        self.joint_sum = 0.0
        self.marginal_sum = 0.0
        self.history: deque[float] = deque()
        self.history_sum = 0.0
        self.history_squares = 0.0

    @staticmethod
    def _encoder(space: gym.Space[Any]) -> Any:
        if isinstance(space, spaces.Discrete):
            start = int(space.start)
            return int if start == 0 else lambda value: int(value) - start
        assert isinstance(space, spaces.Box)
        axes = [(edges, len(edges) + 1) for edges in box_edges(space)]
        if len(axes) == 1:
            edges = axes[0][0]
            return lambda value: bisect_right(edges, value.item())

        def encode(value: np.ndarray) -> int:
            key = 0
            for x, (edges, extent) in zip(value.ravel().tolist(), axes, strict=True):
                key = key * extent + bisect_right(edges, x)
            return key

        return encode

    def update(self, observation: Any, action: Any) -> Report:
        """Counts a pair."""
        row_key = self.observation_key(observation)
        cell_key = row_key * self.actions + self.action_key(action)
        cell = self.cells.get(cell_key)
        if cell is None:
            row = self.rows.get(row_key)
            if row is None:
                row = self.rows[row_key] = _Row(row_key)
            cell = self.cells[cell_key] = _Cell(cell_key, row)
            row.cells += 1
        current, previous = self.current, self.previous
        current.append(cell)
        self._change(cell, 1, 0)
        if len(previous) == WINDOW:
            crossing = current.popleft()
            previous.append(crossing)
            self._change(crossing, -1, 1)
            self._change(previous.popleft(), 0, -1)
        elif len(current) - len(previous) == 2:
            crossing = current.popleft()
            previous.append(crossing)
            self._change(crossing, -1, 1)
        return self._report()

    def _change(self, cell: _Cell, current: int, previous: int) -> None:
        cell.current += current
        cell.previous += previous
        row = cell.row
        row.current += current
        row.previous += previous
        self.joint_sum -= cell.term
        self.marginal_sum -= row.term
        if cell.current or cell.previous:
            p = cell.current + EPSILON
            cell.term = p * math.log(p / (cell.previous + EPSILON))
            self.joint_sum += cell.term
        else:
            row.cells -= 1
            del self.cells[cell.key]
        if row.cells:
            mass = EPSILON * row.cells
            p = row.current + mass
            row.term = p * math.log(p / (row.previous + mass))
            self.marginal_sum += row.term
        else:
            del self.rows[row.key]

    def _report(self) -> Report:
        half = len(self.previous)
        if half < min(MIN_WINDOW, WINDOW):
            return NOTHING
        mass = EPSILON * len(self.cells)
        total = len(self.current) + mass
        offset = math.log((half + mass) / total)
        joint = max(self.joint_sum / total + offset, 0.0)
        marginal = max(self.marginal_sum / total + offset, 0.0)
        history = self.history
        history.append(joint)
        self.history_sum += joint
        self.history_squares += joint * joint
        if len(history) > HISTORY:
            oldest = history.popleft()
            self.history_sum -= oldest
            self.history_squares -= oldest * oldest
        count = len(history)
        mean = self.history_sum / count
        std = math.sqrt(max(self.history_squares / count - mean * mean, 0.0))
        return joint, mean, std, marginal, max(joint - marginal, 0.0)


class PeerWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """A tracker around an environment, at the least cost: it writes into the info it received."""

    def __init__(self, env: gym.Env[Any, Any], tracker: NumpyTracker | PythonTracker) -> None:
        super().__init__(env)
        self.update = tracker.update
        self.observation: Any = None

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Remembers the first observation."""
        result = self.env.reset(**options)
        self.observation = result[0]
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Counts the pair of the observation before the step and the action."""
        result = self.env.step(action)
        info = result[4]
        (
            info["kl_divergence"],
            info["kl_divergence_mean"],
            info["kl_divergence_std"],
            info["kl_observation"],
            info["kl_policy"],
        ) = self.update(self.observation, action)
        self.observation = result[0]
        return result


class PassThrough(gym.Wrapper[Any, Any, Any, Any]):
    """The least that a wrapper can do."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps."""
        return self.env.step(action)


class ConstantKeys(gym.Wrapper[Any, Any, Any, Any]):
    """The least that a wrapper with seven numbers in a copy of info can do."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps and reports nothing of interest."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        info = dict(info)
        info["kl_divergence"] = 0.1
        info["kl_divergence_mean"] = 0.2
        info["kl_divergence_std"] = 0.3
        info["kl_observation"] = 0.4
        info["kl_policy"] = 0.5
        info["kl_noise_floor"] = 0.6
        info["kl_excess"] = 0.7
        return observation, reward, terminated, truncated, info
