"""What VectorJointKLDivergenceWrapper costs per step of a sub-environment.

Bare `CartPoleVectorEnv`, Gymnasium's vector `RecordEpisodeStatistics` around it, and the wrapper,
separate and pooled, play the same actions in interleaved rounds; an overhead is the difference from
the bare environment of the same round. Windows are the defaults and full before anything is timed.
"""

import argparse
import statistics
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import gymnasium as gym
import harness
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from kl_proteus import JointKLDivergenceWrapper, VectorJointKLDivergenceWrapper

SIZES = (64, 4096)
WINDOW = 1000
SEED = 12345

BARE = "bare CartPoleVectorEnv"
STATISTICS = "RecordEpisodeStatistics"
SEPARATE = "VectorJointKLDivergenceWrapper"
POOLED = "the same, pooled=True"


def actions_of(num_envs: int, steps: int) -> list[np.ndarray]:
    """Actions of a random policy."""
    random = np.random.default_rng(SEED)
    return list(random.integers(0, 2, (steps, num_envs)))


def play(env: VectorEnv[Any, Any, Any], actions: list[np.ndarray]) -> tuple[int, float]:
    """Nanoseconds within `env.step`, and what identifies the trajectory."""
    step, total, trace = env.step, 0, 0.0
    for action in actions:
        before = perf_counter_ns()
        observations, rewards, _, _, _ = step(action)
        after = perf_counter_ns()
        total += after - before
        trace += float(rewards.sum()) + float(observations[0, 0])
    return total, trace


class Row(gym.Env[Any, Any]):
    """One row of a vector environment, whose observations it is given."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.seen: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """What the row shows after it has reset."""
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """What the row shows after the step that has been made already."""
        return self.seen, 1.0, False, False, {}


def check_agreement(num_envs: int, steps: int) -> int:
    """Plays the wrapper and a single wrapper for each row beside it.

    Returns:
        Number of reports that agree to the last bit.

    Raises:
        AssertionError: One does not.
    """
    env = VectorJointKLDivergenceWrapper(CartPoleVectorEnv(num_envs))
    rows = [Row(env) for _ in range(num_envs)]
    singles = [JointKLDivergenceWrapper(row) for row in rows]
    observations, _ = env.reset(seed=SEED)
    ended, agreed = np.zeros(num_envs, bool), 0
    for row, single, seen in zip(rows, singles, observations, strict=True):
        row.seen = seen
        single.reset()
    for action in actions_of(num_envs, steps):
        observations, _, terminations, truncations, infos = env.step(action)
        for i, (row, single) in enumerate(zip(rows, singles, strict=True)):
            row.seen = observations[i]
            if ended[i]:
                single.reset()
                continue
            for key, value in single.step(action[i])[4].items():
                assert infos[key][i] == value, f"row {i}, {key}: {infos[key][i]} is not {value}"
                agreed += 1
        ended = terminations | truncations
    return agreed


def time_wrappers(num_envs: int, warm_up: int, steps: int, rounds: int) -> None:
    """Times the wrappers on one number of rows and prints their table."""
    envs: dict[str, VectorEnv[Any, Any, Any]] = {
        BARE: CartPoleVectorEnv(num_envs),
        STATISTICS: RecordEpisodeStatistics(CartPoleVectorEnv(num_envs)),
        SEPARATE: VectorJointKLDivergenceWrapper(CartPoleVectorEnv(num_envs)),
        POOLED: VectorJointKLDivergenceWrapper(CartPoleVectorEnv(num_envs), pooled=True),
    }
    actions = actions_of(num_envs, steps)
    trajectories: dict[int, float] = {}

    def variant(env: VectorEnv[Any, Any, Any]) -> Callable[[int], float]:
        own_play = harness.own_copy(play)
        env.reset(seed=SEED)
        own_play(env, actions_of(num_envs, warm_up))

        def run(number: int) -> float:
            own_play(env, actions[: max(1, steps // 4)])
            env.reset(seed=number)
            total, trace = own_play(env, actions)
            assert trajectories.setdefault(number, trace) == trace, "not the same run"
            return total / steps / num_envs

        return run

    samples = harness.interleave({name: variant(env) for name, env in envs.items()}, rounds)
    overheads = {
        name: harness.differences(values, samples[BARE]) for name, values in samples.items()
    }
    peer = statistics.median(overheads[STATISTICS])
    rows = []
    for name, values in samples.items():
        if name == BARE:
            rows.append([name, f"{statistics.median(values):,.1f}", *["-"] * 4])
            continue
        low, high = harness.quartiles(overheads[name])
        rows.append(
            [
                name,
                f"{statistics.median(values):,.1f}",
                f"{statistics.median(overheads[name]):+,.1f}",
                f"{low:+,.1f} to {high:+,.1f}",
                f"{harness.median_ratio(values, samples[BARE]):.2f}",
                f"{statistics.median(overheads[name]) / peer:.2f}",
            ]
        )
    print(f"\n## {num_envs} rows: per row and step, {steps} steps a round, {rounds} rounds\n")
    harness.print_table(
        [
            "variant",
            "step, ns",
            "overhead, ns",
            "quartiles",
            "step / bare",
            "overhead / RecordEpisodeStatistics",
        ],
        rows,
    )


def main() -> None:
    """Checks, times and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41, help="rounds of each table")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of rows")
    parser.add_argument("--quick", action="store_true", help="a smoke run of 3 rounds")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    harness.start_clean()
    harness.refuse_debug_build()

    rounds = min(arguments.rounds, 3) if arguments.quick else arguments.rounds
    warm_up = 20 if arguments.quick else 2 * WINDOW + 200
    harness.print_heading("Cost of VectorJointKLDivergenceWrapper")
    agreed = check_agreement(4, warm_up)
    print(f"* {agreed} numbers of 4 rows are those of single wrappers, to the last bit")
    for num_envs in arguments.sizes:
        time_wrappers(num_envs, warm_up, 10 if arguments.quick else 50, rounds)


if __name__ == "__main__":
    main()
