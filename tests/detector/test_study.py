"""A seeded part of the study of false alarms and delays, and the benchmark of the cost."""

import importlib
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHES = Path(__file__).parents[2] / "benches"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHES))
    return importlib.import_module("drift_detectors")


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHES / script), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env=dict(os.environ),
        check=False,
    )


def test_false_alarms_are_no_more_than_asked(study):
    for stream in study.streams.NO_CHANGE:
        if stream.name not in study.QUICK_STREAMS:
            continue
        recorded = study.streams.play(stream, 256_000, seed=1)
        for spacing in study.TARGETS:
            alarms, watched = study.alarms_without_change(recorded, spacing)
            assert watched == 160
            assert study.holds(alarms, watched / spacing), (stream.name, spacing, alarms)


def test_changes_are_found(study):
    for scenario in study.streams.POLICY_CHANGES:
        if scenario.name not in study.QUICK_CHANGES:
            continue
        learned = study.calibrations(study.streams.play(scenario.before, 192_000, seed=1))
        assert len(learned) == 8
        changing = study.streams.play(scenario.before, 160_000, 2, scenario, segment=study.SEGMENT)
        found = study.delays(changing, learned, study.DELAY_TARGET)
        assert len(found) == 16
        assert study.share_found(found) >= 0.85
        # The median of few changes: twice that of the prototype is far outside its error.
        assert statistics.median(found) <= 2 * study.PROTOTYPE[scenario.name]


def test_no_more_than_twice_the_counting_error(study):
    assert study.holds(0, 0.0)
    assert study.holds(13, 7.0 + 1.0)
    assert not study.holds(14, 8.0)
    assert study.delay_text([100.0, 300.0, math.inf]) == "300 (67%)"
    assert study.delay_text([100.0, math.inf, math.inf]) == "- (33%)"


def test_the_study_runs_as_one_command():
    done = run("drift_detectors.py", "--quick", "--steps", "64000", "--changes", "1")
    assert "## False alarms without change" in done.stdout, done.stderr
    assert "| MountainCar, eps 0.1 " in done.stdout
    assert "## Delay in steps" in done.stdout


def test_the_benchmark_of_the_cost_runs():
    done = run("detector_cost.py", "--quick", "--rounds", "2")
    assert done.returncode == 0, done.stderr
    assert "| core, DriftDetector(fast=True) " in done.stdout
