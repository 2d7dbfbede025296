"""The whole tracker: every pair in a list, everything recomputed at every step."""

from collections import Counter
from typing import Any

from gymnasium import Space

from . import blindness, drift, noise_floor
from .axes import axes_of, digits_of
from .history import ReferenceHistory


class ReferenceTracker:
    """What the tracker must return, at any cost.

    `reference` is a list of (observation, action) pairs or a mapping from (observation digits,
    action digits) to a count.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        *,
        obs_bins: Any = 10,
        action_bins: Any = 10,
        window: int | None = 1000,
        lag: int | None = None,
        reference: Any = None,
        epsilon: float = 0.5,
        history_size: int = 1000,
        min_window: int = 32,
        normalize_obs: bool = True,
        normalize_action: bool = True,
        obs_range: Any = None,
        action_range: Any = None,
        obs_scale: float = 1.0,
        action_scale: float = 1.0,
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.observation_axes = axes_of(
            observation_space, obs_bins, obs_range, obs_scale, not normalize_obs
        )
        self.action_axes = axes_of(
            action_space, action_bins, action_range, action_scale, not normalize_action
        )
        self.window = window
        self.lag = lag
        self.epsilon = epsilon
        self.min_window = min_window
        self.pairs: list[drift.Cell] = []
        self.joint = ReferenceHistory(history_size)
        self.observation = ReferenceHistory(history_size)
        self.policy = ReferenceHistory(history_size)
        self.current = self.policy_part = self.floor = 0.0
        self.reported: dict[int, float] = {}
        self.reference: drift.Counts | None = None
        if reference is not None:
            cells = reference if isinstance(reference, dict) else self.cells_of(reference)
            self.reference = Counter(cells)

    def cell(self, observation: Any, action: Any) -> drift.Cell:
        """The cell of a pair."""
        return (
            digits_of(self.observation_space, self.observation_axes, observation),
            digits_of(self.action_space, self.action_axes, action),
        )

    def cells_of(self, pairs: Any) -> list[drift.Cell]:
        """The cells of many pairs."""
        return [self.cell(observation, action) for observation, action in pairs]

    def in_flow(self, cell: drift.Cell) -> bool:
        """Whether a digit of the cell is a flow bin."""
        axes = self.observation_axes + self.action_axes
        digits = cell[0] + cell[1]
        return any(axis.in_flow(digit) for axis, digit in zip(axes, digits, strict=True))

    def distributions(self) -> tuple[drift.Counts, drift.Counts]:
        """The counts of P and Q."""
        return drift.count_windows(self.pairs, self.window, self.lag, self.reference)

    def _rule(self, rule) -> bool:
        return rule(
            len(self.pairs), self.window, self.lag, self.reference is not None, self.min_window
        )

    def update(self, observation: Any, action: Any) -> dict[str, float]:
        """Count one pair and return the seven info values."""
        self.pairs.append(self.cell(observation, action))
        self.current = observation_part = policy_part = floor = 0.0
        if self._rule(drift.is_reported):
            p, q = self.distributions()
            # The definitions are never negative; their rounding can be.
            self.current = max(0.0, drift.kl_joint(p, q, self.epsilon))
            observation_part = max(0.0, drift.kl_observation(p, q, self.epsilon))
            policy_part = max(0.0, drift.kl_policy(p, q, self.epsilon))
            floor = noise_floor.noise_floor(
                p,
                q,
                window=self.window,
                lag=self.lag,
                has_reference=self.reference is not None,
                epsilon=self.epsilon,
            )
            self.joint.push(self.current)
            self.reported[len(self.pairs)] = self.current
            self.observation.push(observation_part)
            self.policy.push(policy_part)
        self.policy_part, self.floor = policy_part, floor
        return {
            "kl_divergence": self.current,
            "kl_divergence_mean": self.joint.mean(),
            "kl_divergence_std": self.joint.std(),
            "kl_observation": observation_part,
            "kl_policy": policy_part,
            "kl_noise_floor": floor,
            "kl_excess": self.current - floor,
        }

    def statistics(self) -> dict[str, Any]:
        """What `get_kl_statistics` says."""
        p, q = self.distributions()
        return {
            "current": self.current,
            "mean": self.joint.mean(),
            "std": self.joint.std(),
            "min": self.joint.min(),
            "max": self.joint.max(),
            "count": len(self.joint.values),
            "observation_mean": self.observation.mean(),
            "policy_mean": self.policy.mean(),
            "cells": len(drift.support(p, q)),
            "steps": len(self.pairs),
            "flow": drift.flow_share(p, self.in_flow),
            "ready": self._rule(drift.is_ready),
            **self.trust(p, q),
        }

    def has_floor(self) -> bool:
        """Whether the distributions share no pair, and a value is reported."""
        if not self._rule(drift.is_reported):
            return False
        if self.reference is not None:
            return True
        return self.window is not None and (self.lag is None or self.lag >= self.window)

    def trust(self, p: drift.Counts, q: drift.Counts) -> dict[str, Any]:
        """What `get_kl_statistics` says of how far the value can be believed."""
        expected, pvalue = 0.0, 1.0
        if self.window is not None:
            full = 2 * self.window if self.lag is None else self.window + self.lag
            full = full if self.reference is None else self.window
            past = blindness.past_values(self.reported, full, self.window)
            expected, pvalue = blindness.prediction(past, self.current)
        policy = {
            "kl_policy_floor": 0.0,
            "kl_policy_excess": self.policy_part,
            "kl_policy_z": 0.0,
            "kl_policy_pvalue": 1.0,
            "kl_detectable": 0.0,
        }
        if self.has_floor():
            policy = blindness.policy_statistics(p, q, self.epsilon, self.policy_part)
        # Every pair but the newest is known where there are no windows.
        known = Counter() if self.window is None and self.reference is None else q
        return {
            "floor_available": self.has_floor(),
            "kl_noise_floor": self.floor,
            "kl_excess": self.current - self.floor,
            "kl_expected": expected,
            "kl_pvalue": pvalue,
            **policy,
            "coverage": blindness.coverage(p, known),
            "support": blindness.supported(p, q),
            # Nobody says where episodes begin.
            "episodes_in_window": min(len(self.pairs), 1),
        }
