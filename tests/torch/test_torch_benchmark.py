"""The benchmark of models runs and prints every variant. No test is timed."""

import sys
from pathlib import Path

import pytest

from kl_proteus._core import DEBUG_BUILD

BENCHES = Path(__file__).parents[2] / "benches"
COMMAND = ("torch_logprobs.py", "--quick", "--dtypes", "bfloat16")


@pytest.mark.skipif(DEBUG_BUILD, reason="a debug build is not timed")
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_quick_run_prints_every_variant(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHES))
    import torch_logprobs

    # TRL takes longer to import than everything else.
    monkeypatch.setattr(torch_logprobs, "trl_selective", lambda: None)
    monkeypatch.setattr(torch_logprobs, "trl_fused", lambda: None)
    monkeypatch.setattr(sys, "argv", [*COMMAND, "--parts", "A", "C"])
    torch_logprobs.main()
    output = capsys.readouterr().out
    titles = [section.splitlines()[0] for section in output.split("\n## ")[1:]]
    assert [title[0] for title in titles] == ["A", "C", "C"]
    for name in ("naive log-softmax + gather", "kl_proteus, 1 MB", "row chunks, 16 MB"):
        assert output.count(f"| {name} ") == 1
    assert output.count("| kl_proteus full_kl ") == 2
