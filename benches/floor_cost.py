"""What the noise floor and the excess cost: this build of the core against an earlier one.

    python benches/floor_cost.py --before PATH_OF_AN_OLDER/_core.abi3.so

Both builds are loaded into one process and count the same pairs in full windows, in interleaved
rounds. A build that has the floor is compared with one that has not; with `--before` the installed
one, the ratio is that of noise.
"""

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from types import ModuleType
from typing import Any

import harness
import numpy as np

from kl_proteus import _core

# Window and occupied cells: the first ones stay in the nearest cache, the last one in none.
CASES = ((1_000, 30), (1_000, 300), (1_000, 2_000), (100_000, 300), (100_000, 20_000))
PART = 50


def load(path: Path) -> ModuleType:
    """Another build of the native module, beside the installed one."""
    spec = importlib.util.spec_from_file_location("kl_proteus._core", path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} is no native module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tracker_of(core: ModuleType, cells: int, window: int) -> Any:
    """A tracker of `cells` observations and two actions, with nothing that one build lacks."""
    observation = core.Layout.categories("observation", [], [0], [cells])
    action = core.Layout.categories("action", [], [0], [2])
    try:
        return core.PairTracker(observation, action, window=window, axis_histograms=False)
    except TypeError:  # an older build keeps no histograms
        return core.PairTracker(observation, action, window=window)


def stream(cells: int, length: int) -> list[tuple[int, int]]:
    """Independent pairs, some cells more frequent than others."""
    rng = np.random.default_rng(1)
    weights = np.arange(1, cells + 1) ** -0.5
    observations = rng.choice(cells, length, p=weights / weights.sum())
    return list(zip(observations.tolist(), rng.integers(0, 2, length).tolist(), strict=True))


def time_case(
    builds: dict[str, ModuleType], window: int, cells: int, steps: int, rounds: int
) -> list[str]:
    """The row of a case."""
    pairs = stream(cells, 2 * window + (rounds + 1) * steps)

    def updates(update: Callable[[Any, Any], Any], pairs: list[tuple[int, int]]) -> int:
        before = perf_counter_ns()
        for observation, action in pairs:
            update(observation, action)
        return perf_counter_ns() - before

    def variant(core: ModuleType) -> Callable[[int], float]:
        tracker = tracker_of(core, cells, window)
        own_loop = harness.own_copy(updates)
        own_loop(tracker.update, pairs[: 2 * window])

        def run(number: int) -> float:
            start = 2 * window + number * steps
            own_loop(tracker.update, pairs[start : start + PART])
            played = pairs[start + PART : start + steps]
            return own_loop(tracker.update, played) / len(played)

        return run

    samples = harness.interleave({name: variant(core) for name, core in builds.items()}, rounds)
    now, earlier = samples["this build"], samples["earlier build"]
    ratios = [a / b for a, b in zip(now, earlier, strict=True)]
    low, high = harness.quartiles(ratios)
    return [
        f"{window:,}",
        f"{cells:,}",
        f"{statistics.median(earlier):,.0f}",
        f"{statistics.median(now):,.0f}",
        f"{statistics.median(ratios):.3f}",
        f"{low:.3f} to {high:.3f}",
    ]


def main() -> None:
    """Times and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="a native module to compare")
    parser.add_argument("--rounds", type=int, default=201, help="rounds of each case")
    parser.add_argument("--steps", type=int, default=1_000, help="pairs of a round")
    arguments = parser.parse_args()
    harness.start_clean()
    harness.refuse_debug_build()
    builds = {"earlier build": load(arguments.before), "this build": _core}
    harness.print_heading("Cost of the noise floor: PairTracker.update, per pair")
    print()
    rows = [
        time_case(builds, window, cells, arguments.steps, arguments.rounds)
        for window, cells in CASES
    ]
    harness.print_table(
        ["window", "observations", "earlier, ns", "this, ns", "this / earlier", "quartiles"], rows
    )


if __name__ == "__main__":
    main()
