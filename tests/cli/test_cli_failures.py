"""Every failure is one line on standard error and status 1, and loses no completed episode."""

import logging
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from kl_proteus.cli import exports, failures
from kl_proteus.llm.recording.shards import count_episodes

ALWAYS_LEFT = "def act(observation):\n    return 0\n"


class Faulty(gym.Env):
    """Ends an episode every 5 steps, and misbehaves in the 13th step."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, fault=None):
        self.fault = fault
        self.steps = 0
        if fault == "make":
            raise gym.error.DependencyNotInstalled("Engine is not installed,\nrun `get engine`")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.fault == "reset" and self.steps:
            raise RuntimeError("the simulator is gone")
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        observation, reward = np.zeros(1, np.float32), 1.0
        if self.steps == 13:
            if self.fault == "step":
                raise RuntimeError("the simulator\nis gone")
            if self.fault == "exit":
                raise gym.error.Error("the window was closed")
            if self.fault == "reward":
                reward = np.array([1.0, 2.0])
            if self.fault == "nan reward":
                reward = float("nan")
        if self.steps == 12 and self.fault == "nan":
            observation[0] = np.nan
        return observation, reward, self.steps % 5 == 0, False, {}

    def close(self):
        if self.fault == "close":
            raise RuntimeError("it does not close")


@pytest.fixture(autouse=True)
def faulty():
    gym.register("Faulty-v0", Faulty, disable_env_checker=True)
    yield
    del gym.registry["Faulty-v0"]


def assert_one_line(ended, *parts):
    assert ended.status == 1
    assert ended.err.startswith("kl-proteus: error: ")
    assert ended.err.endswith("\n")
    assert len(ended.err.splitlines()) == 1
    assert "Traceback" not in ended.err
    for part in parts:
        assert part in ended.err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["CartPol-v1"], ["'CartPol-v1'", "Did you mean: `CartPole`"]),
        (["CartPole-v99"], ["'CartPole-v99'", "v1"]),
        (["no_such_package:Env-v0"], ["No module named 'no_such_package'"]),
        (["Faulty-v0", "--env-kwargs", '{"fault": "make"}'], ["Engine is not installed, run"]),
        (["Faulty-v0", "--env-kwargs", '{"color": 1}'], ["unexpected keyword argument 'color'"]),
        (["CartPole-v1", "--obs-bins", "3,4"], ["obs_bins must be", "4 here"]),
        (["CartPole-v1", "--encoder", "math:sqrt", "--obs-range", "0:1"], ["obs_range", "encoder"]),
        (
            ["CartPole-v1", "--encoder", "no_such_module:f"],
            ["encoder must name a module, got 'no_such_module:f'"],
        ),
        (["CartPole-v1", "--reference", "none.json"], ["No such file", "none.json"]),
        (["CartPole-v1", "--policy", "no_such_module:f"], ["policy no_such_module:f"]),
        (["CartPole-v1", "--save-snapshot", "missing/base.json"], ["missing/base.json"]),
        (["CartPole-v1", "--save-snapshot", "."], ["no regular file"]),
        (["CartPole-v1", "--save-snapshot", "training_data/trajectories.jsonl"], ["run writes"]),
        (["CartPole-v1", "--save-snapshot", "episodes-X-0000.jsonl"], ["run writes"]),
    ],
)
def test_before_the_first_step(collect, arguments, parts):
    ended = collect(*arguments)
    assert_one_line(ended, *parts)
    assert ended.out == ""
    assert not list(Path().glob("**/episodes-*"))


def test_a_reference_of_another_environment(collect):
    collect("CartPole-v1", "--save-snapshot", "base.json", "--window", "none")
    ended = collect("Pendulum-v1", "--reference", "base.json")
    assert_one_line(ended, "axes differ")


def test_a_file_that_is_no_snapshot(collect):
    Path("base.json").write_text("{}", encoding="utf-8")
    assert_one_line(collect("CartPole-v1", "--reference", "base.json"), "snapshot cannot be read")
    Path("base.json").write_bytes(b"\xff\xfe")
    assert_one_line(collect("CartPole-v1", "--reference", "base.json"), "base.json")


def test_an_image_without_an_encoder(collect):
    gym.register("Images-v0", lambda: Images(), disable_env_checker=True)
    try:
        assert_one_line(collect("Images-v0", "--encoder", "none"), "is an image", "encoder")
    finally:
        del gym.registry["Images-v0"]


class Images(Faulty):
    observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        ("step", "step 13 of Faulty-v0 failed: RuntimeError: the simulator is gone (test_cli_"),
        ("exit", "step 13 of Faulty-v0 failed: Error: the window was closed (test_cli_"),
        ("reward", "reward must be one real number, got ndarray of shape (2,)"),
        ("nan reward", "reward must be a finite number, got nan"),
        ("nan", "step 13 of Faulty-v0 failed: observation[0] is NaN"),
    ],
)
def test_the_environment_fails(collect, fault, part):
    ended = collect("Faulty-v0", "--env-kwargs", f'{{"fault": "{fault}"}}')
    assert_one_line(ended, part, "2 completed episodes are kept in the recording in training_data")
    assert ended.out == ""
    assert count_episodes("training_data", "Faulty-v0") == 2


def test_a_reset_fails(collect):
    ended = collect("Faulty-v0", "--env-kwargs", '{"fault": "reset"}')
    assert_one_line(
        ended, "cannot be reset: RuntimeError: the simulator is gone", "1 completed episode is kept"
    )


def test_an_environment_that_does_not_close_is_a_warning(collect):
    ended = collect("Faulty-v0", "--env-kwargs", '{"fault": "close"}', "--json")
    assert ended.status == 0
    assert ended.err.startswith("kl-proteus: warning: the environment cannot be closed")
    assert ended.json["episodes"] == 200


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ("return 1 / 0", "failed: ZeroDivisionError: division by zero (user_module_"),
        ("raise KeyError('speed')", "failed: KeyError: 'speed' (user_module_"),
        ("import sys; sys.exit()", "failed: SystemExit (user_module_"),
        ("return 7", "returned an action outside the action space: expected Discrete(2), got 7"),
        ("return None", "got None (NoneType)"),
    ],
)
def test_the_policy_fails(collect, module, body, part):
    name = module(
        f"calls = 0\ndef act(o):\n    global calls\n    calls += 1\n"
        f"    if calls < 8:\n        return 0\n    {body}\n"
    )
    ended = collect("Faulty-v0", "--policy", f"{name}:act")
    assert_one_line(ended, f"the policy {name}:act", part, "1 completed episode is kept")
    assert ended.out == ""


def test_the_current_directory_is_importable_only_during_the_run(collect, module):
    before = list(sys.path)
    name = module(ALWAYS_LEFT)
    assert collect("Faulty-v0", "--policy", f"{name}:act").status == 0
    assert collect("Faulty-v0", "--policy", "no_such_module:act").status == 1
    assert sys.path == before


def test_an_output_directory_that_is_a_file(collect):
    Path("taken").write_text("", encoding="utf-8")
    assert_one_line(collect("Faulty-v0", "--output-dir", "taken"), "output_dir", "taken")


def test_a_failed_export_still_tells_the_results(collect):
    Path("training_data/trajectories.jsonl").mkdir(parents=True)
    ended = collect("Faulty-v0", "--json")
    assert_one_line(ended, "cannot export to training_data/trajectories.jsonl", "200 completed")
    assert ended.json["episodes"] == 200
    assert [file["kind"] for file in ended.json["files"]] == ["recording"]


def test_a_damaged_recording_is_told(collect):
    Path("training_data").mkdir()
    bad = Path("training_data/episodes-Faulty-v0-0000.jsonl")
    assert collect("Faulty-v0").status == 0
    lines = bad.read_bytes().splitlines(keepends=True)
    bad.write_bytes(lines[0] + b"nonsense\n" + b"".join(lines[1:]))
    ended = collect("Faulty-v0", "--json")
    assert ended.status == 1
    assert ended.err.splitlines()[-1].startswith("kl-proteus: error: cannot export")
    assert "line 2" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("tail", "part"),
    [
        (b'{"format":"kl_pro', "0000.jsonl: dropped a torn last line of 17 bytes"),
        (b"no\nrows\n", "0000.jsonl is not continued: "),
    ],
    ids=["torn", "damaged"],
)
def test_what_happens_to_a_recording_is_a_warning(collect, module, tail, part):
    # Logging of the user's own, which must not tell it once more.
    name = module("import logging\nlogging.basicConfig()\n" + ALWAYS_LEFT)
    run = ("Faulty-v0", "--episodes", 2, "--policy", f"{name}:act", "--json")
    assert collect(*run).err == ""
    path = Path("training_data/episodes-Faulty-v0-0000.jsonl")
    path.write_bytes(path.read_bytes() + tail)
    if part.endswith("bytes"):
        ended = collect(*run)
        assert ended.status == 0
        assert (
            ended.err == f"kl-proteus: warning: {path.resolve().parent}/episodes-Faulty-v0-{part}\n"
        )
        assert count_episodes("training_data", "Faulty-v0") == 4
    else:
        lines = collect(*run).err.splitlines()
        assert [line.partition(": ")[2].partition(": ")[0] for line in lines] == [
            "warning",
            "error",
        ]
        assert part in lines[0]
        assert "several lines that are not JSON objects" in lines[0]
    assert not logging.getLogger("kl_proteus").handlers
    assert logging.getLogger("kl_proteus").propagate


def test_an_interrupt_during_the_export(collect, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(exports, "save_training_data", interrupt)
    ended = collect("Faulty-v0")
    assert ended.status == 130
    assert ended.err == (
        "kl-proteus: interrupted during the export; 200 completed episodes are kept in the "
        "recording in training_data\n"
    )


def test_an_interrupt_before_the_run(collect, monkeypatch):
    def interrupt(options):
        raise KeyboardInterrupt

    monkeypatch.setattr("kl_proteus.cli.environments.make", interrupt)
    ended = collect("Faulty-v0")
    assert (ended.status, ended.out, ended.err) == (130, "", "kl-proteus: interrupted\n")


def test_any_error_is_one_line():
    def raised(error):
        try:
            raise error
        except Exception as caught:
            return failures.describe(caught)

    assert raised(RuntimeError("\x1b[33ma\n  b\x1b[0m")).startswith("RuntimeError: a b (test_cli_")
    assert raised(OSError(28, "No space left on device", "f")) == "No space left on device: f"
    assert raised(OSError(28, "No space left on device")) == "No space left on device"
    assert failures.describe(RuntimeError("never raised")) == "RuntimeError: never raised"
    assert failures.describe(RuntimeError()) == "RuntimeError"
