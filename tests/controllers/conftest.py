"""Golden files."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def golden_file(name):
    """A golden file: beside the checkout where it lies there, else the copy in the tests."""
    beside = ROOT.parent / "shared" / "golden" / name
    path = beside if beside.exists() else ROOT / "tests" / "golden" / name
    return json.loads(path.read_text(encoding="utf-8"))
