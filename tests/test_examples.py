"""Every script in examples/ runs and shows what it is about."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def run(path, folder):
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    assert run(path, tmp_path)


def test_the_change_of_policy_shows(tmp_path):
    script = next(path for path in EXAMPLES if path.stem == "watch_a_policy_change")
    rows = re.findall(r"^ *(\d+) +(\S+)", run(script, tmp_path), re.MULTILINE)
    joint = {int(step): float(value) for step, value in rows}
    assert max(joint[step] for step in (2000, 2500, 3000, 3500, 4000)) < 0.6
    assert joint[5000] > 1.5


def test_the_reference_tells_the_policies_apart(tmp_path):
    script = next(path for path in EXAMPLES if path.stem == "compare_with_a_reference")
    rows = re.findall(r"^(\w[\w ]*?) {2,}(\d\S+)", run(script, tmp_path), re.MULTILINE)
    joint = {name: float(value) for name, value in rows}
    assert joint["random"] < 0.6 < 1.5 < joint["always right"]
    assert joint["balances the pole"] > 1.5
