"""False alarms and delays of `DriftDetector`, beside river's drift detectors.

    sh scripts/uv run --extra dev --extra bench python benches/drift_detectors.py [--quick]

1. No change. Each stream is cut into runs of 64 windows; a fresh detector takes its reference and
   calibration from the first 24 and watches the other 40. "allowed" is the number of windows
   watched over the spacing asked for; a row holds where the alarms are at most
   allowed + 2 sqrt(allowed), the counting error of independent alarms.
2. A change. The stream changes every 5000 steps, there and back. The first four of the five windows
   before a change are the reference, the fifth fills the window, the calibration is that of a run
   of the unchanged stream, and there are 4000 steps to find the change. Reported: the share found
   and the median delay (a change that is missed counts as infinite).
3. The cause. The share of changes that each part alone finds, at the threshold it has beside the
   other.

Nothing is timed; the same seed gives the same table on one platform.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import drift_streams as streams
from drift_streams import Recorded, Scenario, Stream
from harness import print_heading, print_table

from kl_proteus import DriftDetector

WINDOW = 1000
WARM_UP = 24
WATCHED = 40
SEGMENT = 5 * WINDOW
HORIZON = 4 * WINDOW
TARGETS = (30, 100)
DELAY_TARGET = 50
# At the correction for two parts, one part alone gets this fraction of the false alarms.
ALONE = 2 ** (1 / 1.32)
QUICK_STREAMS = ("CartPole, random", "MountainCar, eps 0.1", "Taxi, random")
QUICK_CHANGES = ("CartPole 1 -> 0", "MountainCar 1 -> 0.7")
# Median delays of the prototype with the same rule, in steps; None where under half were found.
PROTOTYPE = {
    "CartPole 1 -> 0": 188,
    "CartPole 1 -> 0.7": 588,
    "CartPole 0.1 -> 0.2": None,
    "MountainCar 1 -> 0": 175,
    "MountainCar 1 -> 0.7": 475,
    "MountainCar 0.1 -> 0.2": 675,
}

Parts = tuple[str, ...]
BOTH: Parts = ("observation", "policy")


def alarms_without_change(recorded: Recorded, spacing: float, **options: object) -> tuple[int, int]:
    """The false alarms of fresh detectors on the runs of a stream, and the windows they watched."""
    alarms = watched = 0
    run = (WARM_UP + WATCHED) * WINDOW
    for start in range(0, len(recorded) - run + 1, run):
        detector = DriftDetector(spacing * WINDOW, window=WINDOW, **options)
        part = slice(start, start + run)
        detector.update_many(recorded.observations[part], recorded.actions[part])
        alarms += detector.alarm_count
        watched += WATCHED
    return alarms, watched


def holds(alarms: int, allowed: float) -> bool:
    """Whether so many alarms are no more than asked, within twice the counting error."""
    return alarms <= allowed + 2 * math.sqrt(allowed)


def calibrations(recorded: Recorded, **options: object) -> list[dict]:
    """What detectors learn from the runs of an unchanged stream, one every 24 windows."""
    found = []
    run = WARM_UP * WINDOW
    for start in range(0, len(recorded) - run + 1, run):
        detector = DriftDetector(window=WINDOW, **options)
        part = slice(start, start + run)
        detector.update_many(recorded.observations[part], recorded.actions[part])
        found.append(detector.reference()["calibration"])
    return found


def delays(
    changing: Recorded, learned: list[dict], spacing: float, **options: object
) -> list[float]:
    """Steps from each change to the first alarm after it, infinite where there is none."""
    found = []
    changes = range(SEGMENT, len(changing) - HORIZON + 1, 2 * SEGMENT)
    for number, change in enumerate(changes):
        collector = DriftDetector(window=WINDOW)
        part = slice(change - SEGMENT, change - WINDOW)
        collector.update_many(changing.observations[part], changing.actions[part])
        reference = collector.reference() | {"calibration": learned[number % len(learned)]}
        detector = DriftDetector(spacing * WINDOW, window=WINDOW, reference=reference, **options)
        part = slice(change - WINDOW, change + HORIZON)
        alarms = detector.update_many(changing.observations[part], changing.actions[part])
        late = [alarm.step - WINDOW for alarm in alarms if alarm.step > WINDOW]
        found.append(float(late[0]) if late else math.inf)
    return found


def share_found(found: list[float]) -> float:
    """The share of changes that were found."""
    return sum(map(math.isfinite, found)) / len(found)


def delay_text(found: list[float]) -> str:
    """The median delay, and the share found where that is not all."""
    median, share = statistics.median(found), share_found(found)
    text = f"{median:,.0f}" if math.isfinite(median) else "-"
    return text if share >= 0.98 else f"{text} ({share:.0%})"


def table_of_false_alarms(names: Iterable[Stream], play: Callable[[Stream], Recorded]) -> bool:
    """Prints the spacing of false alarms; whether every row holds."""
    rows, everything = [], True
    for stream in names:
        recorded = play(stream)
        row = [stream.name, "yes" if stream.chosen_on else "no"]
        for target in TARGETS:
            for fast in (False, True):
                alarms, watched = alarms_without_change(recorded, target, fast=fast)
                good = holds(alarms, watched / target)
                everything &= good or fast
                spacing = f"{watched / alarms:,.0f}" if alarms else f"> {watched:,}"
                row.append(f"{alarms} of {watched / target:.1f}, {spacing}{'' if good else ' (!)'}")
        rows.append(row)
        print(f"... {stream.name}", file=sys.stderr)
    head = ["stream, 10 bins, W = 1000", "constants from it"]
    for target in TARGETS:
        head += [f"asked {target} W", f"asked {target} W, fast"]
    print("\n## False alarms without change: alarms of those allowed, spacing in windows\n")
    print_table(head, rows)
    return everything


def table_of_delays(
    changes: Iterable[Scenario],
    play: Callable[[Stream], Recorded],
    play_change: Callable[[Scenario], Recorded],
) -> dict[str, dict[str, list[float]]]:
    """Prints share and delay of each change; returns the delays by change and detector."""
    detectors: dict[str, dict] = {
        "DriftDetector": {},
        "DriftDetector, fast": {"fast": True},
        "observation part alone": {"parts": ("observation",)},
        "policy part alone": {"parts": ("policy",)},
    }
    found: dict[str, dict[str, list[float]]] = {}
    for scenario in changes:
        learned = calibrations(play(scenario.before))
        changing = play_change(scenario)
        found[scenario.name] = {
            name: delays(
                changing,
                learned,
                DELAY_TARGET * (ALONE if "parts" in options else 1.0),
                **options,
            )
            for name, options in detectors.items()
        }
        print(f"... {scenario.name}", file=sys.stderr)
    print(f"\n## Delay in steps (share found within {HORIZON}), asked {DELAY_TARGET} W\n")
    rows = []
    for name, results in found.items():
        prototype = PROTOTYPE.get(name)
        rows.append(
            [
                name,
                str(len(results["DriftDetector"])),
                *(delay_text(results[detector]) for detector in detectors),
                "-" if prototype is None else str(prototype),
            ]
        )
    print_table(["change", "changes", *detectors, "prototype"], rows)
    chance = 1 - math.exp(-HORIZON / (DELAY_TARGET * WINDOW))
    print(f"\nBy chance alone {chance:.0%} are found.")
    return found


def main() -> None:
    """Runs the study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three streams and two changes")
    parser.add_argument("--steps", type=int, default=1_500_000, help="pairs of a stream")
    parser.add_argument("--changes", type=int, default=100, help="changes of a kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-peers", action="store_true", help="leave river out")
    parser.add_argument("--kswin", action="store_true", help="river's KSWIN too: slow")
    parser.add_argument("--keep", type=Path, help="directory that keeps what was played")
    arguments = parser.parse_args()
    seed = arguments.seed
    no_change, changes = streams.NO_CHANGE, streams.POLICY_CHANGES + streams.PHYSICS_CHANGES
    steps, number = arguments.steps, arguments.changes
    if arguments.quick:
        no_change = tuple(s for s in no_change if s.name in QUICK_STREAMS)
        changes = tuple(c for c in changes if c.name in QUICK_CHANGES)
        steps, number = min(steps, 320_000), min(number, 20)
    played: dict[str, Recorded] = {}

    def play(stream: Stream) -> Recorded:
        for known in streams.NO_CHANGE:
            # The same stream under another name.
            if (known.env_id, known.eps, known.options) == (
                stream.env_id,
                stream.eps,
                stream.options,
            ) and (known.rule is stream.rule or stream.eps == 1.0):
                stream = known
        if stream.name not in played:
            played[stream.name] = streams.cached(arguments.keep, stream, steps, seed)
        return played[stream.name]

    def play_change(scenario: Scenario) -> Recorded:
        length = 2 * SEGMENT * number
        return streams.cached(arguments.keep, scenario.before, length, seed + 1, scenario, SEGMENT)

    print_heading("Drift detectors")
    start = time.perf_counter()
    good = table_of_false_alarms(no_change, play)
    table_of_delays(changes, play, play_change)
    if not (arguments.quick or arguments.no_peers):
        import drift_peers

        drift_peers.table(streams.POLICY_CHANGES, play, play_change, arguments.kswin)
    print(f"\n... {time.perf_counter() - start:.0f} s", file=sys.stderr)
    if not good:
        sys.exit("false alarms came more often than asked")


if __name__ == "__main__":
    main()
