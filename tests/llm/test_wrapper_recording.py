"""Recording in the wrapper: what is written, when, and what never is."""

import copy
import errno
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from wrapper_harness import (
    Controller,
    Line,
    contents,
    load,
    names,
    on_line,
    play,
    read_move,
    recorded,
    spy_of,
    write_move,
    write_place,
)

from kl_proteus import LLMTrainingWrapper

SHARD = "episodes-Line-0000.jsonl"
COLUMNS = {
    "observation_texts": str,
    "action_texts": str,
    "observation_keys": str,
    "action_keys": str,
    "base_rewards": float,
    "shaped_rewards": float,
    "kl_penalties": float,
    "kl_bonuses": float,
    "kl_divergences": float,
    "kl_observations": float,
    "kl_policies": float,
}


def lengths(directory):
    return [len(row["action_texts"]) for row in recorded(directory)]


def test_an_episode_is_written_by_the_step_that_ends_it(tmp_path):
    env = on_line(tmp_path, lengths=(3, 2, 4))
    assert names(tmp_path) == []
    for number, length in enumerate((3, 2, 4), start=1):
        env.reset()
        for n in range(length):
            assert len(recorded(tmp_path)) == number - 1
            env.step(n % 3)
        assert lengths(tmp_path) == [3, 2, 4][:number]
        assert env.get_training_statistics()["num_episodes"] == number
    assert names(tmp_path) == [SHARD]


def test_rows_hold_what_happened(tmp_path):
    env = on_line(tmp_path, lengths=(6,), rewards=(1, -2), kl_threshold=0.05)
    results = play(env, 4)
    infos = [result[4] for result in results]
    rows = recorded(tmp_path)
    for number, (row, episode) in enumerate(zip(rows, spy_of(env).episodes, strict=True)):
        assert [type(row[name][0]) for name in COLUMNS] == list(COLUMNS.values())
        seen = infos[number * 6 : number * 6 + 6]
        assert row["format"] == "kl_proteus.episode"
        assert (row["version"], row["episode"], row["env_id"]) == (1, number, "Line")
        assert row["system_prompt"] == env.system_prompt
        assert (row["terminated"], row["truncated"]) == (True, False)
        assert row["observation_texts"] == [env.observation_text(o) for o, _, _ in episode]
        assert row["action_texts"] == [env.action_text(a) for _, a, _ in episode]
        assert row["base_rewards"] == [float(reward) for _, _, reward in episode]
        for column, key in {
            "shaped_rewards": "shaped_reward",
            "kl_penalties": "kl_penalty",
            "kl_bonuses": "kl_bonus",
            "kl_divergences": "kl_divergence",
            "kl_observations": "kl_observation",
            "kl_policies": "kl_policy",
        }.items():
            assert row[column] == [info[key] for info in seen]
    assert any(rows[3]["kl_penalties"])
    # One key a place and one a move, and as many different ones.
    for column, index, size in (("observation_keys", 0, 5), ("action_keys", 1, 3)):
        keys = [key for row in rows for key in row[column]]
        pairs = set(zip((int(step[index]) for step in spy_of(env).steps), keys, strict=True))
        assert len(pairs) == len({key for _, key in pairs}) == size


def test_numbers_are_floats_in_the_file_from_the_first_row_on(tmp_path):
    play(on_line(tmp_path, rewards=(0, 1)), 2, actions=[0])
    text = (tmp_path / SHARD).read_text()
    assert '"base_rewards":[0.0,1.0,0.0,1.0]' in text
    assert '"kl_penalties":[0.0,0.0,0.0,0.0]' in text


def test_truncation_is_told_from_termination(tmp_path):
    play(on_line(tmp_path, truncates=True), 1)
    (row,) = recorded(tmp_path)
    assert (row["terminated"], row["truncated"]) == (False, True)


def test_an_episode_without_an_end_is_never_written(tmp_path):
    env = on_line(tmp_path, lengths=(3,))
    env.reset()
    env.reset()
    env.step(1)
    env.reset()
    env.step(1)
    env.step(2)
    env.reset()
    env.close()
    env.close()
    assert names(tmp_path) == []
    # Nothing of those steps is in the episode that ends.
    play(env, 1)
    assert lengths(tmp_path) == [3]
    assert env.get_training_statistics()["num_episodes"] == 1
    assert env.get_training_statistics()["num_steps"] == 6


def test_steps_after_the_end_are_in_no_episode(tmp_path):
    env = on_line(tmp_path, lengths=(2,))
    play(env, 1)
    before = contents(tmp_path)
    # This environment goes on, and says again and again that it has ended.
    assert [env.step(1)[2] for _ in range(3)] == [True] * 3
    assert contents(tmp_path) == before
    play(env, 1)
    assert lengths(tmp_path) == [2, 2]


def test_an_episode_that_was_joined_in_the_middle_is_not_recorded(tmp_path):
    line = Line((5, 3))
    line.reset()
    line.step(1)
    env = LLMTrainingWrapper(line, tmp_path, window=4, min_window=1)
    assert [env.step(1)[2] for _ in range(4)] == [False, False, False, True]
    assert names(tmp_path) == []
    # What was seen before the first step is not known, so there are three pairs.
    assert env.get_kl_statistics()["steps"] == 3
    play(env, 1)
    assert lengths(tmp_path) == [3]


def test_a_recording_is_continued(tmp_path):
    env = on_line(tmp_path, lengths=(3,))
    play(env, 2)
    before = (tmp_path / SHARD).read_bytes()
    env.close()
    with on_line(tmp_path, lengths=(5,)) as env:
        play(env, 1)
    assert names(tmp_path) == [SHARD]
    assert (tmp_path / SHARD).read_bytes().startswith(before)
    assert [(row["episode"], len(row["action_texts"])) for row in load(tmp_path / SHARD)] == [
        (0, 3),
        (1, 3),
        (2, 5),
    ]
    assert env.get_training_statistics()["num_episodes"] == 1


def test_a_torn_row_is_repaired_when_a_recording_is_continued(tmp_path):
    with on_line(tmp_path, lengths=(3,)) as env:
        play(env, 2)
    whole = (tmp_path / SHARD).read_bytes()
    (tmp_path / SHARD).write_bytes(whole + b'{"format":"kl_proteus.epi')
    play(on_line(tmp_path, lengths=(5,)), 1)
    assert lengths(tmp_path) == [3, 3, 5]


def test_two_wrappers_on_a_directory_have_a_file_each(tmp_path):
    first, second = on_line(tmp_path, lengths=(3,)), on_line(tmp_path, lengths=(4,))
    for _ in range(2):
        play(first, 1)
        play(second, 1)
    assert names(tmp_path) == [SHARD, "episodes-Line-0001.jsonl"]
    assert lengths(tmp_path) == [3, 3, 4, 4]
    # The fingerprint of the axes is that of the axes alone, so their steps can be compared.
    assert len({row["binning"] for row in recorded(tmp_path)}) == 1
    first.close()
    play(on_line(tmp_path, lengths=(5,)), 1)
    assert lengths(tmp_path) == [3, 3, 5, 4, 4]


def test_environments_have_files_of_their_own(tmp_path):
    play(on_line(tmp_path), 1)
    play(LLMTrainingWrapper(gym.make("FrozenLake-v1"), tmp_path), 1)
    assert names(tmp_path) == ["episodes-FrozenLake-v1-0000.jsonl", SHARD]


def test_the_id_of_the_recording(tmp_path):
    for env in (gym.make("FrozenLake-v1"), Line()):
        wrapper = LLMTrainingWrapper(env, tmp_path / type(env).__name__)
        play(wrapper, 1)
        (row,) = recorded(tmp_path / type(env).__name__)
        assert wrapper.env_id == row["env_id"] == ("Line" if env.spec is None else env.spec.id)
        with pytest.raises(AttributeError):
            wrapper.env_id = "Other-v0"


def test_other_axes_have_another_fingerprint(tmp_path):
    for bins in (10, 10, 11):
        with LLMTrainingWrapper(gym.make("CartPole-v1"), tmp_path, obs_bins=bins) as env:
            play(env, 1)
    first, second, third = (row["binning"] for row in recorded(tmp_path))
    assert first == second != third


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))],
    ids=["copy", "pickle"],
)
def test_a_copy_in_the_middle_of_an_episode_goes_on_in_a_file_of_its_own(tmp_path, duplicate):
    options = {"window": 8, "min_window": 1, "obs_bins": 3}
    env = LLMTrainingWrapper(gym.make("CartPole-v1"), tmp_path, **options)
    play(env, 2)
    env.reset(seed=7)
    for n in range(6):
        env.step(n % 2)
    before = contents(tmp_path)
    twin = duplicate(env)
    assert contents(tmp_path) == before
    ended = False
    while not ended:
        ours, theirs = env.step(1), twin.step(1)
        ended = ours[2]
        assert np.array_equal(ours[0], theirs[0])
        assert ours[1:] == theirs[1:]
    shards = [tmp_path / f"episodes-CartPole-v1-000{n}.jsonl" for n in range(2)]
    assert names(tmp_path) == [shard.name for shard in shards]
    whole, forked = load(shards[0])[-1], load(shards[1])[-1]
    assert len(whole["action_texts"]) > 6
    assert (whole.pop("episode"), forked.pop("episode")) == (2, 0)
    assert whole == forked
    assert env.get_training_statistics() == twin.get_training_statistics()
    assert env.kl_state_dict() == twin.kl_state_dict()
    for each in (env, twin):
        play(each, 1)
    assert [len(load(shard)) for shard in shards] == [4, 2]


def test_a_state_from_elsewhere_does_not_mix_into_the_running_episode(tmp_path):
    donor = on_line(tmp_path / "donor", lengths=(9,))
    donor.reset()
    for _ in range(3):
        donor.step(1)
    fresh = on_line(tmp_path / "fresh")
    for state in (donor.kl_state_dict(), fresh.kl_state_dict()):
        env = on_line(tmp_path / "out", lengths=(4,))
        env.reset()
        env.load_kl_state_dict(state)
        assert [env.step(2)[2] for _ in range(4)] == [False] * 3 + [True]
        assert names(tmp_path / "out") == []
    play(env, 1)
    (row,) = recorded(tmp_path / "out")
    texts = [env.observation_text(place) for place, _, _ in spy_of(env).episodes[-1]]
    assert row["observation_texts"] == texts


def test_a_state_that_is_refused_leaves_the_running_episode(tmp_path):
    env = on_line(tmp_path)
    env.reset()
    env.step(1)
    with pytest.raises(ValueError, match="state"):
        env.load_kl_state_dict({})
    for _ in range(3):
        env.step(1)
    assert lengths(tmp_path) == [4]


class Buffered(gym.Env):
    """Writes every observation into the array that it returned before, and plays with actions."""

    observation_space = spaces.Box(0.0, 10.0, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, last=5.0):
        self._buffer = np.zeros(1, np.float32)
        self._last = last

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._buffer[:] = 1.0
        return self._buffer, {}

    def step(self, action):
        action[:] = 0.125
        self._buffer[:] += 1.0
        ended = bool(self._buffer[0] == 5.0)
        if ended:
            self._buffer[:] = self._last
        return self._buffer, 1.0, ended, False, {}


def test_reused_buffers_do_not_change_what_was_seen_and_done(tmp_path):
    env = LLMTrainingWrapper(Buffered(), tmp_path)
    env.reset()
    for value in (0.5, 0.25, -0.5, -1.0):
        env.step(np.array([value], np.float32))
    (row,) = recorded(tmp_path)
    assert [float(text.split("=")[1]) for text in row["observation_texts"]] == [1, 2, 3, 4]
    assert [float(text) for text in row["action_texts"]] == [0.5, 0.25, -0.5, -1.0]
    assert len(set(row["observation_keys"])) == len(set(row["action_keys"])) == 4


@pytest.mark.parametrize("last", [np.nan, np.inf])
def test_a_last_observation_without_a_cell_harms_nothing(tmp_path, last):
    env = LLMTrainingWrapper(Buffered(last), tmp_path, window=2, min_window=1)
    for _ in range(2):
        env.reset()
        for _ in range(4):
            *_, info = env.step(np.zeros(1, np.float32))
        assert np.isfinite(list(info.values())).all()
    assert [len(row["action_texts"]) for row in recorded(tmp_path)] == [4, 4]
    assert env.get_kl_statistics()["steps"] == 8


def test_relative_directory_is_that_of_the_construction(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    env = on_line("out")
    assert names(tmp_path) == ["elsewhere", "out"]
    monkeypatch.chdir(tmp_path / "elsewhere")
    play(env, 1)
    assert env.save_all_trajectories() == tmp_path / "out" / "trajectories.jsonl"
    assert names(tmp_path / "elsewhere") == []


def test_the_directory_has_a_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    play(LLMTrainingWrapper(Line()), 1)
    assert names(tmp_path) == ["training_data", f"training_data/{SHARD}"]


def fill_the_disk(monkeypatch, n_bytes):
    """No more than this many bytes can be written."""
    real = os.write
    left = [n_bytes]

    def write(descriptor, data):
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(descriptor, data[: left[0]])
        left[0] -= written
        return written

    monkeypatch.setattr(os, "write", write)


def test_full_disk_at_the_end_of_an_episode(tmp_path, monkeypatch):
    controller = Controller()
    env = on_line(tmp_path, lengths=(8, 4, 5), kl_penalty_weight=controller)
    play(env, 1)
    env.reset()
    for _ in range(3):
        env.step(1)

    def counts():
        return (
            env.get_kl_statistics(),
            env.get_training_statistics(),
            env.kl_history,
            [env.snapshot(which) for which in ("current", "previous")],
            list(controller.updates),
            contents(tmp_path),
        )

    before = counts()
    with monkeypatch.context() as patch:
        fill_the_disk(patch, 100)
        with pytest.raises(OSError, match=r"No space left.*not recorded.*0000\.jsonl") as caught:
            env.step(1)
    assert caught.value.errno == errno.ENOSPC
    assert counts() == before
    assert len(controller.updates) == 1
    # This environment goes on, in no episode; the pair is that of where it is now.
    place = env.observation_text(env.unwrapped._place)
    env.step(2)
    assert env.get_kl_statistics()["steps"] == 12
    assert place == "observation=4"
    assert contents(tmp_path) == before[-1]
    play(env, 1)
    assert lengths(tmp_path) == [8, 5]
    assert [row["episode"] for row in recorded(tmp_path)] == [0, 1]
    assert env.get_kl_statistics()["steps"] == 17


@pytest.mark.parametrize("reward", [0.0, -0.1, -1.7976931348623157e308, 5e-324])
def test_the_space_reserved_is_enough_and_hardly_more(tmp_path, monkeypatch, reward):
    sizes = []
    real = os.write

    def write(descriptor, data):
        sizes.append(len(data))
        return real(descriptor, data)

    env = on_line(
        tmp_path,
        lengths=(1, 2, 9, 1, 2, 3, 1, 2, 3, 1, 7),
        rewards=(reward,),
        mode="monitor",
        action_formatter=write_move,
        observation_formatter=write_place,
        action_parser=read_move,
    )
    monkeypatch.setattr(os, "write", write)
    play(env, 11)
    rows = (tmp_path / SHARD).read_bytes().splitlines(keepends=True)
    assert sizes[1::2] == [len(row) for row in rows]
    for reserved, row in zip(sizes[::2], rows, strict=True):
        assert len(row) <= reserved < len(row) + 200


def test_space_is_given_back_where_the_last_step_is_refused(tmp_path, monkeypatch):
    env = on_line(tmp_path, lengths=(3,))
    play(env, 1)
    before = contents(tmp_path)
    env.reset()
    env.step(1)
    env.step(1)
    with monkeypatch.context() as patch:
        patch.setattr(type(env._shaping), "terms", lambda *_: (float("inf"), 0.0))
        with pytest.raises(ValueError, match="finite shaped reward"):
            env.step(1)
    assert contents(tmp_path) == before


def test_full_disk_at_the_first_episode(tmp_path, monkeypatch):
    env = on_line(tmp_path, lengths=(3, 4))
    with monkeypatch.context() as patch:
        fill_the_disk(patch, 0)
        with pytest.raises(OSError, match=r"No space left.*not recorded"):
            play(env, 1)
    # No row and no piece of one; a reader finds no episode.
    assert set(contents(tmp_path).values()) <= {b""}
    with pytest.raises(ValueError, match="at least one completed episode"):
        env.save_all_trajectories()
    play(env, 1)
    assert names(tmp_path) == [SHARD]
    assert lengths(tmp_path) == [4]


def test_directory_that_went_away(tmp_path):
    directory = tmp_path / "out"
    env = on_line(directory, lengths=(3,))
    directory.rmdir()
    directory.write_text("mine")
    with pytest.raises(OSError, match="output_dir must be a directory"):
        play(env, 1)
    assert directory.read_text() == "mine"
    directory.unlink()
    play(env, 1)
    assert lengths(directory) == [3]
    (directory / SHARD).unlink()
    play(env, 2)
    assert lengths(directory) == [3, 3]


def test_directory_that_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    for name in ("file", "file/below"):
        with pytest.raises(OSError, match=f"output_dir must be a directory .*{name}"):
            on_line(tmp_path / name)
    assert contents(tmp_path) == {tmp_path / "file": b"mine"}

    def refuse(*_, **__):
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))

    # Permission bits do not stop a superuser, so the refusal is made here.
    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(OSError, match=r"output_dir must be .* written to .Read-only"):
        on_line(tmp_path)
    assert names(tmp_path) == ["file"]


RUNNING = """
    env.reset()
    for _ in range(50):
        env.step(1)
    stop()
    """
RESERVED = """
    env._recording.append = stop
    play(env, 1)
    """


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize(
    ("last", "length", "tail"), [(RUNNING, 10**9, 0), (RESERVED, 50, 1000)], ids=["run", "end"]
)
def test_a_killed_process_loses_the_running_episode_only(tmp_path, last, length, tail):
    script = """
    import sys
    from wrapper_harness import on_line, play

    def stop(*_):
        print("waiting", flush=True)
        sys.stdin.read()

    env = on_line(sys.argv[1], lengths=(4, 3, 5, int(sys.argv[2])))
    play(env, 3)
    """
    script = textwrap.dedent(script) + textwrap.dedent(last)
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), str(length)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    ) as process:
        assert process.stdout.readline() == b"waiting\n"
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    found = (tmp_path / SHARD).read_bytes()
    whole = found.rstrip(b" ")
    assert tail <= len(found) - len(whole) <= 100 * tail
    env = on_line(tmp_path, lengths=(6,))
    assert [len(episode) for episode in env._recording.episodes()] == [4, 3, 5]
    play(env, 1)
    assert names(tmp_path) == [SHARD]
    assert (tmp_path / SHARD).read_bytes().startswith(whole)
    assert lengths(tmp_path) == [4, 3, 5, 6]
    assert [row["episode"] for row in recorded(tmp_path)] == [0, 1, 2, 3]
    assert len(load(env.save_all_trajectories())) == 18
