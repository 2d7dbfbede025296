"""Builds the compiled tracker and its twin from the same run."""

import math
from typing import Any

from drift.strategies import Run, Side
from kl_proteus._core import PairTracker
from kl_proteus.spaces import layout_from_space
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
DIVERGENCES = ("kl_divergence", "kl_observation", "kl_policy")
FLOORS = ("kl_noise_floor", "kl_excess")


def layout_of(side: Side, name: str = "observation") -> Any:
    """The compiled layout of a side."""
    return layout_from_space(side.space, name=name, **side.settings)


def layouts_of(run: Run) -> tuple[Any, Any]:
    """The compiled layouts of both sides of a run."""
    return layout_of(run.observation, "observation"), layout_of(run.action, "action")


def snapshot_of(run: Run, pairs: list[tuple[Any, Any]]) -> str:
    """A snapshot, as JSON, of exactly these pairs."""
    tracker = PairTracker(*layouts_of(run), window=None)
    for pair in pairs:
        tracker.update(*pair)
    return tracker.snapshot_json("current")


def compiled(run: Run) -> PairTracker:
    """The compiled tracker of a run, before its first pair."""
    reference = snapshot_of(run, run.reference) if run.reference else None
    return PairTracker(*layouts_of(run), reference=reference, **run.settings)


def twin(run: Run) -> ReferenceTracker:
    """The twin of a run, before its first pair."""
    observation, action = run.observation.settings, run.action.settings
    return ReferenceTracker(
        run.observation.space,
        run.action.space,
        obs_bins=observation["bins"],
        action_bins=action["bins"],
        obs_range=observation.get("value_range"),
        action_range=action.get("value_range"),
        normalize_obs=not observation["normalized"],
        normalize_action=not action["normalized"],
        obs_scale=observation["scale"],
        action_scale=action["scale"],
        reference=run.reference or None,
        **run.settings,
    )


def feed(tracker: PairTracker, pairs: list[tuple[Any, Any]]) -> list[tuple[float, ...]]:
    """Every result of every pair."""
    return [tuple(tracker.update(*pair)) for pair in pairs]


def assert_close(got: Any, expected: Any, tolerance: float, what: str) -> None:
    """Within an absolute tolerance, and finite."""
    assert math.isfinite(got), f"{what}: {got}"
    assert abs(got - expected) <= tolerance, f"{what}: {got!r} is not {expected!r}"
