"""What the command line accepts, what it refuses with status 2, and what help costs."""

import inspect
import subprocess
import sys

import gymnasium as gym
import pytest

from kl_proteus import JointKLDivergenceWrapper, LLMTrainingWrapper, __version__
from kl_proteus.cli import parser, values
from kl_proteus.cli.options import FILE_NAMES, CollectOptions
from kl_proteus.llm.export import FORMAT_TYPES


def parse(*arguments):
    return parser.parse(["collect", "CartPole-v1", *arguments])


def test_version(command):
    ended = command("--version")
    assert (ended.status, ended.out, ended.err) == (0, f"kl-proteus {__version__}\n", "")


def test_help(command):
    ended = command("--help")
    assert ended.status == 0
    assert "collect" in ended.out
    assert ended.err == ""


def test_help_of_collect_names_every_option_and_fits_80_columns(collect, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = collect("--help")
    assert ended.status == 0
    options = (
        "--episodes --steps --policy --seed --env-kwargs --quiet --output-dir --format --gamma "
        "--min-margin --save-snapshot --json --window --lag --reference --min-window --epsilon "
        "--obs-bins --action-bins --obs-range --action-range --obs-scale --history-size --encoder "
        "--mode --kl-penalty-weight --kl-bonus-weight --kl-threshold --shape-on"
    )
    for option in options.split():
        assert f"  {option}" in ended.out
    assert "not complete and so neither" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80


def test_without_a_command_there_is_help_and_status_2(command):
    ended = command()
    assert ended.status == 2
    assert ended.out == ""
    assert ended.err.startswith("usage: kl-proteus")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--episodes", "0"], "--episodes"),
        (["--episodes", "1.5"], "--episodes"),
        (["--steps", "-3"], "--steps"),
        (["--steps", "3", "--episodes", "3"], "--episodes"),
        (["--policy", "greedy"], "--policy"),
        (["--policy", ":act"], "--policy"),
        (["--policy", "module:"], "--policy"),
        (["--seed", "-1"], "--seed"),
        (["--env-kwargs", "[1]"], "--env-kwargs"),
        (["--env-kwargs", "{"], "--env-kwargs"),
        (["--output-dir", ""], "--output-dir"),
        (["--format", "xml"], "--format"),
        (["--gamma", "1.01"], "--gamma"),
        (["--gamma", "nan"], "--gamma"),
        (["--min-margin", "-1"], "--min-margin"),
        (["--min-margin", "inf"], "--min-margin"),
        (["--save-snapshot", ""], "--save-snapshot"),
        (["--window", "0"], "--window"),
        (["--window", "some"], "--window"),
        (["--window", str(2**32)], "--window"),
        (["--lag", "0"], "--lag"),
        (["--lag", "none"], "--lag"),
        (["--lag", "5", "--window", "none"], "--lag"),
        (["--lag", "5", "--reference", "base.json"], "--lag"),
        (["--min-window", "0"], "--min-window"),
        (["--epsilon", "0"], "--epsilon"),
        (["--epsilon", "-1"], "--epsilon"),
        (["--epsilon", "nan"], "--epsilon"),
        (["--epsilon", "1e7"], "--epsilon"),
        (["--obs-bins", "0"], "--obs-bins"),
        (["--obs-bins", "3,,4"], "--obs-bins"),
        (["--action-bins", str(2**31)], "--action-bins"),
        (["--obs-range", "3"], "--obs-range"),
        (["--obs-range", "1:2:3"], "--obs-range"),
        (["--obs-range", "-1:"], "--obs-range"),
        (["--obs-range", "nan:1"], "--obs-range"),
        (["--obs-range", "0:inf"], "--obs-range"),
        (["--obs-range", "--json"], "--obs-range"),
        (["--obs-range", "-1"], "--obs-range"),
        (["--action-range", "2:1"], "--action-range"),
        (["--action-range", "-1:-2"], "--action-range"),
        (["--obs-scale", "0"], "--obs-scale"),
        (["--obs-scale", "inf"], "--obs-scale"),
        (["--history-size", "0"], "--history-size"),
        (["--encoder", "encode"], "--encoder"),
        (["--mode", "train"], "--mode"),
        (["--kl-penalty-weight", "-0.1"], "--kl-penalty-weight"),
        (["--kl-bonus-weight", "x"], "--kl-bonus-weight"),
        (["--kl-threshold", "0"], "--kl-threshold"),
        (["--eps", "1"], "--eps"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_wrong_usage(collect, arguments, option):
    ended = collect("CartPole-v1", *arguments)
    assert ended.status == 2
    assert ended.out == ""
    message = ended.err.splitlines()[-1]
    assert message.startswith("kl-proteus")
    assert option in message
    assert len(ended.err.splitlines()) == 2


@pytest.mark.parametrize("arguments", [["collect"], ["train"], ["--window", "3"]])
def test_wrong_usage_of_the_root(command, arguments):
    assert command(*arguments).status == 2


def test_defaults():
    options = parse()
    assert isinstance(options, CollectOptions)
    assert (options.length, options.unit) == (200, "episodes")
    assert (options.policy, options.seed, options.env_kwargs) == ("random", None, {})
    defaults = inspect.signature(LLMTrainingWrapper).parameters
    for name in set(defaults) & set(CollectOptions.__dataclass_fields__):
        assert getattr(options, name) == defaults[name].default, name
    assert options.format == defaults["format_type"].default


def test_values_are_read():
    options = parse(
        *("--steps", "7", "--window", "None", "--obs-bins", "3,4", "--action-bins", "5"),
        *("--env-kwargs", '{"x": 0.5}', "--epsilon", "1e-3", "--seed", "0"),
    )
    assert isinstance(options, CollectOptions)
    assert (options.length, options.unit) == (7, "steps")
    assert options.window is None
    assert options.obs_bins == [3, 4]
    assert options.action_bins == 5
    assert options.env_kwargs == {"x": 0.5}
    assert options.epsilon == 1e-3
    assert options.seed == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-3:3", (-3.0, 3.0)),
        ("-.5:-1e-3", (-0.5, -0.001)),
        ("none:5", (None, 5.0)),
        ("0 : None", (0.0, None)),
        ("none:none", (None, None)),
        ("2:2", (2.0, 2.0)),
    ],
)
@pytest.mark.parametrize("option", ["--obs-range", "--action-range"])
def test_ranges(option, text, expected):
    for arguments in ([option, text], [f"{option}={text}"]):
        options = parse(*arguments, "--json")
        assert isinstance(options, CollectOptions)
        assert getattr(options, option[2:].replace("-", "_")) == expected
        assert options.json


def test_ranges_are_read_from_the_command_line_itself(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["kl-proteus", "collect", "X-v0", "--obs-range", "-3:3"])
    options = parser.parse(None)
    assert isinstance(options, CollectOptions)
    assert options.obs_range == (-3.0, 3.0)


@pytest.mark.parametrize(
    ("option", "most"),
    [
        ("window", parser.LONGEST_WINDOW),
        ("lag", parser.LONGEST_WINDOW),
        ("history_size", parser.LONGEST_HISTORY),
        ("min_window", 2**64 - 1),
        ("obs_bins", values.MOST_BINS),
        ("epsilon", 1e6),
        ("obs_scale", 1e100),
    ],
)
def test_limits_are_those_of_the_wrapper(option, most):
    env = gym.make("CartPole-v1")
    JointKLDivergenceWrapper(env, **{option: most})
    with pytest.raises(ValueError, match=option):
        JointKLDivergenceWrapper(
            env, **{option: most * 1.01 if isinstance(most, float) else most + 1}
        )
    assert isinstance(parse(f"--{option.replace('_', '-')}", str(most)), CollectOptions)


def test_each_format_has_its_file():
    assert set(FILE_NAMES) == set(FORMAT_TYPES)
    assert len(set(FILE_NAMES.values())) == len(FORMAT_TYPES)


def test_help_imports_neither_gymnasium_nor_numpy():
    code = (
        "import sys; from kl_proteus.cli import main; status = main(['collect', '--help']);"
        "sys.exit(status or bool({'gymnasium', 'numpy', 'tqdm'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert ended.returncode == 0
