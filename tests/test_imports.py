"""What an import costs, what the package exports, and what the core keeps out."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import kl_proteus

RUST = Path(__file__).parents[1] / "rust" / "src"
HEAVY = {"torch", "transformers", "gymnasium", "tqdm"}
SOURCES = sorted(RUST.rglob("*.rs"))
WATCHED = """
import sys

class Watch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        print(name.partition(".")[0])

sys.meta_path.insert(0, Watch)
"""


def loaded_after(code: str) -> set[str]:
    """What a fresh interpreter looks for while it runs some code, installed or not."""
    command = [sys.executable, "-W", "error", "-c", WATCHED + code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_the_watch_sees_what_is_missing():
    assert "torch" in loaded_after("try:\n    import torch\nexcept ImportError:\n    pass")


def test_the_package_alone_loads_nothing_heavy():
    loaded = loaded_after("import kl_proteus")
    assert "kl_proteus" in loaded
    assert not loaded & HEAVY


def test_looking_at_the_package_loads_nothing_heavy():
    loaded = loaded_after("import kl_proteus\ndir(kl_proteus)\nkl_proteus.__version__")
    assert not loaded & HEAVY


def test_the_wrapper_loads_gymnasium_and_no_torch():
    loaded = loaded_after("from kl_proteus import JointKLDivergenceWrapper")
    assert {"gymnasium", "numpy"} <= loaded
    assert not loaded & {"torch", "transformers"}


def said_without(missing: str, code: str) -> str:
    """What some code raises in an interpreter that cannot import a module."""
    command = [sys.executable, "-c", f"import sys\nsys.modules[{missing!r}] = None\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize(
    ("missing", "code", "extra"),
    [
        ("torch", "import kl_proteus.torch", "torch"),
        ("torch", "from kl_proteus.torch import KLControlCallback", "torch"),
        ("torch", "from kl_proteus import KLController", "torch"),
        ("trl", "from kl_proteus.torch import KLControlCallback", "trl"),
        ("stable_baselines3", "from kl_proteus.sb3 import KLDriftCallback", "sb3"),
    ],
)
def test_what_needs_an_extra_says_which(missing: str, code: str, extra: str):
    if missing == "trl":
        pytest.importorskip("torch")
    assert said_without(missing, "import kl_proteus") == ""
    said = said_without(missing, code)
    assert said.startswith(("ImportError: ", "ModuleNotFoundError: "))
    assert f"pip install 'kl-proteus[{extra}]'" in said


def test_merging_snapshots_needs_no_gymnasium():
    loaded = loaded_after("from kl_proteus import merge_snapshots")
    assert not loaded & HEAVY


@pytest.mark.parametrize("name", kl_proteus.__all__)
def test_every_public_name_is_there(name):
    assert getattr(kl_proteus, name) is getattr(kl_proteus, name)
    assert name in dir(kl_proteus)


def test_a_star_import_gives_the_public_names():
    names: dict[str, object] = {}
    exec("from kl_proteus import *", names)
    assert set(kl_proteus.__all__) <= names.keys()
    assert sorted(kl_proteus.__all__) == sorted(set(kl_proteus.__all__))


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'kl_proteus' has no attribute 'nothing'"):
        _ = kl_proteus.nothing  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError, match="nothing"):
        exec("from kl_proteus import nothing")


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert kl_proteus.__version__ == version("kl_proteus")


def test_the_package_is_typed():
    assert (Path(kl_proteus.__file__).parent / "py.typed").is_file()


# The core ---------------------------------------------------------------------------------------


def code_of(path: Path) -> str:
    """The source without comments and strings."""
    text = re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)


def test_there_are_sources_to_look_at():
    assert {"lib.rs", "axis.rs", "arrays.rs"} <= {path.name for path in SOURCES}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(RUST)))
def test_the_core_knows_no_python(path):
    if RUST / "python" not in path.parents:
        assert not re.search(r"\b(pyo3\w*|numpy|PyErr|PyResult|Py)\b", code_of(path))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(RUST)))
def test_unsafe_code_is_in_one_file(path):
    found = re.search(r"\bunsafe\b|allow\(unsafe_code\)", code_of(path))
    assert bool(found) == (path.relative_to(RUST).as_posix() == "python/arrays.rs")
