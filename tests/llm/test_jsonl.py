"""Strict JSON Lines: what is written, repaired, replaced and refused."""

import errno
import json
import math
import os
import stat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kl_proteus.llm.recording import jsonl

ROWS = [{"a": "👑ñ", "b": 1.0}, {"a": "x\u2028y\x85z\n", "b": -0.5}, {"a": "", "b": 1e-300}]

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=8,
)


def refuse(name):
    raise AssertionError(name)


def names(directory):
    return [path.name for path in directory.iterdir()]


def write(path, rows):
    path.write_bytes(b"".join(map(jsonl.encode_row, rows)))


@given(st.dictionaries(st.text("ab\u2029", max_size=3), json_values, max_size=4))
def test_encoded_rows_are_one_line_and_round_trip(row):
    line = jsonl.encode_row(row)
    text = line.decode("utf-8")
    assert text.endswith("\n")
    assert text.splitlines() == [text[:-1]]
    assert json.loads(text, parse_constant=refuse) == row


def test_text_is_utf8_without_a_byte_order_mark():
    assert jsonl.encode_row({"a": "👑ñ"}) == '{"a":"👑ñ"}\n'.encode()


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        ({"a": math.nan}, ValueError, "a must be finite .* got nan"),
        ({"a": [{"b": [1.0, -math.inf]}]}, ValueError, r"a\[0\]\.b\[1\] must be finite"),
        ({"a": np.float64("inf")}, ValueError, "a must be finite"),
        ({"m": [{"content": "x\ud800"}]}, ValueError, r"m\[0\]\.content must be text .* '\\ud800'"),
        ({"\udc80": 1}, ValueError, "the field name .* must be text"),
        ({"a": np.float32(1)}, TypeError, r"a must be a JSON value .* got .*float32"),
        ({"a": {"b": {1, 2}}}, TypeError, r"a\.b must be a JSON value"),
        ({"a": b"x"}, TypeError, "a must be a JSON value"),
        ({"a": {(1, 2): 3}}, TypeError, r"must be a str field name, got \(1, 2\)"),
    ],
)
def test_values_without_a_strict_form_are_refused_by_name(row, error, message):
    with pytest.raises(error, match=message):
        jsonl.encode_row(row)


def test_read_returns_what_was_written(tmp_path):
    path = tmp_path / "x.jsonl"
    assert jsonl.write_atomic(path, iter(ROWS)) == len(ROWS)
    assert list(jsonl.read_rows(path)) == ROWS
    assert jsonl.count_rows(path) == len(ROWS)
    assert b"\r" not in path.read_bytes()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a":NaN}\n', "literal NaN"),
        (b'{"a":\n', "invalid text"),
        (b"\n", "invalid text"),
        (b'{"a":"\xff"}\n', "utf-8"),
        (b"[1]\n", "JSON object, got a list"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
    ],
)
def test_read_names_the_file_and_the_line(tmp_path, line, message):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\n' + line + b'{"a":2}\n')
    with pytest.raises(ValueError, match=rf"x\.jsonl, line 2: .*{message}"):
        list(jsonl.read_rows(path, skip_torn_tail=True))


def test_read_stops_at_the_rows_there_were(tmp_path):
    path = tmp_path / "x.jsonl"
    write(path, ROWS)
    rows = jsonl.read_rows(path)
    seen = [next(rows)]
    with path.open("ab") as file:
        file.write(b'{"a":"later"}\n')
    assert [*seen, *rows] == ROWS


def test_a_torn_tail_that_becomes_a_row_while_reading_is_left_out(tmp_path):
    path = tmp_path / "x.jsonl"
    write(path, ROWS)
    size = path.stat().st_size
    line = jsonl.encode_row({"a": "x" * 1_000_000})
    # Longer than any buffer, so that reading it now and later does not fit together.
    with path.open("ab") as file:
        file.write(b" " * (len(line) + 50))
    rows = jsonl.read_rows(path, skip_torn_tail=True)
    seen = [next(rows)]
    with path.open("r+b") as file:
        file.seek(size)
        file.write(line)
        file.truncate()
    assert [*seen, *rows] == ROWS
    assert jsonl.count_rows(path) == len(ROWS) + 1


@given(st.data())
def test_any_torn_tail_is_repaired_and_whole_rows_stay(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("torn") / "x.jsonl"
    whole = b"".join(map(jsonl.encode_row, ROWS))
    cut = data.draw(st.integers(0, len(whole)))
    garbage = (
        data.draw(st.sampled_from([b"", b" " * 5000, b"\0" * 5000, b"\xff\n"]))
        if cut == len(whole)
        else b""
    )
    path.write_bytes(whole[:cut] + garbage)

    # A row that lacks nothing but its newline is whole.
    rows = [row for i, row in enumerate(ROWS) if _end(i) - 1 <= cut]
    assert jsonl.count_rows(path) == len(rows)
    assert list(jsonl.read_rows(path, skip_torn_tail=True)) == rows
    kept = sum(len(jsonl.encode_row(row)) for row in rows)
    assert jsonl.repair_tail(path) == max(0, cut + len(garbage) - kept)
    assert path.read_bytes() == whole[:kept]
    assert jsonl.repair_tail(path) == 0
    assert list(jsonl.read_rows(path)) == rows


def _end(index):
    return sum(len(jsonl.encode_row(row)) for row in ROWS[: index + 1])


def test_long_torn_lines_are_found(tmp_path):
    path = tmp_path / "x.jsonl"
    long = jsonl.encode_row({"a": "é" * 300_000})
    path.write_bytes(long + long + long[:-10])
    assert jsonl.repair_tail(path) == len(long) - 10
    assert path.read_bytes() == long + long


def test_repair_warns_about_what_it_drops(tmp_path, caplog):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":')
    jsonl.repair_tail(path)
    assert "x.jsonl: dropped a torn last line of 5 bytes" in caplog.text


def test_repair_keeps_a_row_that_is_merely_not_strict(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":NaN}\n')
    assert jsonl.repair_tail(path) == 0
    with pytest.raises(ValueError, match="literal NaN"):
        list(jsonl.read_rows(path, skip_torn_tail=True))


def test_repair_leaves_files_alone_that_are_not_json_lines(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_bytes(b"Dear diary,\ntoday\n")
    with pytest.raises(ValueError, match=r"notes\.txt must be JSON Lines"):
        jsonl.repair_tail(path)
    assert path.read_bytes() == b"Dear diary,\ntoday\n"


def test_replacing_is_all_or_nothing(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"old")

    def rows():
        yield from ROWS
        raise RuntimeError("source failed")

    with pytest.raises(RuntimeError, match="source failed"):
        jsonl.write_atomic(path, rows())
    with pytest.raises(ValueError, match="b must be finite"):
        jsonl.write_atomic(path, [*ROWS, {"a": "", "b": math.nan}])
    with pytest.raises(ValueError, match=r"rows must hold at least one row.*x\.jsonl was left"):
        jsonl.write_atomic(path, [])
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["x.jsonl"]


def test_full_disk_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"old")
    real = os.write
    budget = [1_500_000]

    def write_until_full(descriptor, data):
        if budget[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(descriptor, data[: budget[0]])
        budget[0] -= written
        return written

    monkeypatch.setattr(os, "write", write_until_full)
    rows = ({"a": "x" * 1000} for _ in range(5000))
    with pytest.raises(
        OSError, match=r"No space left on device.*left as it was.*x\.jsonl"
    ) as caught:
        jsonl.write_atomic(path, rows)
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["x.jsonl"]


def test_partial_writes_are_completed(tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
    jsonl.write_atomic(path, ROWS)
    assert list(jsonl.read_rows(path)) == ROWS


def test_a_system_that_writes_nothing_does_not_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "write", lambda descriptor, data: 0)
    with pytest.raises(OSError, match="left as it was"):
        jsonl.write_atomic(tmp_path / "x.jsonl", ROWS)
    assert names(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions and links")
def test_permissions_and_links_are_kept(tmp_path):
    path = tmp_path / "x.jsonl"
    link = tmp_path / "link.jsonl"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    jsonl.write_atomic(link, ROWS)
    assert link.is_symlink()
    assert list(jsonl.read_rows(path)) == ROWS
    assert stat.S_IMODE(path.stat().st_mode) == 0o640

    previous = os.umask(0o027)
    try:
        jsonl.write_atomic(tmp_path / "new.jsonl", ROWS)
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "new.jsonl").stat().st_mode) == 0o640


def test_targets_that_are_no_files_are_refused(tmp_path):
    with pytest.raises(IsADirectoryError, match="path must be a file"):
        jsonl.write_atomic(tmp_path, ROWS)
    with pytest.raises(FileNotFoundError, match=r"existing directory, got .*missing"):
        jsonl.write_atomic(tmp_path / "missing" / "x.jsonl", ROWS)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ValueError, match=r"path must be a regular file, got .*pipe"):
            jsonl.write_atomic(tmp_path / "pipe", ROWS)
        assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
