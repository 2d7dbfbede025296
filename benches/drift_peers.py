"""river's drift detectors on one scalar of the stream, each at its best setting.

They watch a number, so somebody has to choose one: the action, the last axis of the observation, or
its absolute value (which is what moves in these changes). For each, the first setting of a grid,
from the most sensitive, with at most the false alarms asked for on an unchanged stream is taken.
"""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from drift_streams import Recorded, Scenario, Stream
from harness import print_table

CALIBRATION = 500_000
SPACING = 50_000
SEGMENT, HORIZON = 5000, 4000
# An update of KSWIN sorts its window and costs a millisecond: it sees every tenth pair only.
THINNED = 10
Make = Callable[[Any, float], Any]
PEERS: dict[str, tuple[int, Sequence[float], Make]] = {
    "ADWIN": (
        1,
        (2e-3, 1e-4, 1e-6, 1e-9, 1e-13, 1e-18, 1e-30),
        lambda drift, delta: drift.ADWIN(delta=delta),
    ),
    "PageHinkley": (
        1,
        (2, 5, 10, 20, 50, 100, 200, 400, 800),
        lambda drift, threshold: drift.PageHinkley(threshold=threshold),
    ),
    "KSWIN, every tenth pair": (
        THINNED,
        (5e-3, 1e-4, 1e-6, 1e-9, 1e-12),
        lambda drift, alpha: drift.KSWIN(alpha=alpha, window_size=100, stat_size=30, seed=1),
    ),
}
SIGNALS: dict[str, Callable[[Recorded], np.ndarray]] = {
    "the action": lambda recorded: recorded.action_values,
    "the last axis": lambda recorded: recorded.last_axis,
    "abs(the last axis)": lambda recorded: np.abs(recorded.last_axis),
}


def alarms(detector: Any, values: list[float], most: float) -> int:
    """The alarms on a stream; counting stops beyond `most`."""
    found = 0
    for value in values:
        detector.update(value)
        if detector.drift_detected:
            found += 1
            if found > most:
                break
    return found


def delay(detector: Any, before: list[float], after: list[float]) -> float:
    """Updates after a change until the first alarm; infinite without one."""
    for value in before:
        detector.update(value)
    for number, value in enumerate(after, 1):
        detector.update(value)
        if detector.drift_detected:
            return float(number)
    return math.inf


def row(peer: str, signal: str, unchanged: Recorded, changing: Recorded) -> tuple[str, str]:
    """The setting that keeps the rate of false alarms, and the delays with it."""
    from river import drift

    thinned, grid, make = PEERS[peer]
    steps = min(CALIBRATION, len(unchanged)) // (4 if thinned > 1 else 1)
    values = SIGNALS[signal](unchanged)[:steps:thinned].tolist()
    most = steps / SPACING
    setting = next((s for s in grid if alarms(make(drift, s), values, most) <= most), None)
    if setting is None:
        return "none", "-"
    moving = SIGNALS[signal](changing)
    found = []
    for change in range(SEGMENT, len(moving) - HORIZON + 1, 2 * SEGMENT):
        before = moving[change - 4 * 1000 : change : thinned].tolist()
        after = moving[change : change + HORIZON : thinned].tolist()
        found.append(thinned * delay(make(drift, setting), before, after))
    median = float(np.median(found))
    share = sum(map(math.isfinite, found)) / len(found)
    text = f"{median:,.0f}" if math.isfinite(median) else "-"
    return f"{setting:g}", text if share >= 0.98 else f"{text} ({share:.0%})"


def table(
    changes: Iterable[Scenario],
    play: Callable[[Stream], Recorded],
    play_change: Callable[[Scenario], Recorded],
    kswin: bool,
) -> None:
    """Prints share and delay of each peer on each signal; KSWIN takes most of an hour."""
    changes = list(changes)
    rows = []
    for peer, (thinned, *_) in PEERS.items():
        if thinned > 1 and not kswin:
            continue
        for signal in SIGNALS:
            cells = []
            for scenario in changes:
                _, text = row(peer, signal, play(scenario.before), play_change(scenario))
                cells.append(text)
            rows.append([f"river {peer}, {signal}", *cells])
            print(f"... {rows[-1][0]}", file=sys.stderr)
    print(f"\n## Delay of river's detectors, at most one false alarm in {SPACING:,} steps\n")
    print_table(["detector and signal", *(scenario.name for scenario in changes)], rows)
