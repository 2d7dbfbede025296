"""Random detectors, and streams of a few cells that change once or twice."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Pair = tuple[int, int]


@dataclass(frozen=True)
class Watch:
    """The arguments of a detector, and the pairs it is fed."""

    settings: dict[str, Any]
    pairs: list[Pair]


@st.composite
def settings(draw: st.DrawFn) -> dict[str, Any]:
    """Small windows, so that every phase is short."""
    window = draw(st.integers(1, 8))
    parts = draw(st.permutations(["observation", "policy", "joint"]))
    return {
        # From asking for many to asking for none.
        "false_alarm_every": draw(st.sampled_from([1, 1, 20, 50.5, 300, 1e4, 1e15])),
        "reference_windows": draw(st.integers(1, 3)),
        "calibration_windows": draw(st.integers(2, 6)),
        "parts": parts[: draw(st.integers(1, 3))],
        "every": draw(st.none() | st.integers(1, window)),
        "window": window,
        "fast": draw(st.booleans()),
        "epsilon": draw(st.sampled_from([0.5, 0.01, 3.0])),
        "max_alarms": draw(st.sampled_from([1, 3, 1000])),
    }


@st.composite
def regimes(draw: st.DrawFn, length: int, shift: int) -> list[Pair]:
    """Some pairs in random order, or over and over in the same one."""
    pair = st.tuples(st.integers(shift, shift + 2), st.integers(0, 2))
    pool = draw(st.lists(pair, min_size=1, max_size=5))
    if draw(st.booleans()):
        return [pool[i % len(pool)] for i in range(length)]
    choices = draw(st.lists(st.sampled_from(pool), min_size=length, max_size=length))
    return list(choices)


@st.composite
def watches(draw: st.DrawFn) -> Watch:
    """A detector and a stream that changes, usually after the calibration."""
    chosen = draw(settings())
    window = chosen["window"]
    warm_up = (chosen["reference_windows"] + chosen["calibration_windows"]) * window
    pairs = draw(regimes(warm_up + draw(st.integers(-window, window)), 0))
    for _ in range(draw(st.integers(1, 2))):
        pairs += draw(regimes(draw(st.integers(1, 3 * window)), draw(st.sampled_from([0, 2, 5]))))
    return Watch(chosen, pairs)
