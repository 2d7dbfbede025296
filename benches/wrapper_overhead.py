"""What JointKLDivergenceWrapper costs per step, next to what one would use or write instead.

The peers are checked against the wrapper first; nothing is timed that gives another answer. Then
every variant plays the same trajectory in interleaved rounds. Each `env.step` is bracketed by the
clock, whose own cost is taken off; resets are not counted. `-` in the table stands for a ratio to
a cost too small for the run to resolve.
"""

import argparse
import statistics
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

import gymnasium as gym
import harness
from gymnasium.wrappers import RecordEpisodeStatistics
from peers import WINDOW, ConstantKeys, NumpyTracker, PassThrough, PeerWrapper, PythonTracker

from kl_proteus import JointKLDivergenceWrapper
from kl_proteus._core import PairTracker
from kl_proteus.spaces import layout_from_space

ENVIRONMENTS = ("CartPole-v1", "FrozenLake-v1", "Pendulum-v1")
REPLAYED = "CartPole-v1"
RECORDED = 20_000
KEYS = (
    "kl_divergence",
    "kl_divergence_mean",
    "kl_divergence_std",
    "kl_observation",
    "kl_policy",
)
TOLERANCE = 1e-9
SEED = 12345
# Steps between looks at the clock during the lead-in.
PART = 10

BARE = "bare environment"
PASS = "pass-through wrapper"
CONSTANT = "seven constant keys, info copied"
STATISTICS = "RecordEpisodeStatistics"
OURS = "JointKLDivergenceWrapper"
PYTHON = "smart Python tracker"
NUMPY = "plain NumPy tracker"

Pair = tuple[Any, Any]


class Replay(gym.Env[Any, Any]):
    """Plays recorded observations back: an environment that costs next to nothing.

    Each seed stands for another stretch of the recording.
    """

    def __init__(self, source: gym.Env[Any, Any], pairs: list[Pair], length: int) -> None:
        self.observation_space = source.observation_space
        self.action_space = source.action_space
        self.observations = [observation for observation, _ in pairs]
        self.length = length
        self.start = 0
        self.following = iter(self.observations)

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[Any, dict[str, Any]]:
        """Starts again; the clock does not run."""
        if seed is not None:
            self.start = seed * self.length % (len(self.observations) - self.length)
        # The copy also brings the observations into the cache, as if they had just been made.
        stretch = self.observations[self.start : self.start + self.length + 1]
        self.following = iter(stretch)
        return next(self.following), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Hands out the next observation."""
        return next(self.following), 1.0, False, False, {}


def sampled_actions(env: gym.Env[Any, Any], count: int) -> list[Any]:
    """Actions of a random policy."""
    env.action_space.seed(SEED)
    return [env.action_space.sample() for _ in range(count)]


def record(name: str, count: int) -> list[Pair]:
    """Pairs (observation before, action) of a random policy."""
    env = gym.make(name)
    pairs = []
    observation, _ = env.reset(seed=SEED)
    for action in sampled_actions(env, count):
        pairs.append((observation, action))
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()
    env.close()
    return pairs


def reports(env: gym.Env[Any, Any], actions: list[Any]) -> list[tuple[float, ...]]:
    """What a wrapper adds to the info of every step."""
    rows = []
    env.reset(seed=SEED)
    for action in actions:
        _, _, terminated, truncated, info = env.step(action)
        rows.append(tuple(info[key] for key in KEYS))
        if terminated or truncated:
            env.reset()
    env.close()
    return rows


def peer(tracker: type[NumpyTracker | PythonTracker], env: gym.Env[Any, Any]) -> PeerWrapper:
    """A peer's wrapper around an environment."""
    return PeerWrapper(env, tracker(env.observation_space, env.action_space))


def check_agreement(
    name: str, peers: tuple[type[NumpyTracker | PythonTracker], ...], steps: int
) -> float:
    """Plays one trajectory through the wrapper and its peers.

    Returns:
        The largest difference of any of the peers' numbers in any step.

    Raises:
        AssertionError: It is above the tolerance, or the comparison says nothing.
    """
    actions = sampled_actions(gym.make(name), steps)
    expected = reports(JointKLDivergenceWrapper(gym.make(name)), actions)
    assert steps > 2 * WINDOW, "the windows are never full"
    assert expected[-1][0] > 0.0, f"{name}: nothing to compare"
    largest = 0.0
    for tracker in peers:
        got = reports(peer(tracker, gym.make(name)), actions)
        for step, (row, other) in enumerate(zip(got, expected, strict=True)):
            for key, a, b in zip(KEYS, row, other, strict=True):
                largest = max(largest, abs(a - b))
                assert abs(a - b) <= TOLERANCE, (
                    f"{name}, step {step}, {key}: {tracker.__name__} gives {a}, kl_proteus {b}"
                )
    return largest


def empty_bracket(count: int) -> float:
    """Nanoseconds that a bracket around nothing reads."""
    total = 0
    for _ in range(count):
        before = perf_counter_ns()
        after = perf_counter_ns()
        total += after - before
    return total / count


def play(env: gym.Env[Any, Any], actions: list[Any]) -> tuple[int, Any]:
    """Nanoseconds within `env.step`, and what identifies the trajectory."""
    step, total, rewards, observation = env.step, 0, 0.0, None
    for action in actions:
        before = perf_counter_ns()
        observation, reward, terminated, truncated, _info = step(action)
        after = perf_counter_ns()
        total += after - before
        rewards += float(reward)
        if terminated or truncated:
            env.reset()
    return total, (rewards, str(observation))


def wrapper_variants(make: Callable[[], gym.Env[Any, Any]]) -> dict[str, gym.Env[Any, Any]]:
    """Every wrapper around an environment of its own."""
    return {
        BARE: make(),
        PASS: PassThrough(make()),
        CONSTANT: ConstantKeys(make()),
        STATISTICS: RecordEpisodeStatistics(make()),
        OURS: JointKLDivergenceWrapper(make()),
        PYTHON: peer(PythonTracker, make()),
        NUMPY: peer(NumpyTracker, make()),
    }


def time_wrappers(
    title: str, make: Callable[[], gym.Env[Any, Any]], warm_up: int, steps: int, rounds: int
) -> None:
    """Times the wrappers on one environment and prints their table."""
    envs = wrapper_variants(make)
    actions = sampled_actions(make(), steps)
    trajectories: dict[int, Any] = {}

    def variant(env: gym.Env[Any, Any]) -> Callable[[int], float]:
        own_play = harness.own_copy(play)
        for number in range(warm_up // steps + 1):
            env.reset(seed=SEED + number)
            own_play(env, actions)

        def part(start: int) -> None:
            if start == 0:
                env.reset()
            own_play(env, actions[start : start + PART])

        def run(number: int) -> float:
            harness.lead_in(part, range(0, steps, PART))
            env.reset(seed=number)
            total, trajectory = own_play(env, actions)
            assert trajectories.setdefault(number, trajectory) == trajectory, "not the same run"
            return total / steps - empty_bracket(steps)

        return run

    samples = harness.interleave({name: variant(env) for name, env in envs.items()}, rounds)
    for env in envs.values():
        env.close()
    overheads = {
        name: harness.differences(values, samples[BARE]) for name, values in samples.items()
    }
    median = {name: statistics.median(values) for name, values in overheads.items()}
    resolved = median[PASS] > 2 * harness.median_error(overheads[PASS])

    rows = []
    for name, values in samples.items():
        step, overhead = statistics.median(values), median[name]
        if name == BARE:
            rows.append([name, f"{step:,.0f}", *["-"] * 6])
            continue
        low, high = harness.quartiles(overheads[name])
        rows.append(
            [
                name,
                f"{step:,.0f}",
                f"{overhead:+,.0f}",
                f"{low:+,.0f} to {high:+,.0f}",
                f"{harness.median_ratio(values, samples[BARE]):.3f}",
                f"{100 * overhead / step:.1f} %",
                f"{overhead / median[PASS]:,.1f}" if resolved else "-",
                f"{overhead / median[OURS]:,.2f}" if resolved or name != PASS else "-",
            ]
        )
    print(f"\n## {title}: per env.step, {steps} steps a round, {rounds} rounds\n")
    harness.print_table(
        [
            "variant",
            "step, ns",
            "overhead, ns",
            "quartiles",
            "step / bare",
            "share of its step",
            "overhead / pass-through",
            "overhead / ours",
        ],
        rows,
    )


def time_trackers(name: str, warm_up: int, steps: int, rounds: int) -> None:
    """Times the trackers alone, from a list of pairs, and prints their table."""
    pairs = record(name, warm_up + (rounds + 1) * steps + 1)
    env = gym.make(name)
    spaces = env.observation_space, env.action_space
    layouts = layout_from_space(spaces[0], "observation"), layout_from_space(spaces[1], "action")
    env.close()
    whole, split = PairTracker(*layouts, window=WINDOW), PairTracker(*layouts, window=WINDOW)
    python, plain = PythonTracker(*spaces), NumpyTracker(*spaces)
    choose, advance = split.choose, split.advance
    # An action is chosen on an observation and the tracker advances to the next one.
    turns = [(following, action) for (_, action), (following, _) in pairwise(pairs)]
    split.observe(pairs[0][0])
    for pair, (following, action) in zip(pairs[:warm_up], turns, strict=False):
        results = [t.update(*pair) for t in (whole, python, plain)]
        choose(action)
        results.append(advance(following))
        for result in results[1:]:
            # The peers have no noise floor.
            same = zip(result[: len(KEYS)], results[0][: len(KEYS)], strict=True)
            assert all(abs(a - b) <= TOLERANCE for a, b in same), (
                f"{name}: {result} is not {results[0]}"
            )

    def updates(pairs: list[Pair], update: Callable[[Any, Any], Any]) -> int:
        before = perf_counter_ns()
        for observation, action in pairs:
            update(observation, action)
        return perf_counter_ns() - before

    def two_calls(turns: list[Pair]) -> int:
        before = perf_counter_ns()
        for following, action in turns:
            choose(action)
            advance(following)
        return perf_counter_ns() - before

    def nothing(pairs: list[Pair]) -> int:
        before = perf_counter_ns()
        for _observation, _action in pairs:
            pass
        return perf_counter_ns() - before

    def variant(
        loop: Callable[..., int], pairs: list[Pair], *functions: Any
    ) -> Callable[[int], float]:
        own_loop = harness.own_copy(loop)

        def run(number: int) -> float:
            start = warm_up + number * steps
            earlier = pairs[start : start + steps]
            played = pairs[start + steps : start + 2 * steps]

            def part(first: int) -> None:
                own_loop(earlier[first : first + PART], *functions)

            harness.lead_in(part, range(0, steps, PART))
            empty = nothing(played)
            return (own_loop(played, *functions) - empty) / steps

        return run

    native = "PairTracker.update"
    samples = harness.interleave(
        {
            native: variant(updates, pairs, whole.update),
            "PairTracker.choose + advance": variant(two_calls, turns),
            PYTHON: variant(updates, pairs, python.update),
            NUMPY: variant(updates, pairs, plain.update),
        },
        rounds,
    )
    print(f"\n## {name}: tracker alone, per pair, {steps} pairs a round, {rounds} rounds\n")
    harness.print_table(
        ["tracker", "pair, ns", "pair / PairTracker.update"],
        [
            [
                tracker,
                f"{statistics.median(values):,.0f}",
                f"{harness.median_ratio(values, samples[native]):,.2f}",
            ]
            for tracker, values in samples.items()
        ],
    )


def main() -> None:
    """Checks, times and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=201, help="rounds of each table")
    parser.add_argument("--quick", action="store_true", help="a smoke run of 3 rounds")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    harness.start_clean()
    harness.refuse_debug_build()

    rounds = min(arguments.rounds, 3) if arguments.quick else arguments.rounds
    steps = 20 if arguments.quick else 200
    warm_up = 2 * WINDOW + 100

    harness.print_heading("Cost of JointKLDivergenceWrapper")
    for name in ENVIRONMENTS:
        largest = check_agreement(name, (PythonTracker, NumpyTracker), warm_up)
        print(f"* {name}: the peers agree with kl_proteus, largest difference {largest:.1e}")
    for name in ENVIRONMENTS:
        time_wrappers(name, lambda name=name: gym.make(name), warm_up, steps, rounds)
    source, pairs = gym.make(REPLAYED), record(REPLAYED, RECORDED)
    time_wrappers(
        f"{REPLAYED} played back, no simulator",
        lambda: Replay(source, pairs, steps),
        warm_up,
        steps,
        rounds,
    )
    for name in ENVIRONMENTS:
        time_trackers(name, warm_up, steps, rounds)


if __name__ == "__main__":
    main()
