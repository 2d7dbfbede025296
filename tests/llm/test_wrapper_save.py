"""`save_all_trajectories`: where the file goes, what it replaces, and what stays behind."""

import os
import stat
from pathlib import Path

import pytest
from wrapper_harness import contents, load, names, on_line, play

SHARD = "episodes-Line-0000.jsonl"
FORMATS = ["chat", "completion", "preference"]


def test_default_name(tmp_path):
    env = on_line(tmp_path / "out")
    play(env, 2)
    path = env.save_all_trajectories()
    assert path == tmp_path / "out" / "trajectories.jsonl"
    assert isinstance(path, Path)
    assert len(load(path)) == 8


@pytest.mark.parametrize("kind", [str, Path])
def test_relative_names_lie_below_the_directory(tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = on_line("out")
    play(env, 1)
    path = env.save_all_trajectories(kind("sub/deep/x.jsonl"))
    assert path == tmp_path / "out" / "sub" / "deep" / "x.jsonl"
    assert names(tmp_path) == [
        "out",
        f"out/{SHARD}",
        "out/sub",
        "out/sub/deep",
        "out/sub/deep/x.jsonl",
    ]
    assert len(load(path)) == 4


@pytest.mark.parametrize("kind", [str, Path])
def test_absolute_names_stay_where_they_are(tmp_path, kind):
    env = on_line(tmp_path / "out")
    play(env, 1)
    target = tmp_path / "elsewhere" / "x.jsonl"
    assert env.save_all_trajectories(kind(target)) == target
    assert names(tmp_path / "out") == [SHARD]
    assert len(load(target)) == 4


def test_it_replaces_as_a_whole_and_goes_on(tmp_path):
    env = on_line(tmp_path)
    play(env, 3)
    path = env.save_all_trajectories()
    path.write_text("x" * 10**6)
    path.chmod(0o640)
    reader = path.open()
    assert env.save_all_trajectories() == path
    assert len(load(path)) == 12
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    with reader:
        assert reader.read() == "x" * 10**6
    # Saving changes nothing about recording, in the middle of an episode either.
    env.reset()
    env.step(1)
    assert len(load(env.save_all_trajectories())) == 12
    for _ in range(3):
        env.step(1)
    assert len(load(env.save_all_trajectories())) == 16
    assert names(tmp_path) == [SHARD, "trajectories.jsonl"]


def test_all_episodes_of_the_directory_are_saved(tmp_path):
    first, second = on_line(tmp_path, lengths=(3,)), on_line(tmp_path, lengths=(5,))
    play(first, 2)
    play(second, 1)
    for env in (first, second, on_line(tmp_path)):
        assert len(load(env.save_all_trajectories())) == 11
    second.close()
    assert len(load(second.save_all_trajectories())) == 11


@pytest.mark.parametrize("format_type", FORMATS)
@pytest.mark.parametrize("name", ["trajectories.jsonl", "new/deep/x.jsonl"])
def test_nothing_to_save_leaves_nothing_behind(tmp_path, format_type, name):
    env = on_line(tmp_path, format_type=format_type)
    env.reset()
    env.step(1)
    with pytest.raises(ValueError, match=r"must hold .*, got none"):
        env.save_all_trajectories(name)
    assert names(tmp_path) == []


def test_no_preference_leaves_the_old_file(tmp_path):
    env = on_line(tmp_path, format_type="preference")
    play(env, 2, actions=[1])
    (tmp_path / "trajectories.jsonl").write_text("old")
    before = contents(tmp_path)
    for name in ("trajectories.jsonl", "new/x.jsonl"):
        with pytest.raises(ValueError, match=r"two steps of one .* got none in 8"):
            env.save_all_trajectories(name)
    assert contents(tmp_path) == before
    assert not (tmp_path / "new").exists()


def test_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    env = on_line(tmp_path)
    play(env, 2)
    env.save_all_trajectories()
    play(env, 2)
    before = contents(tmp_path)

    def full(*_):
        raise OSError(28, os.strerror(28))

    for broken in ("write", "fsync"):
        for name in ("trajectories.jsonl", "new/x.jsonl"):
            with monkeypatch.context() as patch:
                patch.setattr(os, broken, full)
                with pytest.raises(OSError, match="No space left"):
                    env.save_all_trajectories(name)
            assert contents(tmp_path) == before
            assert not (tmp_path / "new").exists()
    assert len(load(env.save_all_trajectories())) == 16


def test_a_file_of_the_recording_is_never_replaced(tmp_path):
    env = on_line(tmp_path)
    play(env, 1)
    before = contents(tmp_path)
    for name in (SHARD, "episodes-Line-0007.jsonl", tmp_path / SHARD):
        with pytest.raises(ValueError, match="must not be a file of a recording"):
            env.save_all_trajectories(name)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (7, TypeError, r"name must be a path, got 7 \(int\)"),
        (None, TypeError, "name must be a path, got None"),
        (b"x", TypeError, "name must be a path, got b'x'"),
        ("", ValueError, "name must be the path of a file, got ''"),
        ("a\0b", ValueError, r"name must be the path of a file, got 'a\\x00b'"),
        (".", OSError, "must be a file to write, got the directory"),
        (f"{SHARD}/x", OSError, SHARD),
    ],
)
def test_names_that_are_no_file(tmp_path, name, error, message):
    env = on_line(tmp_path)
    play(env, 1)
    before = contents(tmp_path)
    with pytest.raises(error, match=message):
        env.save_all_trajectories(name)
    assert contents(tmp_path) == before
    assert names(tmp_path) == [SHARD]


def test_damage_in_a_recording_is_named_and_leaves_the_old_file(tmp_path):
    env = on_line(tmp_path)
    play(env, 3)
    env.save_all_trajectories()
    env.close()
    first, second, third = (tmp_path / SHARD).read_bytes().splitlines(keepends=True)
    (tmp_path / SHARD).write_bytes(first + second.replace(b"1.0", b"NaN", 1) + third)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=rf"{SHARD}, line 2: .*strict JSON, got the literal NaN"):
        env.save_all_trajectories()
    assert contents(tmp_path) == before
