"""The benchmark of models runs and prints every variant. No test is timed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kl_proteus._core import DEBUG_BUILD

BENCHES = Path(__file__).parents[2] / "benches"


@pytest.mark.skipif(DEBUG_BUILD, reason="a debug build is not timed")
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_quick_run_prints_every_variant():
    done = subprocess.run(
        [sys.executable, str(BENCHES / "torch_logprobs.py"), "--quick", "--dtypes", "bfloat16"],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    titles = [section.splitlines()[0] for section in done.stdout.split("\n## ")[1:]]
    assert [title[0] for title in titles] == ["A", "B", "B", "C", "C"]
    for name in ("naive log-softmax + gather", "TRL selective_log_softmax", "kl_proteus, 1 MB"):
        assert done.stdout.count(f"| {name} ") == 3
    assert done.stdout.count("| kl_proteus full_kl ") == 2
