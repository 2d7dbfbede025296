"""`kl-proteus score`: numbers, resuming, refusals and messages."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from reference_models import expected_logprobs, gpt2, llama, save, tokenizer, with_lora

from kl_proteus.cli import main, parser, score_models
from kl_proteus.cli.score_options import ScoreOptions
from kl_proteus.cli.score_output import ScoreFile

ROWS = [
    {
        "messages": [
            {"role": "user", "content": "hi " * number},
            {"role": "assistant", "content": f"yes {number}"},
            {"role": "user", "content": "sure?"},
            {"role": "assistant", "content": "yes" + "!" * number},
        ]
    }
    for number in range(7)
]


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"not strict: {name}"))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directories of models, each with a tokenizer."""
    place = tmp_path_factory.mktemp("models")
    save(place / "base", llama())
    save(place / "trained", llama(1))
    save(place / "third", llama(2))
    save(place / "padded", llama(1, vocab=264))
    save(place / "other_words", llama(1), extra=("<x>",))
    save(place / "no_template", llama(1), None)
    return place


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch, models):
    """An empty directory with the models and rows in it."""
    monkeypatch.chdir(tmp_path)
    for path in models.iterdir():
        (tmp_path / path.name).symlink_to(path)
    write(ROWS)
    return tmp_path


def write(rows, name="rows.jsonl", mode="w"):
    with Path(name).open(mode, encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def read(name="rows.scores.jsonl"):
    return [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def score(capsys):
    def run(*arguments, policy="trained", reference="base", data="rows.jsonl"):
        capsys.readouterr()
        words = ["score", data, "--policy", policy, "--reference", reference, *arguments]
        status = main([str(word) for word in words])
        return Ended(status, *capsys.readouterr())

    return run


def conversation(row):
    """The ids of a row, and which of them the assistant wrote."""
    text = tokenizer()
    ids, scored = [], []
    for message in row["messages"]:
        head = text(f"<|start|>{message['role']}\n")["input_ids"]
        body = text(f"{message['content']}<|end|>")["input_ids"]
        tail = text("\n")["input_ids"]
        ids += head + body + tail
        ours = message["role"] == "assistant"
        scored += [False] * len(head) + [ours] * len(body) + [False] * len(tail)
    return torch.tensor([ids]), torch.tensor(scored)


def expected(row, number_of_tokens=None):
    """Log-probabilities of what the assistant says, from the logits themselves."""
    ids, scored = conversation(row)
    ids, scored = ids[:, :number_of_tokens], scored[:number_of_tokens]
    mask = torch.ones_like(ids)
    return [expected_logprobs(llama(seed), ids, mask)[0][scored] for seed in (1, 0)]


# Numbers ----------------------------------------------------------------------------------------


def test_scores_are_those_of_the_logits(score):
    ended = score("--json", "--batch-size", 3, "--estimator", "k3")
    assert (ended.status, ended.err) == (0, "")
    found = read()
    assert [row["row"] for row in found] == list(range(7))
    total = tokens = 0
    for row, data in zip(found, ROWS, strict=True):
        policy, reference = expected(data)
        k3 = torch.expm1(reference - policy) - (reference - policy)
        assert row["tokens"] == len(policy)
        assert row["policy_logprob"] == pytest.approx(policy.sum().item(), abs=1e-4)
        assert row["reference_logprob"] == pytest.approx(reference.sum().item(), abs=1e-4)
        assert row["kl"] == pytest.approx(k3.mean().item(), abs=1e-5)
        assert row["kl_sum"] == pytest.approx(k3.sum().item(), abs=1e-4)
        assert (row["cut"], row["excluded"]) == (0, 0)
        total += k3.sum().item()
        tokens += len(policy)
    summary = ended.json
    assert summary["tokens"] == tokens
    assert summary["kl"]["token_mean"] == pytest.approx(total / tokens, abs=1e-5)
    assert summary["kl"]["sequence_sum"] == pytest.approx(total / 7, abs=1e-4)
    assert summary["kl"]["max"] == max(row["kl"] for row in found)
    assert (summary["rows"], summary["done_rows"], summary["resumed_rows"]) == (7, 7, 0)
    assert summary["output"] == "rows.scores.jsonl"
    assert summary["max_length"] == 256


def test_a_model_against_itself(score):
    ended = score("--json", policy="base")
    assert ended.json["kl"]["token_mean"] == ended.json["kl"]["max"] == 0.0


@pytest.mark.parametrize("direction", ["policy_reference", "reference_policy"])
def test_the_exact_divergence(score, direction):
    ended = score("--json", "--full-kl", "--direction", direction, "--temperature", 0.7)
    assert (ended.status, ended.err) == (0, "")
    sums = []
    for row, data in zip(read(), ROWS, strict=True):
        ids, scored = conversation(data)
        with torch.no_grad():
            p, q = ((llama(s)(ids).logits[0].double() / 0.7).log_softmax(-1) for s in (1, 0))
        if direction == "reference_policy":
            p, q = q, p
        kl = (p.exp() * (p - q)).sum(-1)[:-1][scored[1:]]
        sums.append(kl.sum().item())
        assert row["tokens"] == len(kl)
        assert row["full_kl"] == pytest.approx(kl.mean().item(), abs=1e-5)
        assert row["full_kl_sum"] == pytest.approx(sums[-1], abs=1e-4)
    assert ended.json["direction"] == direction
    assert ended.json["full_kl"]["sequence_sum"] == pytest.approx(sum(sums) / 7, abs=1e-4)
    shown = score("--full-kl", "--direction", direction, "--output", "b.jsonl").out
    assert "  exact" in shown
    assert ("KL(reference || policy)" in shown) == (direction == "reference_policy")


def test_completions_without_a_token(score):
    write([{"prompt": "a", "completion": ""}, {"prompt": "", "completion": "a"}])
    ended = score("--json")
    assert [row["tokens"] for row in read()] == [0, 0]  # the very first token has no context
    assert [row["kl"] for row in read()] == [0.0, 0.0]
    assert ended.json["kl"]["token_mean"] is None
    assert ended.json["scored_rows"] == 0
    assert score().out.count(" - ") >= 1


def test_rows_that_are_too_long_are_cut_and_counted(score):
    limit = 40
    ended = score("--json", "--max-length", limit)
    policy, reference = expected(ROWS[6], limit)
    row = read()[6]
    assert row["tokens"] == len(policy)
    assert row["kl_sum"] == pytest.approx((policy - reference).sum().item(), abs=1e-4)
    assert row["cut"] > 0
    assert ended.json["cut_tokens"] == sum(row["cut"] for row in read())
    assert ended.json["max_length"] == limit
    assert "cut from 7 rows" in score("--max-length", limit).out
    ended = score("--max-length", 4, "--output", "short.jsonl")
    assert "warning: 7 rows have no scored token, and 7 were cut to 4 tokens" in ended.err
    ended = score("--max-length", limit, "--overlong", "refuse", "--output", "refused.jsonl")
    assert ended.status == 1
    assert "row 1 of rows.jsonl: a row must have at most 40 tokens" in ended.err


def test_the_context_of_the_smaller_model_is_the_limit(score, tmp_path):
    save(tmp_path / "small", gpt2())
    ended = score("--json", policy="small")
    assert ended.json["max_length"] == 128


def test_preferences(score):
    rows = [
        {"prompt": m[:1], "chosen": m[1:2], "rejected": m[3:]}
        for m in (r["messages"] for r in ROWS)
    ]
    write(rows)
    assert score("--completion-field", "chosen").status == 0
    assert score("--completion-field", "rejected", "--output", "r.jsonl").status == 0
    assert [a["kl"] for a in read()] != [b["kl"] for b in read("r.jsonl")]
    ended = score("--output", "c.jsonl")
    assert "row 1 of rows.jsonl: a row must hold messages, or prompt and completion" in ended.err


def test_an_adapter_is_a_policy(score, tmp_path):
    from transformers import AutoModelForCausalLM

    with_lora(AutoModelForCausalLM.from_pretrained("base"), "default").save_pretrained("lora")
    tokenizer().save_pretrained("lora")
    ended = score("--json", policy="lora")
    assert (ended.status, ended.err) == (0, "")
    assert ended.json["kl"]["max"] > 0


# The file of scores -----------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 1, 4, 6])
@pytest.mark.parametrize("torn", [b"", b'{"row":9,"dig'])
def test_a_run_that_was_stopped_continues(score, monkeypatch, keep, torn):
    score("--batch-size", 3)
    path = Path("rows.scores.jsonl")
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:keep]) + torn)
    calls = []
    real = score_models.Models.score
    monkeypatch.setattr(
        score_models.Models,
        "score",
        lambda self, rows: calls.append(rows[0][0]) or real(self, rows),
    )
    ended = score("--batch-size", 3, "--json")
    assert ended.status == 0
    assert path.read_bytes() == whole
    assert calls == [start for start in (0, 3, 6) if start + 3 > keep]
    assert ended.json["resumed_rows"] == keep
    assert ended.json["done_rows"] == 7
    assert ("torn" in ended.err) == bool(torn)


def test_a_finished_run_says_the_same_again(score):
    first = score("--json").json
    before = Path("rows.scores.jsonl").read_bytes()
    second = score("--json").json
    assert Path("rows.scores.jsonl").read_bytes() == before
    assert second == {**first, "resumed_rows": 7}
    assert "7 of 7, 7 of them earlier" in score().out


def test_rows_that_were_added_are_scored(score):
    score()
    write(ROWS[:2], mode="a")
    assert score("--json").json["resumed_rows"] == 7
    assert len(read()) == 9


@pytest.mark.parametrize(
    ("arguments", "names", "what"),
    [
        (["--temperature", 0.5], {}, "temperature (1.0, now 0.5)"),
        (["--estimator", "k2"], {}, "estimator (k1, now k2)"),
        (["--full-kl"], {}, "full kl"),
        (["--turns", "last"], {}, "turns"),
        (["--max-length", 50], {}, "max length"),
        (["--dtype", "bfloat16"], {}, "policy"),
        (["--chat-template", "plain"], {}, "chat template"),
        ([], {"policy": "third"}, "policy"),
        ([], {"reference": "third"}, "reference"),
        (["--tokenizer", "other_words"], {}, "tokenizer"),
    ],
)
def test_other_settings_are_refused(score, arguments, names, what):
    score()
    before = Path("rows.scores.jsonl").read_bytes()
    ended = score(*arguments, **names)
    assert ended.status == 1
    assert len(ended.err.splitlines()) == 1
    assert f"was made with another {what}" in ended.err
    assert Path("rows.scores.jsonl").read_bytes() == before


def test_the_same_model_elsewhere_continues(score):
    score()
    shutil.copytree("trained", "copy")
    assert score("--batch-size", 2, policy="copy").status == 0


def test_other_data_is_refused(score):
    score()
    write([*ROWS[:3], ROWS[4]])
    before = Path("rows.scores.jsonl").read_bytes()
    ended = score()
    assert ended.status == 1
    assert "row 4 of rows.scores.jsonl is not a score of row 4 of the data" in ended.err
    assert Path("rows.scores.jsonl").read_bytes() == before


def test_files_of_others_are_left_alone(score):
    mine = Path("mine.jsonl")
    mine.write_text('{"a": 1}\n')
    ended = score("--output", "mine.jsonl")
    assert ended.status == 1
    assert "mine.jsonl exists, and mine.jsonl.run.json beside it does not say" in ended.err
    assert mine.read_text() == '{"a": 1}\n'
    ended = score("--output", "rows.jsonl")
    assert "--output must not be the data" in ended.err
    score("--output", "good.jsonl")
    shutil.copy("good.jsonl.run.json", "mine.jsonl.run.json")
    assert "is not a score of row 1" in score("--output", "mine.jsonl").err
    Path("mine.jsonl.run.json").write_text('{"format": "x"}\n')
    assert "is not of kl-proteus scores version 1" in score("--output", "mine.jsonl").err
    Path("mine.jsonl.run.json").write_text(
        '{"format": "kl-proteus scores", "version": 1, "settings": []}\n'
    )
    assert "mine.jsonl.run.json holds no settings" in score("--output", "mine.jsonl").err
    assert mine.read_text() == '{"a": 1}\n'


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("kl", None, "kl of row 2 must be a finite float, got None"),
        ("kl_sum", 1, "kl_sum of row 2 must be a finite float, got 1"),
        ("policy_logprob", "1e400", "must be a finite float, got inf"),
        ("tokens", -1, "tokens of row 2 must be an integer of at least 0, got -1"),
        ("cut", True, "cut of row 2 must be an integer of at least 0, got True"),
    ],
)
def test_rows_that_no_run_has_written_are_refused(score, name, value, expected):
    score()
    rows = read()
    rows[1][name] = value
    text = "".join(json.dumps(row) + "\n" for row in rows).replace('"1e400"', "1e400")
    Path("rows.scores.jsonl").write_text(text)
    ended = score()
    assert ended.status == 1
    assert expected in ended.err
    assert Path("rows.scores.jsonl").read_text() == text


def test_a_model_of_nan_measures_nothing_and_says_so(score):
    model = llama(1)
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    save(Path("nan"), model)
    ended = score("--json", "--full-kl", policy="nan")
    assert ended.status == 0
    excluded = ended.json["excluded_tokens"]
    assert (ended.json["tokens"], ended.json["kl"]["token_mean"]) == (0, None)
    assert f"warning: {excluded} tokens are left out" in ended.err
    assert [row["kl"] for row in read()] == [0.0] * len(ROWS)


def test_one_writer_a_file(score):
    score()
    settings = json.loads(Path("rows.scores.jsonl.run.json").read_text())["settings"]
    with ScoreFile(Path("rows.scores.jsonl"), settings):
        ended = score()
    assert ended.status == 1
    assert "is being written by another process" in ended.err


def test_an_interrupt_keeps_what_was_scored(score, monkeypatch):
    real = score_models.Models.score

    def press(self, rows):
        if rows[0][0] == 4:
            raise KeyboardInterrupt
        return real(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(score_models.Models, "score", press)
        ended = score("--batch-size", 2, "--json")
    assert ended.status == 130
    assert ended.json["done_rows"] == 4
    assert ended.err == (
        "kl-proteus: interrupted; 4 of 7 rows are scored in rows.scores.jsonl, and the same "
        "command continues there\n"
    )
    assert score("--batch-size", 2, "--json").json["resumed_rows"] == 4


def test_a_disk_that_is_full_loses_no_row(score, monkeypatch):
    from kl_proteus.llm.recording import jsonl

    real, calls = jsonl.write_all, []

    def fill(descriptor, data):
        calls.append(data)
        if len(calls) == 3:  # after the settings and a batch
            os.write(descriptor, data[:10])
            raise OSError(28, "No space left on device")
        real(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(jsonl, "write_all", fill)
        ended = score("--batch-size", 2)
    assert ended.status == 1
    assert ended.err == (
        "kl-proteus: error: cannot write rows.scores.jsonl: No space left on device; 2 of 7 rows "
        "are scored in rows.scores.jsonl\n"
    )
    assert len(read()) == 2
    assert score("--json").json["resumed_rows"] == 2


# The cache --------------------------------------------------------------------------------------


def test_another_policy_finds_the_references_values(score):
    first = score("--cache", "kl", "--json").json["cache"]
    assert (first["hits"], first["misses"], first["unsaved"]) == (0, 7, 0)
    ended = score("--cache", "kl", "--output", "third.jsonl", policy="third")
    assert "cache             kl, 7 rows found, 0 computed" in ended.out
    score("--output", "plain.jsonl", policy="third")
    for a, b in zip(read("third.jsonl"), read("plain.jsonl"), strict=True):
        assert a["reference_logprob"] == pytest.approx(b["reference_logprob"], abs=1e-4)


# Refusals ---------------------------------------------------------------------------------------


def one_line(ended, *parts):
    assert ended.status == 1
    assert ended.out == ""
    assert len(ended.err.splitlines()) == 1
    assert ended.err.startswith("kl-proteus: error: ")
    for part in parts:
        assert part in ended.err
    assert not Path("rows.scores.jsonl").exists() or not Path("rows.scores.jsonl").read_bytes()


def test_tokenizers_that_differ(score):
    one_line(score(policy="other_words"), "another vocabulary", "--tokenizer")
    one_line(score(policy="no_template"), "another chat template")
    assert score("--tokenizer", "base", policy="other_words").status == 0
    write([{"prompt": "a", "completion": "b"}], "text.jsonl")
    assert score("--chat-template", "plain", policy="no_template", data="text.jsonl").status == 0


def test_templates(score):
    one_line(
        score(policy="no_template", reference="no_template"),
        "row 1 of rows.jsonl: the tokenizer has no chat template",
        "--chat-template plain",
    )
    names = {"policy": "no_template", "reference": "no_template"}
    ended = score("--chat-template", "plain", "--output", "p.jsonl", **names)
    assert ended.status == 0
    Path("mine.jinja").write_text(tokenizer().chat_template)
    ended = score(
        "--chat-template", "mine.jinja", "--json", "--output", "m.jsonl", policy="trained"
    )
    assert ended.json["tokens"] == score("--json", "--output", "n.jsonl").json["tokens"]
    one_line(score("--chat-template", "missing.jinja"), "cannot read the chat template")


def test_vocabularies_of_other_sizes(score):
    one_line(score(policy="padded"), "must share their ids, got 264 and 259")
    assert score("--vocab-size", 259, policy="padded").status == 0


def test_data_that_cannot_be_read(score):
    one_line(score(data="missing.jsonl"), "cannot read the data", "missing.jsonl")
    Path("rows.jsonl").write_text("")
    one_line(score(), "rows.jsonl holds no rows")
    Path("rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\nnope\n')
    one_line(score(), "rows.jsonl, line 2")


def test_models_that_cannot_be_loaded(score):
    one_line(score(policy="./missing"), "cannot load the tokenizer of ./missing")
    Path("empty").mkdir()
    tokenizer().save_pretrained("empty")
    one_line(score(policy="empty"), "cannot load the policy empty")
    one_line(score("--device", "abacus"), "--device must name a device, got 'abacus'")
    one_line(score("--cache", "rows.jsonl"), "cannot use the cache")
    one_line(score("--output", "rows.jsonl/x"), "cannot use rows.jsonl/x")


def test_an_error_of_a_model_names_the_rows(score, monkeypatch):
    def fail(self, rows):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("kl_proteus.torch.scoring.Scorer.score", fail)
    one_line(score("--batch-size", 2), "rows 1 to 2 cannot be scored", "out of memory")


def test_without_the_extra(score, monkeypatch):
    monkeypatch.delitem(sys.modules, "kl_proteus.cli.score_models")
    monkeypatch.setitem(sys.modules, "transformers.utils", None)
    one_line(score(), "score needs the extra 'torch': pip install 'kl-proteus[torch]'")


# Usage ------------------------------------------------------------------------------------------


def parse(*arguments):
    return parser.parse(["score", "rows.jsonl", "--policy", "p", "--reference", "r", *arguments])


def test_defaults():
    options = parse()
    assert isinstance(options, ScoreOptions)
    assert options.output_path == Path("rows.scores.jsonl")
    assert (options.estimator, options.temperature, options.batch_size) == ("k1", 1.0, 8)
    assert not options.trust_remote_code
    assert parser.parse(["score", "d/x.txt", "--policy", "p", "--reference", "r"]).output_path == (
        Path("d/x.txt.scores.jsonl")
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--temperature", "0"],
        ["--temperature", "nan"],
        ["--estimator", "k4"],
        ["--batch-size", "0"],
        ["--max-length", "1"],
        ["--overlong", "cut"],
        ["--turns", "some"],
        ["--direction", "both"],
        ["--dtype", "int8"],
        ["--vocab-size", "0"],
        ["--output", ""],
        ["--completion-field", "text"],
        ["--tem", "1"],
    ],
)
def test_wrong_usage(capsys, arguments):
    assert parse(*arguments) == 2
    err = capsys.readouterr().err
    assert arguments[0] in err.splitlines()[-1]
    assert len(err.splitlines()) == 2


def test_what_must_be_given(capsys):
    assert main(["score", "rows.jsonl", "--policy", "trained"]) == 2
    assert "--reference" in capsys.readouterr().err


def test_help_names_every_option_and_fits_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["score", "--help"]) == 0
    out = capsys.readouterr().out
    for name in ScoreOptions.__dataclass_fields__:
        if name != "data":
            assert f"  --{name.replace('_', '-')}" in out
    assert max(map(len, out.splitlines())) <= 80


def test_help_imports_no_torch():
    code = (
        "import sys; from kl_proteus.cli import main; status = main(['score', '--help']);"
        "sys.exit(status or bool({'gymnasium', 'numpy', 'torch', 'tqdm'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert ended.returncode == 0


@pytest.mark.skipif(os.name != "posix", reason="terminals of POSIX")
def test_the_bar_is_on_the_terminal():
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    words = ["score", "rows.jsonl", "--policy", "trained", "--reference", "base"]
    command = [sys.executable, "-m", "kl_proteus", *words, "--batch-size", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        shown = b""
        try:
            while block := os.read(ours, 1 << 16):
                shown += block
        except OSError:  # what Linux says when the other end is closed
            pass
        out = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0
    assert out.startswith("policy            trained\n")
    assert "/7 [" in shown.decode()
    assert "rows/s" in shown.decode() or "s/ rows" in shown.decode()
    assert "KL " in shown.decode()
    assert "Loading weights" not in shown.decode()
