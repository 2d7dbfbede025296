"""The command as a process: exit status, standard streams, interrupts, full disks."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kl_proteus import __version__

POSIX = pytest.mark.skipif(os.name != "posix", reason="POSIX signals, limits and devices")
COMMAND = [sys.executable, "-m", "kl_proteus"]
SCRIPT = Path(sys.executable).with_name("kl-proteus")

NOISY = """
import ctypes, os, subprocess, sys
print("import")
child = []

def act(observation):
    print("print")
    os.write(1, b"descriptor\\n")
    if not child:
        child.append(None)
        subprocess.run([sys.executable, "-S", "-c", "print('child')"])
    if os.name == "posix":
        ctypes.CDLL(None).puts(b"library")
    sys.__stdout__.write("original\\n")
    return 0
"""

# Says when it has seen enough, and then waits for the interrupt.
WAITING = """
import sys, time
calls = 0

def act(observation):
    global calls
    calls += 1
    if calls == {calls}:
        print("waiting", file=sys.stderr, flush=True)
        time.sleep(60)
    return 0
"""


def run(*arguments, **options):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=options.pop("capture_output", True),
        text=True,
        check=False,
        timeout=60,
        **options,
    )


def collect(*arguments, **options):
    return run("collect", *arguments, **options)


def write_module(name, source):
    Path(f"{name}.py").write_text(source, encoding="utf-8")


def interrupt(calls, *arguments):
    """Presses Ctrl-C in the step of this number."""
    write_module("waiting", WAITING.format(calls=calls))
    command = [*COMMAND, "collect", "CartPole-v1", "--policy", "waiting:act", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_python_m():
    ended = run("--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"kl-proteus {__version__}\n", "")
    assert run().returncode == 2
    assert run("collect", "CartPole-v1", "--window", "0").returncode == 2
    assert run("collect", "CartPol-v1").returncode == 1


@pytest.mark.skipif(not SCRIPT.exists(), reason="the package is not installed with its script")
def test_the_script_finds_modules_of_the_current_directory():
    write_module("left", "def act(observation):\n    return 0\n")
    ended = subprocess.run(
        [SCRIPT, "collect", "CartPole-v1", "--policy", "left:act", "--episodes", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "2 completed" in ended.stdout


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_standard_output_holds_one_json_object_and_nothing_else(unbuffered):
    write_module("noisy", NOISY)
    ended = collect(
        *("CartPole-v0", "--policy", "noisy:act", "--episodes", 1, "--json"),
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert ended.returncode == 0
    assert ended.stdout.count("\n") == 1
    assert json.loads(ended.stdout)["episodes"] == 1
    for line in ("import", "print", "descriptor", "child", "original"):
        assert f"{line}\n" in ended.stderr
    if os.name == "posix":
        assert "library\n" in ended.stderr
    # The environment is an old version, which Gymnasium says in colours.
    assert "kl-proteus: warning: The environment CartPole-v0 is out of date." in ended.stderr
    assert "\x1b" not in ended.stderr


@POSIX
def test_an_interrupt_exports_completed_episodes():
    status, out, err = interrupt(60, "--seed", "1", "--json")
    assert status == 130
    found = json.loads(out)
    assert found["interrupted"] is True
    assert found["episodes"] > 3
    assert found["steps"] == 59
    rows = {file["kind"]: file["rows"] for file in found["files"]}
    assert rows["recording"] == found["episodes"]
    assert rows["chat"] == len(Path("training_data/trajectories.jsonl").read_bytes().splitlines())
    assert err == (
        f"kl-proteus: interrupted; {found['episodes']} completed episodes are recorded, exported "
        f"to {Path('training_data/trajectories.jsonl')}\n"
    )


@POSIX
def test_an_interrupt_before_an_episode_is_completed():
    status, out, err = interrupt(3)
    assert status == 130
    assert "0 completed in 2 steps, interrupted" in out
    assert err == ("kl-proteus: interrupted; 0 completed episodes are recorded, nothing exported\n")


@POSIX
def test_an_interrupt_without_a_pair():
    status, _, err = interrupt(60, "--format", "preference")
    assert status == 130
    assert err.splitlines()[0].startswith("kl-proteus: warning: no preference pair")
    assert err.splitlines()[1].endswith("nothing exported")


@POSIX
def test_a_reader_that_has_gone_ends_it_quietly():
    read, write = os.pipe()
    os.close(read)
    ended = collect("CartPole-v1", capture_output=False, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_standard_output():
    with Path("/dev/full").open("w") as full:
        ended = collect("CartPole-v1", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert ended.returncode == 1
    assert ended.stderr == (
        "kl-proteus: error: cannot write the results to standard output: No space left on device\n"
    )


@POSIX
@pytest.mark.parametrize(("closed", "status"), [("1", 1), ("2", 0)])
def test_a_closed_stream(closed, status):
    ended = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}>&-', "sh", *COMMAND, "collect", "CartPole-v1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == status
    if closed == "1":
        assert ended.stderr.startswith("kl-proteus: error: cannot write the results")
    else:
        assert "200 completed" in ended.stdout


@POSIX
@pytest.mark.parametrize(
    ("episodes", "part"),
    [(200, "the episode was not recorded"), (10, "the file was left as it was")],
)
def test_a_full_disk(episodes, part):
    limit = 80_000
    code = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}));"
        "from kl_proteus.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["collect", "CartPole-v1", "--seed", "1", "--episodes", str(episodes)]
    ended = subprocess.run(
        [sys.executable, "-B", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert part in ended.stderr
    recorded = Path("training_data/episodes-CartPole-v1-0000.jsonl").read_bytes()
    kept = len(recorded.splitlines())
    assert 10 <= kept <= episodes
    assert f"{kept} completed episodes are kept" in ended.stderr
    assert not Path("training_data/trajectories.jsonl").exists()


@POSIX
@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_the_bar_is_on_the_terminal_only(quiet):
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    # A new terminal has no size, and so no room for a bar.
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    command = [*COMMAND, "collect", "CartPole-v0", "--steps", "20000", *quiet]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        shown = b""
        try:
            while block := os.read(ours, 1 << 16):
                shown += block
        except OSError:  # what Linux says when the other end is closed
            pass
        assert process.stdout is not None
        out = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0
    assert out.startswith("environment       CartPole-v0\n")
    text = shown.decode()
    assert "warning: The environment CartPole-v0 is out of date" in text
    if quiet:
        assert "steps/s" not in text
    else:
        assert "/20000 [" in text
        assert "KL " in text
        assert "reward " in text


def test_there_is_no_bar_without_a_terminal():
    ended = collect("CartPole-v1", "--steps", 3000)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_names_that_the_terminal_cannot_show():
    ended = collect(
        *("CartPole-v1", "--episodes", 2, "--output-dir", "donn\u00e9es"),
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "donn\\xe9es" in ended.stdout
