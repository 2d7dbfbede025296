"""The check of the test report: what CI must not mistake for success."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "check_test_report.py"


@pytest.fixture(scope="module")
def check():
    specification = importlib.util.spec_from_file_location("check_test_report", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def report(folder, files, only="tests"):
    """Runs pytest over some files, and returns where its report and the tests are."""
    for name, text in files.items():
        path = folder / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = os.environ | {"PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--junitxml=report.xml", only]
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=60)
    return folder / "report.xml", folder / "tests"


GOOD = {
    "test_plain.py": "def test_one():\n    pass\n",
    "more/test_class.py": "class TestTwo:\n    def test_two(self):\n        pass\n",
    "more/test_platform.py": (
        "import pytest\n\ndef test_here():\n    pass\n\n"
        "@pytest.mark.skip(reason='needs another system')\ndef test_there():\n    pass\n"
    ),
}
ABSENT = "import pytest\npytest.importorskip('torch_is_not_here')\n\ndef test_three():\n    pass\n"
HALF = (
    "import pytest\n# import torch\n\ndef test_here():\n    pass\n\n"
    "def test_there():\n    pytest.skip('too slow')\n"
)
INSIDE = (
    "import pytest\n\ndef test_here():\n    pass\n\n"
    "def test_there():\n    pytest.importorskip('nowhere_to_be_found')\n"
)


def test_a_complete_run_passes(check, tmp_path, capsys):
    paths = report(tmp_path, GOOD)
    assert check.problems(*paths) == []
    assert check.main(*map(str, paths)) == 0
    assert "every file of tests ran" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (ABSENT, "no test ran"),
        (HALF, "skipped test_there: too slow"),
        (INSIDE, "skipped test_there: could not import 'nowhere_to_be_found'"),
        ("", "no test ran"),
    ],
)
def test_what_did_not_run_is_found(text, found, check, tmp_path):
    paths = report(tmp_path, GOOD | {"test_bad.py": text})
    (line,) = check.problems(*paths)
    assert line.startswith(f"tests/test_bad.py: {found}")
    assert check.main(*map(str, paths)) == 1


def test_a_folder_that_was_left_out_is_found(check, tmp_path):
    paths = report(tmp_path, GOOD, only="tests/test_plain.py")
    assert [line.split(":")[0] for line in check.problems(*paths)] == [
        "tests/more/test_class.py",
        "tests/more/test_platform.py",
    ]
