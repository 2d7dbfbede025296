"""Every Python example in the README and the docs runs, and every command it names exists."""

import json
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language):
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            if match[1] == language:
                line = text[: match.start()].count("\n") + 1
                yield pytest.param(match[2], id=f"{page.name}:{line}")


@pytest.mark.parametrize("code", list(blocks("python")))
def test_example_runs(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "<example>", "exec"), {"__name__": "__main__"})


def test_the_first_example_prints_what_the_readme_shows(capsys):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code, shown = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.DOTALL).groups()
    exec(compile(code, "<example>", "exec"), {})
    assert capsys.readouterr().out == shown


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_anchors_exist():
    def slug(title):
        return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")

    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([\w-]+)\)", text):
            aim = (page.parent / target) if target else page
            titles = re.findall(r"^#+ (.*)$", aim.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(slug, titles), f"{page.name}: {target}#{anchor}"


def commands():
    for parameter in blocks("sh"):
        for line in parameter.values[0].splitlines():
            words = shlex.split(line, comments=True)
            if "kl-proteus" in words and "install" not in words:
                yield pytest.param(words[words.index("kl-proteus") + 1 :], id=line[:60])


@pytest.mark.parametrize("arguments", list(commands()))
def test_command_runs(arguments, tmp_path, monkeypatch, capsys):
    from kl_proteus.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_module.py").write_text("def policy(observation):\n    return 1\n")
    if arguments[0] == "score":
        save_models_and_rows(tmp_path)
    assert main(arguments) == 0
    assert {"collect": "CartPole", "score": "scores  "}[arguments[0]] in capsys.readouterr().out


def save_models_and_rows(directory):
    """What the commands that score rows name."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "torch"))
    import reference_models

    monkeypatch.undo()
    for seed, name in enumerate(("base", "trained")):
        reference_models.save(directory / name, reference_models.llama(seed))
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    (directory / "rows.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
