"""The cache of log-probabilities: what hits, what never does, and what damage does."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from reference_models import batch, llama, with_lora
from safetensors.torch import load_file, save_file

from kl_proteus.torch import LogprobCache, ReferenceModel
from kl_proteus.torch.cache import row_key

IDS, MASK = batch(rows=4)
PRINT = "f" * 64


class Counted:
    """Counts the forward passes of a model's backbone."""

    def __init__(self, model):
        self.rows = []
        model.model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module, args, kwargs):
        self.rows.append(len(kwargs["input_ids"]))


@pytest.fixture
def model():
    return llama()


def files(cache):
    return sorted(p for p in cache.directory.rglob("*") if p.is_file())


# Hits -------------------------------------------------------------------------------------------


def test_a_second_epoch_runs_no_forward_pass(model, tmp_path):
    counted = Counted(model)
    reference = ReferenceModel(model, cache=tmp_path)
    plain = ReferenceModel(model).token_logprobs(IDS, MASK)
    first = reference.token_logprobs(IDS, MASK)
    counted.rows.clear()
    # Another order, other batches, other padding: the rows are what counts.
    order = [2, 0, 3, 1]
    for start in (0, 2):
        rows = order[start : start + 2]
        ids = torch.cat([torch.full((2, 3), 7), IDS[rows]], dim=1)
        mask = torch.cat([torch.zeros(2, 3, dtype=torch.long), MASK[rows]], dim=1)
        again = reference.token_logprobs(ids, mask)
        assert torch.equal(again.logprobs[:, 3:], first.logprobs[rows])
        assert torch.equal(again.mask[:, 3:], first.mask[rows])
    assert counted.rows == []
    assert (reference.cache.hits, reference.cache.misses, reference.cache.unsaved) == (4, 4, 0)
    assert torch.equal(first.logprobs, plain.logprobs)
    assert (again.temperature, again.vocab_size, again.alignment) == (1.0, 259, "token")
    assert not again.requires_grad


def test_another_process_and_another_object_find_it(model, tmp_path):
    first = ReferenceModel(model, cache=tmp_path).token_logprobs(IDS, MASK)
    counted = Counted(model)
    again = ReferenceModel(llama(), cache=LogprobCache(tmp_path)).token_logprobs(IDS, MASK)
    assert torch.equal(first.logprobs, again.logprobs)
    assert counted.rows == []


def test_only_missing_rows_run(model, tmp_path):
    counted = Counted(model)
    reference = ReferenceModel(model, cache=tmp_path)
    reference.token_logprobs(IDS[:3], MASK[:3])
    counted.rows.clear()
    got = reference.token_logprobs(IDS, MASK)
    assert counted.rows == [1]
    expected = ReferenceModel(model).token_logprobs(IDS, MASK)
    assert (got.logprobs - expected.logprobs).abs().max() < 2e-5


def test_alignment_and_columns_come_from_the_same_rows(model, tmp_path):
    counted = Counted(model)
    reference = ReferenceModel(model, cache=tmp_path)
    reference.token_logprobs(IDS, MASK)
    counted.rows.clear()
    got = reference.token_logprobs(IDS, MASK, alignment="next")
    assert counted.rows == []
    expected = ReferenceModel(model).token_logprobs(IDS, MASK, alignment="next")
    assert torch.equal(got.logprobs, expected.logprobs)
    assert torch.equal(got.mask, expected.mask)
    # Columns 5.. of "token" are 4.. of "next".
    reference.token_logprobs(IDS, MASK, columns=slice(5, None))
    counted.rows.clear()
    reference.token_logprobs(IDS, MASK, columns=slice(4, -1), alignment="next")
    assert counted.rows == []


def test_rows_without_a_scored_token_are_not_kept(model, tmp_path):
    reference = ReferenceModel(model, cache=tmp_path)
    got = reference.token_logprobs(IDS, torch.zeros_like(IDS))
    assert not got.mask.any()
    assert reference.token_logprobs(IDS[:0]).shape == (0, 12)
    assert reference.cache.size().rows == 0


# What never hits ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda m: {"temperature": 0.5},
        lambda m: {"vocab_size": 258},
        lambda m: m.lm_head.weight[0, 0].add_(1),
        lambda m: m.model.rotary_emb.inv_freq.mul_(1.01),
        lambda m: m.set_attn_implementation("eager"),
        lambda m: m.to(torch.bfloat16),
        lambda m: setattr(m.config, "rms_norm_eps", 1e-2),
    ],
    ids=["temperature", "vocabulary", "weight", "buffer", "attention", "dtype", "config"],
)
def test_another_computation_misses(model, tmp_path, change):
    ids = IDS.clamp(max=257)
    ReferenceModel(model, cache=tmp_path).token_logprobs(ids, MASK)
    with torch.no_grad():
        options = change(model)
    reference = ReferenceModel(
        model, cache=tmp_path, **(options if isinstance(options, dict) else {})
    )
    reference.token_logprobs(ids, MASK)
    assert (reference.cache.hits, reference.cache.misses) == (0, 4)


@pytest.mark.parametrize(
    "change",
    [
        {"ids": lambda ids: ids.roll(1, 1)},
        {"mask": lambda mask: mask * (torch.arange(12) != 5)},
        {"columns": slice(5, None)},
        {"score_mask": (torch.arange(12) != 5).expand(4, 12)},
        {"tokenizer_hash": "other"},
    ],
    ids=["ids", "kept tokens", "columns", "scored tokens", "tokenizer"],
)
def test_another_question_misses(model, tmp_path, change):
    reference = ReferenceModel(model, cache=tmp_path)
    reference.token_logprobs(IDS, MASK)
    change = dict(change)
    ids = change.pop("ids", lambda x: x)(IDS)
    mask = change.pop("mask", lambda x: x)(MASK)
    reference.token_logprobs(ids, mask, **change)
    assert (reference.cache.hits, reference.cache.misses) == (0, 8)


def test_adapters_and_versions_miss(tmp_path):
    policy = with_lora(llama(), "default", "ref")
    for adapter in (None, "ref", "default"):
        reference = ReferenceModel(policy, adapter=adapter, cache=tmp_path)
        reference.token_logprobs(IDS, MASK)
        assert (reference.cache.hits, reference.cache.misses) == (0, 4)
    with torch.no_grad():
        next(p for n, p in policy.named_parameters() if "lora_B.ref" in n).add_(1)
    reference = ReferenceModel(policy, adapter="ref", cache=tmp_path)
    reference.token_logprobs(IDS, MASK)
    assert reference.cache.hits == 0


def test_a_moving_average_misses_after_an_update(tmp_path):
    policy = llama()
    reference = ReferenceModel.ema(policy, 0.5, cache=tmp_path)
    before = reference.token_logprobs(IDS, MASK)
    with torch.no_grad():
        policy.lm_head.weight.mul_(2)
    reference.update()
    after = reference.token_logprobs(IDS, MASK)
    assert reference.cache.hits == 0
    assert not torch.equal(before.logprobs, after.logprobs)
    # And nothing has changed in an update to the same weights, but it is another version.
    still = ReferenceModel.snapshot(policy, cache=tmp_path)
    still.token_logprobs(IDS, MASK)
    still.update()
    still.token_logprobs(IDS, MASK)
    assert still.cache.hits == 0


def test_a_changed_model_is_an_error_rather_than_a_hit(model, tmp_path):
    reference = ReferenceModel(model, cache=tmp_path)
    reference.token_logprobs(IDS, MASK)
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    with pytest.raises(RuntimeError, match="changed"):
        reference.token_logprobs(IDS, MASK)


def test_keys_tell_tokens_and_settings_apart():
    keys = {
        row_key({}, []),
        row_key({}, [1, 2]),
        row_key({}, [2, 1]),
        row_key({}, [1, 2, 0]),
        row_key({}, [258]),
        row_key({}, [-1]),
        row_key({"a": 1}, [1, 2]),
        row_key({"a": "1"}, [1, 2]),
        row_key({"b": 1}, [1, 2]),
    }
    assert len(keys) == 9
    assert row_key({"a": 1, "b": 2}, [3]) == row_key({"b": 2, "a": 1}, [3])


# Files ------------------------------------------------------------------------------------------


def test_layout_and_content(tmp_path):
    cache = LogprobCache(tmp_path / "new" / "cache")
    key = row_key({}, [1])
    cache.put(PRINT, {key: torch.tensor([-1.5, float("-inf")])}, 7, {"device": "cpu"})
    [path] = files(cache)
    relative = path.relative_to(tmp_path / "new" / "cache")
    assert relative == Path("v1", "f" * 16, key[:2], f"{key}.safetensors")
    assert load_file(path)["logprobs"].tolist() == [-1.5, float("-inf")]
    row = cache.get(PRINT, key)
    assert row.logprobs.tolist() == [-1.5, float("-inf")]
    assert row.vocab_size == 7
    assert cache.get(PRINT, row_key({}, [2])) is None
    assert cache.get("a" * 64, key) is None


def test_nan_is_not_kept(tmp_path):
    cache = LogprobCache(tmp_path)
    good = torch.tensor([-1.0])
    cache.put(PRINT, {"aa": torch.tensor([float("nan")]), "bb": good}, 7)
    assert cache.get(PRINT, "aa") is None
    assert torch.equal(cache.get(PRINT, "bb").logprobs, good)
    assert cache.unsaved == 1


def test_rows_are_counted_once_and_nan_does_not_use_up_the_warning(tmp_path, monkeypatch):
    from kl_proteus.torch import cache as module

    cache = LogprobCache(tmp_path)
    written = []

    def third_time_full(descriptor, data):
        if len(written) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(os.write(descriptor, data))

    monkeypatch.setattr(module, "write_all", third_time_full)
    nan = torch.tensor([float("nan")])
    cache.put(PRINT, {"aa": nan}, 7)
    rows = {"bb": torch.zeros(1), "cc": nan, "dd": torch.zeros(1), "ee": torch.zeros(1)}
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        cache.put(PRINT, rows, 7)
    assert cache.unsaved == 3
    assert cache.size().rows == 2


def test_a_file_that_cannot_be_read_now_is_kept(tmp_path, monkeypatch):
    cache = LogprobCache(tmp_path)
    cache.put(PRINT, {"aa": torch.zeros(1)}, 7)

    def refuse(_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        assert cache.get(PRINT, "aa") is None
    assert cache.get(PRINT, "aa") is not None


def test_a_model_that_may_change_misses(model, tmp_path):
    reference = ReferenceModel(model, cache=tmp_path, verify=False)
    before = reference.token_logprobs(IDS, MASK)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.5)
    after = reference.token_logprobs(IDS, MASK)
    assert (reference.cache.hits, reference.cache.misses) == (0, 8)
    assert torch.equal(after.logprobs, ReferenceModel(model).token_logprobs(IDS, MASK).logprobs)
    assert not torch.equal(after.logprobs, before.logprobs)


def test_a_tokenizer_is_named_by_its_hash(model, tmp_path):
    with pytest.raises(TypeError, match="tokenizer_hash must be a str or None"):
        ReferenceModel(model, cache=tmp_path).token_logprobs(IDS, MASK, tokenizer_hash=7)


@pytest.mark.parametrize("name", ["", "..", "../" * 8, "F" * 64, "f" * 15])
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    (tmp_path / "mine").write_text("")
    cache = LogprobCache(tmp_path / "cache")
    cache.put(PRINT, {"aa": torch.zeros(1)}, 7)
    for call in (
        lambda: cache.clear(name),
        lambda: cache.get(name, "aa"),
        lambda: cache.put(name, {"aa": torch.zeros(1)}, 7),
        lambda: cache.get(PRINT, name[:3] + "/"),
    ):
        with pytest.raises(ValueError, match="hexadecimal digits"):
            call()
    with pytest.raises(TypeError, match="fingerprint must be a str"):
        cache.clear(7)
    assert cache.size().rows == 1
    assert (tmp_path / "mine").exists()


def damage_cases():
    def flip(path, place):
        data = bytearray(path.read_bytes())
        data[place] ^= 1
        path.write_bytes(data)

    def other_name(path):
        other = path.with_name(path.name.replace(path.name[:8], "0" * 8))
        path.rename(other)
        path.write_bytes(other.read_bytes())
        other.unlink()
        save_file({"logprobs": torch.zeros(3)}, path, {"key": "another"})

    yield "empty", lambda p: p.write_bytes(b"")
    yield "torn header", lambda p: os.truncate(p, 20)
    yield "torn data", lambda p: os.truncate(p, p.stat().st_size - 2)
    yield "longer", lambda p: p.write_bytes(p.read_bytes() + b"x")
    yield "flipped bit", lambda p: flip(p, -1)
    yield "flipped length", lambda p: flip(p, 0)
    yield "not safetensors", lambda p: p.write_text("hello, this is a text of some length")
    yield "another row", other_name
    yield "no metadata", lambda p: save_file({"logprobs": torch.zeros(3)}, p)
    yield "other tensors", lambda p: save_file({"x": torch.zeros(3)}, p)


@pytest.mark.parametrize("damage", [pytest.param(case, id=name) for name, case in damage_cases()])
def test_a_damaged_file_is_a_miss_and_goes_away(model, tmp_path, damage):
    reference = ReferenceModel(model, cache=tmp_path)
    first = reference.token_logprobs(IDS[:1], MASK[:1])
    [path] = files(reference.cache)
    damage(path)
    # Looked at through the cache alone it is deleted; through a model it is written anew.
    assert reference.cache.get(reference.fingerprint, path.stem) is None
    assert files(reference.cache) == []
    again = reference.token_logprobs(IDS[:1], MASK[:1])
    assert torch.equal(first.logprobs, again.logprobs)
    assert files(reference.cache) == [path]
    assert reference.cache.get(reference.fingerprint, path.stem) is not None


def test_size_and_clear(tmp_path):
    cache = LogprobCache(tmp_path)
    assert cache.size() == (0, 0, 0, 0)
    row = torch.zeros(5)
    for model in "ab":
        cache.put(model * 64, {row_key({}, [i]): row for i in range(3)}, 7)
    (tmp_path / "notes.txt").write_text("mine")
    left = files(cache)[1].with_name("x.safetensors.tmp.1.ab")
    left.write_bytes(b"half")
    assert cache.size().leftovers == 0  # it may be being written
    os.utime(left, (0, time.time() - 7200))
    size = cache.size()
    assert (size.rows, size.models, size.leftovers) == (6, 2, 1)
    assert size.bytes == sum(p.stat().st_size for p in files(cache) if p.suffix == ".safetensors")
    assert cache.clear("a" * 64) == 3
    assert cache.size()[:1] == (3,)
    assert cache.clear() == 3
    assert cache.clear() == 0
    assert files(cache) == [tmp_path / "notes.txt"]
    assert repr(cache) == f"LogprobCache({str(tmp_path)!r})"


# Disks that refuse ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_refuses_stops_nothing_and_warns_once(model, tmp_path, monkeypatch, number):
    reference = ReferenceModel(model, cache=tmp_path)
    expected = ReferenceModel(model).token_logprobs(IDS, MASK)

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr("kl_proteus.torch.cache.write_all", refuse)
        with pytest.warns(RuntimeWarning, match=os.strerror(number)) as caught:
            got = reference.token_logprobs(IDS, MASK)
        assert torch.equal(got.logprobs, expected.logprobs)
        assert "cache" in str(caught[0].message)
        assert reference.token_logprobs(IDS, MASK) is not None  # and no second warning
        assert reference.cache.unsaved == 8
        assert files(reference.cache) == []
    reference.token_logprobs(IDS, MASK)
    assert len(files(reference.cache)) == 4


@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
def test_a_full_disk_leaves_no_half_file(tmp_path):
    code = """
import resource, sys, warnings
import torch
from kl_proteus.torch import LogprobCache
warnings.simplefilter("ignore")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
cache = LogprobCache(sys.argv[1])
cache.put("f" * 64, {"aa": torch.zeros(4)}, 7)
cache.put("f" * 64, {"bb": torch.zeros(4000)}, 7)
print(cache.unsaved, cache.size().rows)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["1", "1"]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["aa.safetensors"]


def test_a_directory_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        LogprobCache(tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        LogprobCache(tmp_path / "file" / "below")
    with pytest.raises(ValueError, match="directory must be"):
        LogprobCache("")
    with pytest.raises(TypeError, match="directory must be a path"):
        LogprobCache(3)


# Many processes ---------------------------------------------------------------------------------

WORKERS = """
import os, sys
import torch
from kl_proteus.torch import LogprobCache
from kl_proteus.torch.cache import row_key

def work(number):
    cache = LogprobCache(sys.argv[1])
    bad = 0
    for turn in range(60):
        for row in range(5):
            key = row_key({}, [row])
            values = torch.arange(200, dtype=torch.float32) + row
            found = cache.get("f" * 64, key)
            if found is None:
                cache.put("f" * 64, {key: values}, 7)
            elif not torch.equal(found.logprobs, values):
                bad += 1
            if turn % 7 == number:
                try:
                    os.truncate(cache._path("f" * 64, key), 50 * number)
                except FileNotFoundError:
                    pass
    return bad + cache.unsaved

torch.set_num_threads(1)
children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        os._exit(work(number))
    children.append(child)
print([os.waitpid(child, 0)[1] for child in children])
"""


@pytest.mark.skipif(os.name != "posix", reason="forks")
def test_writers_readers_and_damage_at_once(tmp_path):
    """Three processes write, read and tear the same five rows: whole values or none."""
    ended = subprocess.run(
        [sys.executable, "-c", WORKERS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (ended.stdout, ended.stderr) == ("[0, 0, 0]\n", "")
    assert not list(tmp_path.rglob("*.tmp.*"))
