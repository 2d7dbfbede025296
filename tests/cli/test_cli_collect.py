"""What a run reports and writes, compared with the wrapper used by hand."""

import json
from pathlib import Path

import gymnasium as gym
import pytest

from kl_proteus import LLMTrainingWrapper
from kl_proteus.llm.recording.jsonl import read_rows

# Short runs in short windows say little, and say so.
pytestmark = pytest.mark.filterwarnings("ignore:the KL drift may be blind")

PUSH_LEFT = "def act(observation):\n    return 0\n"
LEAN = "def act(observation):\n    return int(observation[2] + observation[3] > 0)\n"


def files(ended):
    return {file["kind"]: file for file in ended.json["files"]}


def test_episodes_are_those_of_the_wrapper(collect, module, tmp_path):
    policy = module(LEAN)
    ended = collect(
        *("CartPole-v1", "--policy", f"{policy}:act", "--episodes", 4, "--seed", 3),
        *("--window", 100, "--obs-bins", "8,8,9,9", "--output-dir", "cli", "--json"),
    )
    assert (ended.status, ended.err) == (0, "")

    env = LLMTrainingWrapper(
        gym.make("CartPole-v1"), tmp_path / "hand", window=100, obs_bins=[8, 8, 9, 9]
    )
    observation, _ = env.reset(seed=3)
    while env.get_training_statistics()["num_episodes"] < 4:
        action = int(observation[2] + observation[3] > 0)
        observation, _, terminated, truncated, info = env.step(action)
        if (terminated or truncated) and env.get_training_statistics()["num_episodes"] < 4:
            observation, _ = env.reset()
    exported = env.save_all_trajectories()
    drift, training = env.get_kl_statistics(), env.get_training_statistics()

    found = ended.json
    assert found["environment"] == "CartPole-v1"
    assert found["policy"] == f"{policy}:act"
    assert found["episodes"] == 4
    assert found["steps"] == drift["steps"] == training["num_steps"]
    assert found["reward"] == {
        "mean_per_episode": drift["steps"] / 4,
        "mean_per_step": 1.0,
        "mean_shaped_per_step": training["mean_shaped_reward"],
    }
    assert found["drift"]["joint"] == {
        key: drift[key] for key in ("current", "mean", "std", "min", "max")
    }
    assert found["drift"]["observation"] == {
        "current": info["kl_observation"],
        "mean": drift["observation_mean"],
    }
    assert found["drift"]["policy"] == {
        "current": info["kl_policy"],
        "mean": drift["policy_mean"],
    }
    assert found["drift"]["ready"] is True
    assert found["drift"]["missing_pairs"] == 0
    assert found["cells"] == drift["cells"]
    assert found["flow_share"] == drift["flow"]
    assert Path("cli/trajectories.jsonl").read_bytes() == exported.read_bytes()
    assert files(ended)["chat"]["rows"] == drift["steps"]
    assert files(ended)["recording"]["rows"] == 4


def test_a_seed_makes_a_run_reproducible(collect):
    runs = []
    for number, seed in enumerate((11, 11, 12)):
        directory = Path(f"run{number}")
        ended = collect(
            *("CartPole-v1", "--episodes", 5, "--seed", seed, "--json", "--output-dir", directory)
        )
        written = [path.read_bytes() for path in sorted(directory.iterdir())]
        runs.append((ended.out.replace(str(directory), "run"), written))
    assert runs[0] == runs[1]
    assert runs[0][1] != runs[2][1]


def test_the_random_policy_does_not_share_the_stream_of_the_environment(collect):
    # With one seed for both, the same numbers would decide over action and slip.
    space = gym.make("FrozenLake-v1").action_space
    space.seed(5)
    in_step = [int(space.sample()) for _ in range(20)]
    collect("FrozenLake-v1", "--seed", 5, "--steps", 60)
    episodes = read_rows(next(Path("training_data").glob("episodes-*")))
    taken = [int(key) for episode in episodes for key in episode["action_keys"]]
    assert len(taken) > 20
    assert taken[:20] != in_step


def test_steps_stop_the_run_and_the_running_episode_is_not_recorded(collect):
    ended = collect("CartPole-v1", "--seed", 1, "--steps", 100, "--json")
    assert ended.status == 0
    assert ended.json["steps"] == 100
    assert 0 < files(ended)["chat"]["rows"] < 100
    assert files(ended)["recording"]["rows"] == ended.json["episodes"]


def test_an_episode_that_ends_with_the_last_step_is_recorded(collect):
    limit = '{"max_episode_steps": 10}'
    ended = collect("Pendulum-v1", "--steps", 20, "--env-kwargs", limit, "--json")
    assert ended.status == 0
    assert ended.json["episodes"] == 2
    assert files(ended)["chat"]["rows"] == 20


def test_without_a_completed_episode_there_is_nothing_to_export(collect):
    ended = collect("Pendulum-v1", "--steps", 40, "--save-snapshot", "base.json", "--json")
    assert ended.status == 1
    assert ended.err.startswith("kl-proteus: error: no episode was completed in 40 steps")
    assert len(ended.err.splitlines()) == 1
    assert ended.json["episodes"] == 0
    assert ended.json["reward"]["mean_per_episode"] is None
    assert [file["kind"] for file in ended.json["files"]] == ["snapshot"]
    assert not list(Path("training_data").iterdir())


@pytest.mark.parametrize(
    ("format_type", "name", "keys"),
    [
        ("chat", "trajectories.jsonl", {"messages"}),
        ("completion", "completions.jsonl", {"prompt", "completion"}),
        ("preference", "preferences.jsonl", {"prompt", "chosen", "rejected"}),
    ],
)
def test_formats(collect, format_type, name, keys):
    ended = collect("CartPole-v1", "--seed", 1, "--format", format_type, "--json")
    assert ended.status == 0
    file = files(ended)[format_type]
    assert file["path"] == str(Path("training_data") / name)
    rows = list(read_rows(file["path"]))
    assert len(rows) == file["rows"] > 0
    assert set(rows[0]) == keys


def test_a_second_run_continues_the_recording(collect):
    collect("CartPole-v1", "--episodes", 3)
    ended = collect("CartPole-v1", "--episodes", 2)
    assert ended.status == 0
    assert "5 episodes" in ended.out
    assert "3 episodes of other runs included" in ended.out


def test_no_pair_is_a_warning_and_no_file(collect, module):
    policy = module(PUSH_LEFT)
    arguments = ("CartPole-v1", "--policy", f"{policy}:act", "--format", "preference")
    ended = collect(*arguments, "--episodes", 3, "--json")
    assert ended.status == 0
    assert ended.err.startswith("kl-proteus: warning: no preference pair")
    assert ended.err.endswith("preferences.jsonl is not written\n")
    assert "preference" not in files(ended)
    path = Path("training_data/preferences.jsonl")
    assert not path.exists()

    path.write_text("{}\n", encoding="utf-8")
    ended = collect(*arguments, "--episodes", 1)
    assert ended.status == 0
    assert ended.err.endswith("preferences.jsonl is left as it was\n")
    assert "none written" in ended.out
    assert path.read_text(encoding="utf-8") == "{}\n"


def test_a_saved_snapshot_is_a_reference(collect, module):
    whole = ("--window", "none", "--save-snapshot", "base.json")
    ended = collect("CartPole-v1", "--seed", 1, *whole, "--json")
    saved = json.loads(Path("base.json").read_text(encoding="utf-8"))
    pairs = sum(sum(actions.values()) for actions in saved["counts"].values())
    assert pairs == ended.json["steps"] == files(ended)["snapshot"]["rows"]

    reference = ("--reference", "base.json", "--window", 200, "--episodes", 20, "--json")
    same = collect("CartPole-v1", "--seed", 2, *reference)
    other = collect("CartPole-v1", "--seed", 2, *reference, "--policy", f"{module(LEAN)}:act")
    assert same.json["drift"]["reference"] == "base.json"
    assert same.json["drift"]["ready"]
    assert other.json["drift"]["joint"]["current"] > 2 * same.json["drift"]["joint"]["current"]


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        (["--window", "20"], 40),
        (["--window", "20", "--lag", "5"], 25),
        (["--window", "none"], 2),
        (["--window", "20", "--min-window", "50", "--reference", "base.json"], 20),
        (["--window", "none", "--min-window", "50", "--reference", "base.json"], 50),
    ],
)
def test_missing_pairs(collect, options, needed):
    run = ("CartPole-v1", "--json", "--env-kwargs", '{"max_episode_steps": 1}')
    if "--reference" in options:
        collect(*run, "--steps", 5, "--save-snapshot", "base.json")
    before = collect(*run, *options, "--steps", needed - 1).json["drift"]
    after = collect(*run, *options, "--steps", needed).json["drift"]
    assert (before["ready"], before["missing_pairs"]) == (False, 1)
    assert (after["ready"], after["missing_pairs"]) == (True, 0)
    assert before["needed_pairs"] == after["needed_pairs"] == needed


def test_shaping_options_reach_the_reward(collect):
    run = ("CartPole-v1", "--seed", 1, "--window", 50, "--json", "--kl-threshold", "0.01")
    monitor = collect(*run, "--mode", "monitor").json["reward"]
    assert monitor["mean_shaped_per_step"] == monitor["mean_per_step"] == 1.0
    steady = collect(*run, "--kl-penalty-weight", 2).json["reward"]["mean_shaped_per_step"]
    novel = collect(*run, "--kl-penalty-weight", 2, "--mode", "exploration").json["reward"]
    assert steady < 1.0 < novel["mean_shaped_per_step"]
    assert novel["mean_shaped_per_step"] - 1.0 == pytest.approx(1.0 - steady)


def test_every_option_reaches_the_wrapper(collect, monkeypatch, module):
    seen = {}

    def wrap(env, **arguments):
        seen.update(arguments)
        return LLMTrainingWrapper(env, **arguments)

    monkeypatch.setattr("kl_proteus.cli.environments.LLMTrainingWrapper", wrap)
    encoder = module("import numpy\ndef encode(o):\n    return numpy.asarray(o, float)[:2]\n")
    expected = {
        "output_dir": "other",
        "format_type": "completion",
        "gamma": 0.5,
        "min_margin": 0.25,
        "window": 30,
        "lag": 40,
        "min_window": 7,
        "epsilon": 0.75,
        "obs_bins": [3, 4],
        "action_bins": 6,
        "action_range": (None, 0.5),
        "obs_scale": 2.5,
        "history_size": 40,
        "encoder": f"{encoder}:encode",
        "mode": "exploration",
        "kl_penalty_weight": 0.3,
        "kl_bonus_weight": 0.2,
        "kl_threshold": 0.9,
        "shape_on": "excess",
    }
    options = []
    for name, value in expected.items():
        option = "--format" if name == "format_type" else f"--{name.replace('_', '-')}"
        options += [option, {"obs_bins": "3,4", "action_range": "none:0.5"}.get(name, value)]
    assert collect("CartPole-v1", "--seed", 1, "--episodes", 3, *options).status == 0
    assert seen == {**expected, "obs_range": None, "reference": None}


def test_a_range_replaces_the_bounds_of_the_space(collect):
    run = ("CartPole-v1", "--seed", 1, "--episodes", 3, "--json")
    assert collect(*run).json["flow_share"] == 0.0
    assert collect(*run, "--obs-range", "-0.01:none").json["flow_share"] > 0.1


def test_the_default_run_fills_the_default_windows(collect):
    assert collect("CartPole-v1", "--seed", 1, "--json").json["drift"]["ready"]


@pytest.mark.parametrize("env_id", ["Blackjack-v1", "Taxi-v4", "FrozenLake-v1", "MountainCar-v0"])
def test_other_spaces(collect, env_id):
    if env_id not in gym.registry:
        pytest.skip(f"this Gymnasium has no {env_id}")
    ended = collect(env_id, "--episodes", 2, "--json")
    assert (ended.status, ended.json["episodes"]) == (0, 2)


def test_the_table_is_plain_text_in_80_columns(collect):
    full = collect("CartPole-v1", "--seed", 1, "--window", 50, "--save-snapshot", "base.json")
    early = collect("CartPole-v1", "--seed", 1, "--episodes", 5)
    nothing = collect("CartPole-v1", "--steps", 9, "--env-kwargs", '{"max_episode_steps": 3}')
    for ended in (full, early, nothing):
        assert ended.status == 0
        assert ended.out.isascii()
        assert "\x1b" not in ended.out
        assert max(map(len, ended.out.splitlines())) <= 80
        assert ended.out == "\n".join(map(str.rstrip, ended.out.splitlines())) + "\n"
    assert "NOT READY" not in full.out
    assert "snapshot          base.json, 50 pairs\n" in full.out
    assert "NOT READY YET" in early.out
    assert "several times higher" in early.out
    # So few steps report no value at all, and 0.0000 would look like one.
    joint = next(line for line in nothing.out.splitlines() if "joint" in line)
    assert joint.split() == ["joint", "-", "-", "-"]


def test_the_table_and_the_json_agree(collect):
    run = ("CartPole-v1", "--seed", 1, "--window", 50)
    table = collect(*run, "--output-dir", "a").out
    found = collect(*run, "--output-dir", "a/b", "--json").json
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines() if line}
    joint = found["drift"]["joint"]
    assert rows["joint"] == [f"{joint[key]:.4f}" for key in ("current", "mean", "std")]
    assert rows["states"] == [
        f"{found['drift']['observation'][k]:.4f}" for k in ("current", "mean")
    ]
    assert rows["actions"] == [f"{found['drift']['policy'][k]:.4f}" for k in ("current", "mean")]
    assert rows["cells"] == [str(found["cells"])]
