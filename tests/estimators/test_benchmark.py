"""The benchmark runs and prints every table; no test is timed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kl_proteus._core import DEBUG_BUILD

SCRIPT = Path(__file__).parents[2] / "benches" / "tokens.py"


@pytest.mark.skipif(DEBUG_BUILD, reason="a debug build is not timed")
def test_a_quick_run_prints_every_table():
    command = [sys.executable, str(SCRIPT), "--quick", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    titles = re.findall(r"^## (.*)$", done.stdout, re.MULTILINE)
    assert len(titles) == 12
    ratios = re.findall(r"^\| kl_proteus .*\| +1\.00 \|$", done.stdout, re.MULTILINE)
    assert len(ratios) == len(titles)
