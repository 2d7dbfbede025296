"""What a drift detector adds to a step, as interleaved ratios.

    sh scripts/uv run --extra dev python benches/detector_cost.py [--rounds N]

Every variant counts the same pairs of a random policy with full windows and a calibrated detector.
"core" is a tracker that takes the observation and the action from Python; the pair is encoded,
counted and reported. "keys" feeds a detector on its own with the keys of the pairs in one call.
"""

import argparse
import statistics
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

import gymnasium as gym
import harness
import numpy as np

from kl_proteus import DriftDetector
from kl_proteus._core import PairTracker
from kl_proteus.spaces import layout_from_space

ENVIRONMENTS = ("CartPole-v1", "FrozenLake-v1", "Pendulum-v1")
BARE = "core"
SETTINGS: dict[str, dict[str, Any] | None] = {
    BARE: None,
    "core, DriftDetector": {},
    "core, DriftDetector(fast=True)": {"fast": True},
}
KEYS = "keys, DriftDetector.update_many"
WARM_UP = 26_000
# Steps before the timed ones of a round, so that caches hold what the variant needs.
LEAD_IN = 600
Pair = tuple[Any, Any]


def record(name: str, count: int) -> list[Pair]:
    """Pairs of a random policy."""
    env = gym.make(name)
    env.action_space.seed(1)
    observation, _ = env.reset(seed=1)
    pairs = []
    for _ in range(count):
        action = env.action_space.sample()
        pairs.append((observation, action))
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()
    env.close()
    return pairs


def play(choose: Callable[..., Any], advance: Callable[..., Any], turns: list[Pair]) -> int:
    """Nanoseconds of a loop of steps."""
    before = perf_counter_ns()
    for following, action in turns:
        choose(action)
        advance(following)
    return perf_counter_ns() - before


def empty(turns: list[Pair]) -> int:
    """Nanoseconds of the loop alone."""
    before = perf_counter_ns()
    for _following, _action in turns:
        pass
    return perf_counter_ns() - before


def time_environment(name: str, steps: int, rounds: int) -> None:
    """Prints the table of one environment."""
    pairs = record(name, WARM_UP + (rounds + 1) * (LEAD_IN + steps) + 1)
    env = gym.make(name)
    observation = layout_from_space(env.observation_space, "observation")
    action = layout_from_space(env.action_space, "action")
    env.close()
    turns = [(following, act) for (_, act), (following, _) in pairwise(pairs)]

    def tracked(settings: dict[str, Any] | None) -> Callable[[int], float]:
        tracker = PairTracker(observation, action, window=1000)
        if settings is not None:
            DriftDetector(**settings).attach_to(tracker)
        choose, advance = tracker.choose, tracker.advance
        own_play = harness.own_copy(play)
        tracker.observe(pairs[0][0])
        own_play(choose, advance, turns[:WARM_UP])

        def run(number: int) -> float:
            start = WARM_UP + number * (LEAD_IN + steps)
            own_play(choose, advance, turns[start : start + LEAD_IN])
            part = turns[start + LEAD_IN : start + LEAD_IN + steps]
            return (own_play(choose, advance, part) - empty(part)) / steps

        return run

    observations = np.array([observation.key(x) for x, _ in pairs], np.uint64)
    actions = np.array([action.key(x) for _, x in pairs], np.uint64)
    alone = DriftDetector()
    alone.update_many(observations[:WARM_UP], actions[:WARM_UP])

    def keys(number: int) -> float:
        start = WARM_UP + number * (LEAD_IN + steps)
        lead_in = slice(start, start + LEAD_IN)
        alone.update_many(observations[lead_in], actions[lead_in])
        part = slice(start + LEAD_IN, start + LEAD_IN + steps)
        before = perf_counter_ns()
        alone.update_many(observations[part], actions[part])
        return (perf_counter_ns() - before) / steps

    variants = {variant: tracked(settings) for variant, settings in SETTINGS.items()}
    samples = harness.interleave(variants | {KEYS: keys}, rounds)
    rows = []
    for variant, values in samples.items():
        low, high = harness.quartiles(harness.differences(values, samples[BARE]))
        rows.append(
            [
                variant,
                f"{statistics.median(values):,.0f}",
                f"{harness.median_ratio(values, samples[BARE]):.3f}",
                "-" if variant in (BARE, KEYS) else f"{low:+,.0f} to {high:+,.0f}",
            ]
        )
    print(f"\n## {name}: {steps} steps a round, {rounds} rounds\n")
    harness.print_table(["variant", "ns a step", "ratio to the core", "added, ns"], rows)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=301)
    parser.add_argument("--steps", type=int, default=400, help="steps a round")
    parser.add_argument("--quick", action="store_true", help="one environment, short rounds")
    arguments = parser.parse_args()
    harness.start_clean()
    harness.refuse_debug_build()
    harness.print_heading("Cost of a drift detector")
    for name in ENVIRONMENTS[: 1 if arguments.quick else None]:
        time_environment(name, 100 if arguments.quick else arguments.steps, arguments.rounds)


if __name__ == "__main__":
    main()
