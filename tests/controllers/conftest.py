"""Golden files, and the Hypothesis profiles of the other suite."""

import json
from pathlib import Path

import pytest

import drift.conftest  # noqa: F401  registers and loads the profile

ROOT = Path(__file__).parents[2]


def golden_file(name):
    """A golden file: beside the checkout where it lies there, else the copy in the tests."""
    beside = ROOT.parent / "shared" / "golden" / name
    path = beside if beside.exists() else ROOT / "tests" / "golden" / name
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def golden_rules():
    """Traces and edge cases of the published rules."""
    return golden_file("controllers.json")


@pytest.fixture(scope="session")
def golden_drop_in():
    """What the drop-in names return."""
    return golden_file("kl_controller.json")
