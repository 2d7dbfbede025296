"""The benchmarks run, print every row, and refuse what they must not time. No test is timed."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kl_proteus._core import DEBUG_BUILD

BENCHES = Path(__file__).parents[1] / "benches"
ENVIRONMENTS = ("CartPole-v1", "FrozenLake-v1", "Pendulum-v1")
WRAPPERS = (
    "bare environment",
    "pass-through wrapper",
    "seven constant keys, info copied",
    "RecordEpisodeStatistics",
    "JointKLDivergenceWrapper",
    "smart Python tracker",
    "plain NumPy tracker",
)
TRACKERS = (
    "PairTracker.update",
    "PairTracker.choose + advance",
    "smart Python tracker",
    "plain NumPy tracker",
)


def run(*arguments: str, script: str = "wrapper_overhead.py") -> subprocess.CompletedProcess[str]:
    # The pins make NumPy slow; the script starts itself again without them.
    return subprocess.run(
        [sys.executable, str(BENCHES / script), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OPENBLAS_CORETYPE": "Haswell"},
        check=False,
    )


def tables(text: str) -> dict[str, list[str]]:
    """The first column of each table, by its title."""
    found: dict[str, list[str]] = {}
    for section in text.split("\n## ")[1:]:
        title, *lines = section.splitlines()
        rows = [line for line in lines if line.startswith("| ")]
        found[title] = [row.split("|")[1].strip() for row in rows[1:]]
    return found


def test_a_debug_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHES))
    monkeypatch.setattr("kl_proteus._core.DEBUG_BUILD", True)
    with pytest.raises(SystemExit, match="debug build"):
        importlib.import_module("harness").refuse_debug_build()


@pytest.mark.skipif(DEBUG_BUILD, reason="a debug build is not timed")
def test_a_quick_run_prints_every_row() -> None:
    result = run("--quick", "--rounds", "2")
    assert result.returncode == 0, result.stderr
    heading = result.stdout.partition("\n## ")[0]
    assert "benches/wrapper_overhead.py --quick --rounds 2" in heading
    for name in ENVIRONMENTS:
        assert f"{name}: the peers agree with kl_proteus" in heading
    found = tables(result.stdout)
    wrapped = [name for name, rows in found.items() if rows == list(WRAPPERS)]
    alone = [name for name, rows in found.items() if rows == list(TRACKERS)]
    for name in ENVIRONMENTS:
        assert any(title.startswith(f"{name}: per env.step") for title in wrapped)
        assert any(title.startswith(f"{name}: tracker alone") for title in alone)
    assert any("played back" in title for title in wrapped)
    assert len(found) == len(wrapped) + len(alone) == 7


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHES)
    import wrapper_overhead

    return wrapper_overhead


@pytest.mark.parametrize("key", ["kl_divergence", "kl_divergence_std", "kl_policy"])
def test_a_peer_with_another_answer_is_not_timed(bench: ModuleType, key: str) -> None:
    place = bench.KEYS.index(key)

    class Wrong(bench.PythonTracker):
        def update(self, observation: object, action: object) -> tuple[float, ...]:
            report = list(super().update(observation, action))
            report[place] += 2e-9
            return tuple(report)

    with pytest.raises(AssertionError, match=f"step 0, {key}: Wrong gives"):
        bench.check_agreement("FrozenLake-v1", (Wrong,), 2100)


@pytest.mark.skipif(DEBUG_BUILD, reason="benchmarks refuse a debug build")
def test_the_vector_wrappers_are_compared() -> None:
    done = run("--quick", "--sizes", "3", script="vector_overhead.py")
    assert done.returncode == 0, done.stderr
    assert "numbers of 4 rows are those of single wrappers, to the last bit" in done.stdout
    assert tables(done.stdout) == {
        "3 rows: per row and step, 10 steps a round, 3 rounds": [
            "bare CartPoleVectorEnv",
            "RecordEpisodeStatistics",
            "VectorJointKLDivergenceWrapper",
            "the same, pooled=True",
        ]
    }
