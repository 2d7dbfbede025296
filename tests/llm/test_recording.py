"""Recordings: one writer a shard, no completed episode lost, and what is refused."""

import contextlib
import copy
import errno
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from episode_factory import make_episode

from kl_proteus.llm.recording import jsonl, locking
from kl_proteus.llm.recording.recorder import EpisodeRecording
from kl_proteus.llm.recording.shards import count_episodes, read_episodes

ENV = "CartPole-v1"
posix = pytest.mark.skipif(os.name != "posix", reason="needs fork, signals or links")


def rewards_of(recording):
    return [episode.base_rewards[0] for episode in recording.episodes()]


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def load(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def record(directory, *rewards, env_id=ENV):
    with EpisodeRecording(directory, env_id) as recording:
        for reward in rewards:
            recording.append(make_episode((reward,), env_id=env_id))
        return recording


def run_script(script, *arguments):
    """Run Python code in a process of its own, where it may fork and kill."""
    source = textwrap.dedent(script)
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_episodes_come_back(tmp_path):
    episode = make_episode((1.0, 0.5), padding=" 右👑")
    with EpisodeRecording(tmp_path / "new" / "dir", ENV) as recording:
        assert recording.path is None
        assert recording.append(episode) == 0
        assert recording.append(episode) == 1
        assert recording.path == tmp_path / "new" / "dir" / "episodes-CartPole-v1-0000.jsonl"
        assert list(recording.episodes()) == [episode, replace(episode, episode=1)]
        assert (recording.count, recording.appended) == (2, 2)
        text = recording.path.read_bytes().decode("utf-8")
    assert "右👑" in text
    assert [json.loads(line)["version"] for line in text.splitlines()] == [1, 1]


def test_nothing_is_created_before_the_first_episode(tmp_path):
    with EpisodeRecording(tmp_path / "new", ENV) as recording:
        assert names(tmp_path) == ["new"]
        assert names(tmp_path / "new") == []
        assert list(recording.episodes()) == []
        assert recording.count == 0


def test_each_episode_is_one_write(tmp_path, monkeypatch):
    sizes = []
    real = os.write

    def write(descriptor, data):
        sizes.append(len(data))
        return real(descriptor, data)

    with EpisodeRecording(tmp_path, ENV) as recording:
        monkeypatch.setattr(os, "write", write)
        recording.append(make_episode([1.0] * 5000))
        assert sizes == [recording.path.stat().st_size]


def test_recording_is_continued(tmp_path):
    record(tmp_path, 0.0, 1.0)
    with EpisodeRecording(tmp_path, ENV) as recording:
        assert recording.append(make_episode((2.0,))) == 2
        assert rewards_of(recording) == [0.0, 1.0, 2.0]
        assert (recording.count, recording.appended) == (3, 1)
    assert names(tmp_path) == ["episodes-CartPole-v1-0000.jsonl"]


def test_torn_tail_is_repaired_before_appending(tmp_path):
    path = tmp_path / "episodes-CartPole-v1-0000.jsonl"
    record(tmp_path, 0.0, 1.0)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:100])
    with EpisodeRecording(tmp_path, ENV) as recording:
        assert rewards_of(recording) == [0.0, 1.0]
        assert recording.count == 2
        assert recording.append(make_episode((2.0,))) == 2
        assert rewards_of(recording) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("tail", [b'{"format":"kl_pro', b"\0" * 999, b"\xff\xfe\n"])
def test_shard_with_nothing_but_a_torn_row_is_reused(tmp_path, tail):
    path = tmp_path / "episodes-CartPole-v1-0000.jsonl"
    path.write_bytes(tail)
    recording = record(tmp_path, 5.0)
    assert rewards_of(recording) == [5.0]
    assert names(tmp_path) == [path.name]


def test_row_without_its_newline_is_kept(tmp_path):
    path = tmp_path / "episodes-CartPole-v1-0000.jsonl"
    record(tmp_path, 0.0, 1.0)
    path.write_bytes(path.read_bytes()[:-1])
    recording = record(tmp_path, 2.0)
    assert rewards_of(recording) == [0.0, 1.0, 2.0]


def test_two_recordings_in_a_process_have_a_shard_each(tmp_path):
    with EpisodeRecording(tmp_path, ENV) as first, EpisodeRecording(tmp_path, ENV) as second:
        for reward in (0.0, 1.0):
            first.append(make_episode((reward,)))
            second.append(make_episode((reward + 10.0,)))
        assert names(tmp_path) == [f"episodes-CartPole-v1-000{i}.jsonl" for i in (0, 1)]
        assert rewards_of(first) == rewards_of(second) == [0.0, 1.0, 10.0, 11.0]
        assert [e.episode for e in first.episodes()] == [0, 1, 0, 1]
    # Both are free again, so neither grows a third.
    record(tmp_path, 2.0)
    assert len(names(tmp_path)) == 2


def write_some(directory, writer, barrier):
    with EpisodeRecording(directory, ENV) as recording:
        barrier.wait(timeout=60)
        for number in range(20):
            recording.append(make_episode((writer * 100.0 + number,)))
        barrier.wait(timeout=60)


def test_processes_have_a_shard_each(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    writers = [
        context.Process(target=write_some, args=(tmp_path, writer, barrier)) for writer in range(3)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=90)
        assert writer.exitcode == 0
    per_shard = [
        {int(row["base_rewards"][0]) // 100 for row in load(path)}
        for path in sorted(tmp_path.iterdir())
    ]
    assert sorted(per_shard, key=min) == [{0}, {1}, {2}]
    assert count_episodes(tmp_path, ENV) == 60


@posix
def test_killed_writers_lose_no_completed_episode(tmp_path):
    run_script(
        """
        import os, random, signal, sys, time
        from episode_factory import make_episode
        from kl_proteus.llm.recording.recorder import EpisodeRecording
        from kl_proteus.llm.recording.shards import read_episodes

        directory = sys.argv[1]
        random.seed(20)
        acknowledged = []
        for trial in range(15):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                if trial % 2:
                    # A system that takes little at a time, so that kills land inside a line.
                    os.write = lambda fd, data, write=os.write: write(fd, data[:512])
                recording = EpisodeRecording(directory, "CartPole-v1")
                for number in range(10_000):
                    name = trial * 10_000 + number
                    if trial % 3:
                        recording.reserve(210_000)
                    recording.append(make_episode([float(name)] * 4, padding="x" * 50_000))
                    os.write(writer, b"%d\\n" % name)
                os._exit(0)
            os.close(writer)
            with os.fdopen(reader, "rb") as pipe:
                first = pipe.readline()
                time.sleep(random.uniform(0.0, 0.01))
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                acknowledged += map(int, (first + pipe.read()).split())
            found = [int(episode.base_rewards[0]) for episode in read_episodes(directory)]
            # At most the last write was complete without having been acknowledged.
            assert set(acknowledged) <= set(found), (trial, acknowledged, found)
            assert len(found) <= len(acknowledged) + trial + 1
            assert found == sorted(found)
        """,
        tmp_path,
    )
    before = count_episodes(tmp_path)
    record(tmp_path, -1.0)
    assert names(tmp_path) == ["episodes-CartPole-v1-0000.jsonl"]
    rows = load(tmp_path / names(tmp_path)[0])
    assert [row["episode"] for row in rows] == list(range(before + 1))


@posix
@pytest.mark.parametrize("act", ["reserve", "append"])
def test_killed_with_space_reserved(tmp_path, act):
    record(tmp_path, 0.0, 1.0)
    run_script(
        """
        import os, signal, sys
        from episode_factory import make_episode
        from kl_proteus.llm.recording.recorder import EpisodeRecording

        directory, act = sys.argv[1:]
        child = os.fork()
        if child == 0:
            kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            recording = EpisodeRecording(directory, "CartPole-v1")
            recording.reserve(5000)
            if act == "append":
                # The row is complete, and blanks that were reserved follow it.
                os.ftruncate = kill
                recording.append(make_episode((2.0,)))
            kill()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        """,
        tmp_path,
        act,
    )
    kept = [0.0, 1.0] + [2.0] * (act == "append")
    path = tmp_path / "episodes-CartPole-v1-0000.jsonl"
    *rows, tail = path.read_bytes().split(b"\n")
    assert (len(rows), tail) == (len(kept), b" " * len(tail))
    assert len(tail) > 4000
    assert [e.base_rewards[0] for e in read_episodes(tmp_path)] == kept
    assert count_episodes(tmp_path) == len(kept)
    assert rewards_of(record(tmp_path, 3.0)) == [*kept, 3.0]
    assert names(tmp_path) == [path.name]
    assert [row["episode"] for row in load(path)] == list(range(len(kept) + 1))


@posix
def test_readers_see_whole_episodes_at_any_moment(tmp_path):
    run_script(
        """
        import os, sys
        from episode_factory import make_episode
        from kl_proteus.llm.recording.recorder import EpisodeRecording
        from kl_proteus.llm.recording.shards import count_episodes, read_episodes

        directory = sys.argv[1]
        child = os.fork()
        if child == 0:
            os.write = lambda fd, data, write=os.write: write(fd, data[:50_000])
            recording = EpisodeRecording(directory, "CartPole-v1")
            for _ in range(100):
                recording.reserve(850_000)
                recording.append(make_episode((1.0,) * 8, padding="x" * 100_000))
            os._exit(0)
        seen = 0
        ended = (0, 0)
        while ended[0] == 0:
            ended = os.waitpid(child, os.WNOHANG)
            before = seen
            counted = count_episodes(directory)
            seen = len(list(read_episodes(directory)))
            assert before <= counted <= seen, (before, counted, seen)
        assert (ended[1], seen) == (0, 100)
        """,
        tmp_path,
    )


@posix
def test_file_size_limit_leaves_a_valid_shard(tmp_path):
    script = """
        import resource, sys
        from episode_factory import make_episode
        from kl_proteus.llm.recording.recorder import EpisodeRecording

        recording = EpisodeRecording(sys.argv[1], "CartPole-v1")
        recording.append(make_episode((0.0,)))
        size = recording.path.stat().st_size
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300, limit[1]))
        for refused in (
            lambda: recording.append(make_episode((1.0,))),
            lambda: recording.reserve(301),
        ):
            try:
                refused()
            except OSError as error:
                assert "the episode was not recorded" in str(error), error
                assert str(recording.path) in str(error), error
            else:
                raise AssertionError("the limit was not noticed")
            assert recording.path.stat().st_size == size
        recording.reserve(300)
        assert recording.path.stat().st_size == size + 300
        assert (recording.count, recording.appended) == (1, 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert recording.append(make_episode((2.0,))) == 1
        """
    run_script(script, tmp_path)
    assert [e.base_rewards[0] for e in read_episodes(tmp_path)] == [0.0, 2.0]


def fail_after(monkeypatch, n_bytes, failure):
    real = os.write
    left = [n_bytes]

    def write(descriptor, data):
        if left[0] == 0:
            raise failure
        written = real(descriptor, data[: left[0]])
        left[0] -= written
        return written

    monkeypatch.setattr(os, "write", write)


@pytest.mark.parametrize("size", [1, 700, 100_000])
def test_a_row_takes_the_place_of_the_space_reserved_for_it(tmp_path, size):
    with EpisodeRecording(tmp_path / "a", ENV) as plain, EpisodeRecording(tmp_path, ENV) as ours:
        for reward in (0.0, 1.0):
            plain.append(make_episode((reward,)))
            before = ours.path.stat().st_size if ours.path else 0
            ours.reserve(size)
            ours.reserve(size // 2)
            assert ours.path.stat().st_size == before + size
            assert (rewards_of(ours), ours.count) == ([0.0] * int(reward), reward)
            assert ours.append(make_episode((reward,))) == reward
            assert ours.path.read_bytes() == plain.path.read_bytes()


def test_space_that_is_not_used_is_given_back(tmp_path):
    with EpisodeRecording(tmp_path, ENV) as recording:
        recording.release()
        recording.append(make_episode((0.0,)))
        path, whole = recording.path, recording.path.read_bytes()
        recording.reserve(5000)
        recording.release()
        assert path.read_bytes() == whole
        recording.reserve(5000)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()]
)
def test_space_that_cannot_be_reserved_leaves_the_shard_as_it_was(tmp_path, monkeypatch, failure):
    with EpisodeRecording(tmp_path, ENV) as recording:
        recording.append(make_episode((0.0,)))
        before = recording.path.read_bytes()
        with monkeypatch.context() as patch:
            fail_after(patch, 100, failure)
            with pytest.raises(type(failure)) as caught:
                recording.reserve(5000)
        if isinstance(failure, OSError):
            assert caught.value.errno == errno.ENOSPC
            assert "No space left on device; the episode was not recorded" in str(caught.value)
            assert str(recording.path) in str(caught.value)
        assert recording.path.read_bytes() == before
        assert recording.append(make_episode((2.0,))) == 1
        assert rewards_of(recording) == [0.0, 2.0]


def test_full_disk_leaves_the_episode_unrecorded(tmp_path, monkeypatch):
    with EpisodeRecording(tmp_path, ENV) as recording:
        recording.append(make_episode((0.0,)))
        before = recording.path.read_bytes()
        with monkeypatch.context() as patch:
            fail_after(patch, 100, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
            with pytest.raises(OSError, match=r"No space left.*not recorded.*0000") as caught:
                recording.append(make_episode((1.0,)))
        assert caught.value.errno == errno.ENOSPC
        assert recording.path.read_bytes() == before
        assert recording.append(make_episode((2.0,))) == 1
        assert rewards_of(recording) == [0.0, 2.0]


def test_interrupt_in_a_write_leaves_the_episode_unrecorded(tmp_path, monkeypatch):
    with EpisodeRecording(tmp_path, ENV) as recording:
        recording.append(make_episode((0.0,)))
        with monkeypatch.context() as patch:
            fail_after(patch, 100, KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                recording.append(make_episode((1.0,)))
        assert recording.append(make_episode((2.0,))) == 1
        assert rewards_of(recording) == [0.0, 2.0]


def test_tail_that_could_not_be_cut_off_is_repaired_later(tmp_path, monkeypatch):
    with EpisodeRecording(tmp_path, ENV) as recording:
        recording.append(make_episode((0.0,)))
        with monkeypatch.context() as patch:
            fail_after(patch, 100, OSError(errno.EIO, os.strerror(errno.EIO)))
            patch.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "")))
            with pytest.raises(OSError, match="not recorded"):
                recording.append(make_episode((1.0,)))
        assert rewards_of(recording) == [0.0]
        assert recording.append(make_episode((2.0,))) == 1
        assert rewards_of(recording) == [0.0, 2.0]


@posix
def test_deleted_shard_is_noticed(tmp_path):
    with EpisodeRecording(tmp_path / "dir", ENV) as recording:
        recording.append(make_episode((0.0,)))
        recording.path.unlink()
        (tmp_path / "dir").rmdir()
        assert recording.append(make_episode((1.0,))) == 0
        assert rewards_of(recording) == [1.0]


def test_fsync_waits_for_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with EpisodeRecording(tmp_path, ENV, fsync=True) as recording:
        recording.append(make_episode())
        before = len(synced)
        recording.append(make_episode())
        assert len(synced) == before + 1
    record(tmp_path, 1.0)
    assert len(synced) == before + 1


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda r: pickle.loads(pickle.dumps(r))]
)
def test_copies_open_their_own_shard(tmp_path, duplicate):
    with EpisodeRecording(tmp_path, ENV) as original:
        original.append(make_episode((0.0,)))
        with duplicate(original) as twin:
            assert (twin.path, twin.appended) == (None, 0)
            twin.append(make_episode((1.0,)))
            original.append(make_episode((2.0,)))
            assert twin.path != original.path
            assert rewards_of(twin) == [0.0, 2.0, 1.0]


@posix
def test_forked_child_opens_its_own_shard(tmp_path):
    run_script(
        """
        import os, sys
        from episode_factory import make_episode
        from kl_proteus.llm.recording.recorder import EpisodeRecording

        recording = EpisodeRecording(sys.argv[1], "CartPole-v1")
        recording.append(make_episode((0.0,)))
        path = recording.path
        child = os.fork()
        if child == 0:
            recording.append(make_episode((1.0,)))
            os._exit(0 if recording.path != path else 1)
        assert os.waitpid(child, 0)[1] == 0
        recording.reserve(5000)
        size = path.stat().st_size
        child = os.fork()
        if child == 0:
            recording.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert path.stat().st_size == size
        # The child closed its copy, and the lock is still the parent's.
        other = EpisodeRecording(sys.argv[1], "CartPole-v1")
        other.append(make_episode((2.0,)))
        assert other.path != path
        assert recording.append(make_episode((3.0,))) == 1
        """,
        tmp_path,
    )
    assert [e.base_rewards[0] for e in read_episodes(tmp_path)] == [0.0, 3.0, 1.0, 2.0]


@posix
def test_closing_frees_the_shard_although_a_child_inherited_it(tmp_path):
    run_script(
        """
        import os, signal, sys
        from episode_factory import make_episode
        from kl_proteus.llm.recording.recorder import EpisodeRecording

        recording = EpisodeRecording(sys.argv[1], "CartPole-v1")
        recording.append(make_episode((0.0,)))
        child = os.fork()
        if child == 0:
            signal.pause()
        recording.close()
        try:
            assert recording.append(make_episode((1.0,))) == 1
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        """,
        tmp_path,
    )


def test_without_locks_every_writer_creates_a_shard(tmp_path, monkeypatch):
    record(tmp_path, 0.0)
    monkeypatch.setattr(
        locking, "_lock", lambda _: (_ for _ in ()).throw(OSError(errno.ENOLCK, ""))
    )
    recording = record(tmp_path, 1.0)
    record(tmp_path, 2.0)
    assert rewards_of(recording) == [0.0, 1.0, 2.0]
    assert len(names(tmp_path)) == 3


def test_close_is_idempotent_and_append_reopens(tmp_path):
    recording = EpisodeRecording(tmp_path, ENV)
    recording.close()
    recording.append(make_episode((0.0,)))
    recording.close()
    recording.close()
    assert recording.path is None
    assert recording.append(make_episode((1.0,))) == 1
    assert rewards_of(recording) == [0.0, 1.0]
    del recording
    assert record(tmp_path, 2.0).count == 3
    assert len(names(tmp_path)) == 1


def test_environments_have_their_own_files(tmp_path):
    ids = ["ALE/Pong-v5", "ALE:Pong-v5", "ALE-Pong-v5", "日本/環境-v0", "../../etc/x", "e" * 300]
    for number, env_id in enumerate(ids):
        record(tmp_path, float(number), env_id=env_id)
    assert len(names(tmp_path)) == len(ids)
    for number, env_id in enumerate(ids):
        recording = record(tmp_path, number + 0.5, env_id=env_id)
        assert rewards_of(recording) == [number, number + 0.5]
        assert recording.count == 2
    assert len(names(tmp_path)) == len(ids)
    assert count_episodes(tmp_path) == len(list(read_episodes(tmp_path))) == 2 * len(ids)


def test_foreign_files_are_left_alone(tmp_path):
    row = make_episode().to_row()
    foreign = {
        "episodes-CartPole-v1-0000.jsonl": json.dumps({**row, "version": 2}) + "\n",
        "episodes-CartPole-v1-0001.jsonl": "no JSON\nat all\n",
        "episodes-CartPole-v1-02.jsonl": "another name",
        "notes.txt": "hello",
    }
    for name, text in foreign.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "episodes-CartPole-v1-0002.jsonl").mkdir()
    with EpisodeRecording(tmp_path, ENV) as recording:
        recording.append(make_episode())
        assert recording.path.name == "episodes-CartPole-v1-0003.jsonl"
        with pytest.raises(ValueError, match=r"0000\.jsonl must begin with .* version 1"):
            list(recording.episodes())
    for name, text in foreign.items():
        assert (tmp_path / name).read_text(encoding="utf-8") == text


def test_damage_inside_a_shard_is_reported_with_its_line(tmp_path):
    path = tmp_path / "episodes-CartPole-v1-0000.jsonl"
    record(tmp_path, 0.0, 1.0, 2.0)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b"1.0", b"1e999") + lines[2])
    episodes = read_episodes(tmp_path, ENV)
    assert next(episodes).base_rewards == (0.0,)
    with pytest.raises(
        ValueError, match=r"0000\.jsonl, line 2: base_rewards\[0\] must be a finite"
    ):
        next(episodes)


@pytest.mark.parametrize(
    ("output_dir", "env_id", "error", "message"),
    [
        (7, ENV, TypeError, "output_dir must be a path, got 7"),
        (b"x", ENV, TypeError, "output_dir must be a path, got b'x'"),
        ("", ENV, ValueError, "output_dir must be the path of a directory, got ''"),
        ("a\0b", ENV, ValueError, "output_dir must be the path of a directory"),
        ("new", None, TypeError, "env_id must be a str, got None"),
        ("new", "", ValueError, "env_id must hold"),
        ("new", "x\ud800", ValueError, "env_id must be text that UTF-8 can encode"),
    ],
)
def test_bad_arguments_create_nothing(tmp_path, monkeypatch, output_dir, env_id, error, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        EpisodeRecording(output_dir, env_id)
    assert names(tmp_path) == []


def test_bad_flag():
    with pytest.raises(TypeError, match="fsync must be a bool, got 1"):
        EpisodeRecording("unused", ENV, fsync=1)
    assert not Path("unused").exists()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_output_dir_that_is_a_file(tmp_path, name):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match=f"output_dir must be a directory .*{name}"):
        EpisodeRecording(tmp_path / name, ENV)
    assert (tmp_path / "file").read_text() == "mine"


def test_output_dir_that_is_read_only(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))

    # Permission bits do not stop a superuser, so the refusal is made here.
    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(OSError, match=r"output_dir must be .* written to .Read-only") as caught:
        EpisodeRecording(tmp_path, ENV)
    assert caught.value.filename == str(tmp_path)


def test_bad_episodes_leave_the_recording_as_it_was(tmp_path):
    with EpisodeRecording(tmp_path, ENV) as recording:
        with pytest.raises(TypeError, match="episode must be an Episode, got 3"):
            recording.append(3)
        with pytest.raises(ValueError, match="belong to 'CartPole-v1', got one of 'Other-v0'"):
            recording.append(make_episode(env_id="Other-v0"))
        assert names(tmp_path) == []


def test_relative_directory_survives_chdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with EpisodeRecording("out", ENV) as recording:
        monkeypatch.chdir(tmp_path / "elsewhere")
        recording.append(make_episode())
    assert names(tmp_path / "out") == ["episodes-CartPole-v1-0000.jsonl"]


def test_failed_construction_can_be_collected():
    with contextlib.suppress(TypeError):
        EpisodeRecording(7, ENV)
    EpisodeRecording.__new__(EpisodeRecording).close()


@pytest.mark.parametrize("written", [0.5, 1.0])
def test_an_interrupt_keeps_a_row_that_is_whole(tmp_path, monkeypatch, written):
    recording = EpisodeRecording(tmp_path, "CartPole-v1")
    recording.append(make_episode((1.0,)))
    write_all = jsonl.write_all

    def interrupted(descriptor, data):
        write_all(descriptor, data[: int(len(data) * written)])
        raise KeyboardInterrupt

    monkeypatch.setattr(jsonl, "write_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        recording.append(make_episode((2.0, 3.0)))
    monkeypatch.undo()
    recording.append(make_episode((4.0,)))
    rewards = [episode.base_rewards for episode in recording.episodes()]
    assert rewards == [(1.0,), *([(2.0, 3.0)] if written == 1.0 else []), (4.0,)]
    assert [episode.episode for episode in recording.episodes()] == list(range(len(rewards)))
