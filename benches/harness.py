"""Interleaved timing of variants, ratios within a run, and plain tables.

Absolute times of a shared machine mean little. Every variant is timed once per round, the rounds
start at another variant each time, and what is reported are medians over rounds, so that a slow
spell meets all variants alike.
"""

import datetime
import gc
import importlib.metadata
import math
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter_ns
from types import FunctionType
from typing import Any

# Pins of the linear algebra library slow NumPy down on machines they were not meant for.
BLAS_PINS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
# Nanoseconds.
LEAD_IN = 300_000


def start_clean() -> None:
    """Starts this process again without what would put NumPy at a disadvantage."""
    pins = [name for name in BLAS_PINS if os.environ.pop(name, None) is not None]
    if pins:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def refuse_debug_build() -> None:
    """Exits where the native module was built without optimisation."""
    from kl_proteus import _core

    if _core.DEBUG_BUILD:
        sys.exit("kl_proteus is a debug build; build it in release mode to time it")


def interleave(variants: dict[str, Callable[[int], float]], rounds: int) -> dict[str, list[float]]:
    """Times every variant once a round; a variant gets the round's number.

    Returns:
        For each variant what it returned, one number a round.
    """
    samples: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants.items())
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            start = number % len(order)
            for name, run in order[start:] + order[:start]:
                samples[name].append(run(number))
            gc.collect()
    finally:
        gc.enable()
    return samples


def own_copy(function: FunctionType) -> FunctionType:
    """The same function with inline caches of its own.

    A program calls one environment or tracker again and again, and the interpreter adapts the call
    to it. A loop that variants share would be adapted to another variant's types.
    """
    return FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


def lead_in(run: Callable[[int], Any], parts: Iterable[int]) -> None:
    """Runs the parts again and again for a while, untimed.

    Caches are then filled with what the variant needs, whichever variant ran before.
    """
    end = perf_counter_ns() + LEAD_IN
    while True:
        for part in parts:
            run(part)
            if perf_counter_ns() >= end:
                return


def differences(samples: Sequence[float], base: Sequence[float]) -> list[float]:
    """By how much each round exceeds the base in the same round."""
    return [sample - other for sample, other in zip(samples, base, strict=True)]


def median_ratio(samples: Sequence[float], base: Sequence[float]) -> float:
    """The median over rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(samples, base, strict=True))


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    """The first and the third quartile."""
    ordered = sorted(samples)
    return ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]


def median_error(samples: Sequence[float]) -> float:
    """A standard error of the median, from the quartiles, so that outliers do not count."""
    low, high = quartiles(samples)
    return 0.93 * (high - low) / math.sqrt(len(samples))


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a Markdown table with aligned columns."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]

    def text(line: Sequence[str]) -> str:
        first, *rest = zip(line, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
        return "| " + " | ".join(cells) + " |"

    print(text(lines[0]))
    print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    for line in lines[1:]:
        print(text(line))
    sys.stdout.flush()


def cpu_model() -> str:
    """What the processor calls itself."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def print_heading(title: str) -> None:
    """Prints what a reader needs to judge and repeat the numbers."""
    packages = ("numpy", "gymnasium", "kl-proteus")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    script = Path(sys.argv[0])
    command = " ".join([f"{script.parent.name}/{script.name}", *sys.argv[1:]])
    print(f"# {title}\n")
    print(f"* machine: {os.cpu_count()} cores, {cpu_model()}, {platform.machine()}")
    print(f"* Python {platform.python_version()}, {versions}")
    print(f"* date: {datetime.datetime.now(tz=datetime.UTC).date()}")
    print(f"* command: sh scripts/uv run --extra dev python {command}")
