"""Training files: the exact rows, what is refused, and that nothing is lost on the way."""

import json
import tracemalloc

import pytest
from episode_factory import make_episode

from kl_proteus.llm.export import FORMAT_TYPES, check_format_type, export, rows
from kl_proteus.llm.recording.recorder import EpisodeRecording

PAIR = [
    make_episode((2.0,), observations=[7], actions=[0]),
    make_episode((1.0,), observations=[7], actions=[1]),
]
SYSTEM = {"role": "system", "content": "Keep the pole upright."}


def message(role, content):
    return {"role": role, "content": content}


def load(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_chat_rows():
    assert list(rows(PAIR, "chat")) == [
        {"messages": [SYSTEM, message("user", "obs 7"), message("assistant", f"act {action}")]}
        for action in (0, 1)
    ]


def test_completion_rows():
    assert list(rows(PAIR, "completion")) == [
        {
            "prompt": "Keep the pole upright.\n\nobs 7\nAction:",
            "completion": f" act {action}",
        }
        for action in (0, 1)
    ]


def test_preference_rows():
    assert list(rows(PAIR, "preference")) == [
        {
            "prompt": [SYSTEM, message("user", "obs 7")],
            "chosen": [message("assistant", "act 0")],
            "rejected": [message("assistant", "act 1")],
        }
    ]


def test_no_empty_system_message():
    episode = make_episode((1.0,), system_prompt="")
    (chat,) = rows([episode], "chat")
    assert [part["role"] for part in chat["messages"]] == ["user", "assistant"]
    assert next(rows([episode], "completion"))["prompt"] == "obs 0\nAction:"


@pytest.mark.parametrize("format_type", FORMAT_TYPES)
def test_file_holds_the_rows(tmp_path, format_type):
    path = export(PAIR, tmp_path / "x.jsonl", format_type)
    assert path == tmp_path / "x.jsonl"
    assert load(path) == list(rows(PAIR, format_type))


@pytest.mark.parametrize("format_type", FORMAT_TYPES)
def test_recording_is_exported_with_text_of_any_language(tmp_path, format_type):
    with EpisodeRecording(tmp_path, "CartPole-v1") as recording:
        for number, text in enumerate(["links", "右👑\u2028ñ"]):
            recording.append(
                make_episode((number,), observations=[0], actions=[number], texts=[text])
            )
        path = export(recording, str(tmp_path / "x.jsonl"), format_type)
        expected = list(rows(recording.episodes(), format_type))
    assert load(path) == expected
    assert "右👑" in path.read_text(encoding="utf-8")


def test_export_replaces(tmp_path):
    path = tmp_path / "x.jsonl"
    export(PAIR, path, "chat")
    export(PAIR[:1], path, "chat")
    assert len(load(path)) == 1


@pytest.mark.parametrize(
    ("source", "format_type", "text"),
    [
        ([], "chat", "at least one completed episode to export as chat, got none"),
        ([], "preference", "two steps of one observation cell .* got none in 0 steps"),
        (
            PAIR[:1],
            "preference",
            "got none in 1 steps of 1 episodes .1 cells, 0 steps tied, 1 with",
        ),
        (["x"], "chat", "episode must be an Episode, got 'x'"),
        (["x"], "preference", "episode must be an Episode, got 'x'"),
    ],
)
def test_nothing_to_write_leaves_the_old_file(tmp_path, source, format_type, text):
    path = tmp_path / "x.jsonl"
    path.write_text("old")
    with pytest.raises((ValueError, TypeError), match=text):
        export(source, path, format_type)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.jsonl"]


def test_recording_is_never_overwritten(tmp_path):
    with EpisodeRecording(tmp_path, "CartPole-v1") as recording:
        recording.append(PAIR[0])
        renamed = tmp_path / "renamed.jsonl"
        renamed.write_bytes(recording.path.read_bytes())
        for path in (recording.path, tmp_path / "episodes-Other-v0-0007.jsonl", renamed):
            with pytest.raises(ValueError, match="path must not be a file of a recording"):
                export(recording, path, "chat")
        assert list(recording.episodes()) == [PAIR[0]]


@pytest.mark.parametrize(
    ("format_type", "error", "text"),
    [
        ("dpo", ValueError, "one of 'chat', 'completion', 'preference', got 'dpo'"),
        (None, TypeError, "format_type must be a str, got None"),
    ],
)
def test_format_type_is_checked_in_one_place(tmp_path, format_type, error, text):
    for call in (
        lambda: check_format_type(format_type),
        lambda: rows(PAIR, format_type),
        lambda: export(PAIR, tmp_path / "x.jsonl", format_type),
    ):
        with pytest.raises(error, match=text):
            call()
    assert list(tmp_path.iterdir()) == []


def test_numbers_are_checked_before_the_first_row():
    with pytest.raises(ValueError, match="gamma must be >= 0 and <= 1, got 2"):
        rows(PAIR, "chat", gamma=2)
    with pytest.raises(ValueError, match="min_margin must be >= 0"):
        rows(PAIR, "completion", min_margin=-1)


def test_chat_export_streams(tmp_path):
    episode = make_episode([1.0] * 500, padding="x" * 200)

    def peak(n_episodes):
        tracemalloc.start()
        export((episode for _ in range(n_episodes)), tmp_path / "x.jsonl", "chat")
        _, size = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return size

    # 40 episodes are 7 MB of rows.
    assert peak(40) < peak(10) + 1_000_000
