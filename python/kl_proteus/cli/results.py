"""The results of a run, as plain values that strict JSON can hold."""

import math
from typing import Any

from kl_proteus.cli.exports import File
from kl_proteus.cli.options import CollectOptions
from kl_proteus.cli.rollout import Tally
from kl_proteus.llm.wrapper import LLMTrainingWrapper

__all__ = ["summary"]


def summary(
    env: LLMTrainingWrapper[Any, Any],
    options: CollectOptions,
    tally: Tally,
    files: list[File],
    *,
    interrupted: bool,
) -> dict[str, Any]:
    """Everything that is known after a run.

    Args:
        env: The environment.
        options: The command line.
        tally: What the run saw.
        files: What was written.
        interrupted: Whether the user ended it.

    Returns:
        A dict of JSON values; a number that there is none of is None.
    """
    drift = env.get_kl_statistics()
    training = env.get_training_statistics()
    ready: bool = drift["ready"]
    stepped = training["num_steps"] > 0
    return {
        "environment": options.env_id,
        "policy": options.policy,
        "seed": options.seed,
        "mode": options.mode,
        "interrupted": interrupted,
        "episodes": training["num_episodes"],
        "steps": training["num_steps"],
        "reward": {
            "mean_per_episode": _finite(tally.mean_episode_reward),
            "mean_per_step": _finite(training["mean_reward"] if stepped else None),
            "mean_shaped_per_step": _finite(training["mean_shaped_reward"] if stepped else None),
        },
        "drift": {
            "ready": ready,
            "missing_pairs": 0 if ready else max(0, options.pairs_needed - drift["steps"]),
            "needed_pairs": options.pairs_needed,
            "window": options.window,
            "lag": options.lag,
            "reference": options.reference,
            "values": drift["count"],
            "joint": {key: drift[key] for key in ("current", "mean", "std", "min", "max")},
            "observation": {"current": tally.kl_observation, "mean": drift["observation_mean"]},
            "policy": {"current": tally.kl_policy, "mean": drift["policy_mean"]},
            "noise_floor": drift["kl_noise_floor"] if drift["floor_available"] else None,
            "expected": drift["kl_expected"],
            "pvalue": drift["kl_pvalue"],
        },
        "encoder": env.kl_encoder,
        "cells": drift["cells"],
        "flow_share": drift["flow"],
        "top_movers": drift["top_movers"],
        "format": options.format,
        "files": [{"kind": file.kind, "path": file.path, "rows": file.rows} for file in files],
    }


def _finite(value: float | None) -> float | None:
    """A sum of finite rewards may overflow, and JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None
