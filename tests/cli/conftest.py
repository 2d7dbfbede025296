"""Running the command in this process, and modules of a user in its current directory."""

import json
import sys
from dataclasses import dataclass
from itertools import count

import pytest

from kl_proteus.cli import main

NUMBERS = count()


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"not strict: {name}"))


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(capsys):
    """Runs the command line in this process."""

    def run(*arguments):
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Ended(status, *capsys.readouterr())

    return run


@pytest.fixture
def collect(command):
    return lambda *arguments: command("collect", *arguments)


@pytest.fixture
def module(tmp_path):
    """Writes a module of the user; its name is new, because Python imports a name once."""
    names = []

    def write(source):
        name = f"user_module_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        names.append(name)
        return name

    yield write
    for name in names:
        sys.modules.pop(name, None)
