"""Every script in examples/ runs and shows what it is about."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
WITH_TRL = FOLDER / "grpo_with_kl_control.py"
WITH_SB3 = FOLDER / "sb3_ppo.py"
IN_ONE_FILE = FOLDER / "cleanrl_style_ppo.py"
EXAMPLES = sorted(set(FOLDER.glob("*.py")) - {WITH_TRL, WITH_SB3, IN_ONE_FILE})


def run(path, folder, *arguments, ignore=(), timeout=120):
    filters = [word for message in ignore for word in ("-W", f"ignore:{message}")]
    command = [sys.executable, "-W", "error", *filters, str(path), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout)
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


def test_the_controlled_run_settles_at_the_target(tmp_path):
    pytest.importorskip("trl")
    # TRL reads a property that transformers has renamed.
    renamed = "`is_gradient_checkpointing` is deprecated and will be removed in v6."
    shown = run(WITH_TRL, tmp_path, "--steps", "100", ignore=[renamed], timeout=280)
    rows = [
        list(map(float, line.split())) for line in shown.splitlines() if line[:6].strip().isdigit()
    ]
    assert [row[0] for row in rows] == [10 * i for i in range(1, 11)]
    last = rows[-3:]
    constant, controlled = (sum(row[i] for row in last) / 3 for i in (1, 4))
    assert 0.05 < controlled < 0.2  # the target is 0.1
    assert constant > 1.5 * controlled
    assert all(row[2] == 0.3 for row in rows)
    assert len({row[5] for row in rows}) > 5
    picture = (tmp_path / "kl_control.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


def table(shown):
    """Step and numbers of each line that starts with a step."""
    lines = [line.split() for line in shown.splitlines() if line[:7].strip().isdigit()]
    return [list(map(float, line)) for line in lines]


def assert_the_parts_add_up(rows, joint):
    for row in rows:
        assert row[joint] == pytest.approx(row[joint + 1] + row[joint + 2], abs=2e-3)
        assert row[joint] > 0


def test_stable_baselines3_logs_the_drift_while_it_learns(tmp_path):
    pytest.importorskip("stable_baselines3")
    shown = run(WITH_SB3, tmp_path, "--steps", "8192")
    rows = table(shown)
    assert [row[0] for row in rows] == [2048, 4096, 6144, 8192]
    assert_the_parts_add_up(rows, 2)
    assert rows[-1][1] > rows[0][1]
    assert "moved most: " in shown


def test_the_single_file_logs_the_drift_while_it_learns(tmp_path):
    pytest.importorskip("torch")
    shown = run(IN_ONE_FILE, tmp_path, "--steps", "16384")
    rows = table(shown)
    assert [row[0] for row in rows] == [8192, 16384]
    assert_the_parts_add_up(rows, 3)
    assert rows[-1][1] > 1.2 * rows[0][1]
    assert "moved most: " in shown
