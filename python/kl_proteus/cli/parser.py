"""The grammar of the command line."""

import argparse
import re
import sys
from collections.abc import Sequence

from kl_proteus import __version__
from kl_proteus.cli import values
from kl_proteus.cli.options import CollectOptions
from kl_proteus.cli.score_options import ScoreOptions
from kl_proteus.cli.score_parser import add_score
from kl_proteus.llm.export import FORMAT_TYPES
from kl_proteus.llm.shaping import MODES, SHAPE_ON

__all__ = ["parse"]

# Enough steps for two windows of the default length in environments of short episodes.
DEFAULT_EPISODES = 200
LONGEST_WINDOW = 2**32 - 1
LONGEST_HISTORY = 10**8

_RANGES = ("--obs-range", "--action-range")
_NEGATIVE = re.compile(r"-[\d.]")

_COLLECT = """\
Runs a policy in a Gymnasium environment, measures how far its behaviour
drifts (in nats, split into where it goes and what it does there), records
completed episodes, and exports them as fine-tuning data for language models."""

_COLLECT_NOTES = """\
files in the output directory:
  episodes-<environment>-<number>.jsonl   the recording; later runs continue it
  trajectories.jsonl                      exported with --format chat
  completions.jsonl                       exported with --format completion
  preferences.jsonl                       exported with --format preference
An export holds all recorded episodes of the environment and replaces the file
of its name.

exit status: 0 done; 1 failed, or no episode was completed; 2 wrong usage;
130 interrupted by Ctrl-C (completed episodes stay recorded and are exported).

examples:
  kl-proteus collect CartPole-v1 --seed 1
  kl-proteus collect CartPole-v1 --window none --save-snapshot base.json
  kl-proteus collect CartPole-v1 --policy mine:act --reference base.json"""


def parse(argv: Sequence[str] | None) -> CollectOptions | ScoreOptions | int:
    """Reads the command line.

    Args:
        argv: The arguments after the command's name; None takes them from `sys.argv`.

    Returns:
        What to do; or the exit status where everything has been said: help and version were
        printed, or a message about wrong usage.
    """
    root, collect = _parsers()
    try:
        arguments = root.parse_args(_joined(sys.argv[1:] if argv is None else argv))
        if arguments.command is None:
            root.print_help(sys.stderr)
            return 2
        if arguments.command == "score":
            fields = vars(arguments)
            del fields["command"]
            return ScoreOptions(**fields)
        if arguments.lag is not None and arguments.window is None:
            collect.error("argument --lag: needs a window, not --window none")
        if arguments.lag is not None and arguments.reference is not None:
            collect.error("argument --lag: not allowed with argument --reference")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2
    fields = vars(arguments)
    del fields["command"]
    steps, episodes = fields.pop("steps"), fields.pop("episodes")
    if steps is not None:
        return CollectOptions(**fields, length=steps, unit="steps")
    return CollectOptions(**fields, length=episodes or DEFAULT_EPISODES, unit="episodes")


def _joined(argv: Sequence[str]) -> list[str]:
    """Lets a range begin with a minus: argparse would take `-3:3` for an option."""
    joined: list[str] = []
    for text in argv:
        if joined and joined[-1] in _RANGES and _NEGATIVE.match(text):
            joined[-1] += f"={text}"
        else:
            joined.append(text)
    return joined


def _parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The whole command, and its part `collect`, which has conflicts of options to tell."""
    root = argparse.ArgumentParser(
        prog="kl-proteus",
        description="Has my policy drifted, by how much, and is it the states or the actions?",
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"kl-proteus {__version__}")
    commands = root.add_subparsers(dest="command", metavar="command")
    collect = commands.add_parser(
        "collect",
        # The generated one is longer than the message of an error.
        usage="kl-proteus collect [options] ENV_ID",
        help="run a policy, measure its drift, export training data",
        description=_COLLECT,
        epilog=_COLLECT_NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    collect.add_argument(
        "env_id", metavar="ENV_ID", help="id of the environment, or module:id to import first"
    )
    _add_run(collect)
    _add_output(collect)
    _add_drift(collect)
    _add_shaping(collect)
    add_score(commands)
    return root, collect


def _add_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    length = group.add_mutually_exclusive_group()
    length.add_argument(
        "--episodes",
        metavar="N",
        type=values.whole(1),
        help=f"stop after N completed episodes (default {DEFAULT_EPISODES})",
    )
    length.add_argument(
        "--steps",
        metavar="N",
        type=values.whole(1),
        help="stop after N steps; an episode that is running then is measured, but it is not "
        "complete and so neither recorded nor exported",
    )
    group.add_argument(
        "--policy",
        metavar="P",
        default="random",
        type=values.policy,
        help="random (default), or module:callable with callable(observation) -> action; a class "
        "is instantiated without arguments; the current directory is importable",
    )
    group.add_argument(
        "--seed",
        metavar="N",
        type=values.whole(0),
        help="seed of the environment and of the random policy; a policy of yours seeds itself",
    )
    group.add_argument(
        "--env-kwargs",
        metavar="JSON",
        default={},
        type=values.environment_arguments,
        help="arguments for the environment, such as '{\"is_slippery\": false}'",
    )
    group.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--output-dir",
        metavar="DIR",
        default="training_data",
        type=values.path,
        help="created if missing (default training_data)",
    )
    group.add_argument(
        "--format",
        choices=FORMAT_TYPES,
        default="chat",
        help="chat (default) and completion: a row per step; preference: a row per pair of steps "
        "of one observation cell with different actions, ranked by what followed",
    )
    group.add_argument(
        "--gamma",
        metavar="X",
        default=0.99,
        type=values.number(0.0, 1.0),
        help="discount of the returns that rank preferences (default 0.99)",
    )
    group.add_argument(
        "--min-margin",
        metavar="X",
        default=0.0,
        type=values.number(0.0),
        help="smallest difference of returns that makes a preference (default 0)",
    )
    group.add_argument(
        "--save-snapshot",
        metavar="PATH",
        type=values.path,
        help="save the final current distribution for --reference; with --window none it is that "
        "of the whole run",
    )
    group.add_argument(
        "--json", action="store_true", help="print one JSON object instead of a table"
    )


def _add_drift(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("drift")
    group.add_argument(
        "--window",
        metavar="N",
        default=1000,
        type=values.whole(1, LONGEST_WINDOW, none=True),
        help="compare the last N steps with the N before them (default 1000); none: every step "
        "with all but the newest, or with the reference",
    )
    group.add_argument(
        "--lag",
        metavar="N",
        type=values.whole(1, LONGEST_WINDOW),
        help="compare with the window that ends N steps earlier",
    )
    group.add_argument(
        "--reference",
        metavar="PATH",
        type=values.path,
        help="compare with a saved snapshot instead of earlier steps",
    )
    group.add_argument(
        "--min-window",
        metavar="N",
        default=32,
        type=values.whole(1, 2**64 - 1),
        help="report nothing on fewer steps (default 32)",
    )
    group.add_argument(
        "--epsilon",
        metavar="X",
        default=0.5,
        type=values.number(0.0, 1e6, above_minimum=True),
        help="pseudocount of each occupied cell (default 0.5)",
    )
    for option, what in (("--obs-bins", "observation"), ("--action-bins", "action")):
        group.add_argument(
            option,
            metavar="N",
            default=10,
            type=values.bins,
            help=f"bins of each {what} axis, or one number per axis: 8,8,12,12 (default 10)",
        )
    for option, what in zip(_RANGES, ("observation", "action"), strict=True):
        group.add_argument(
            option,
            metavar="LOW:HIGH",
            type=values.bounds,
            help=f"bounds of every {what} axis in place of those of the space, each a number or "
            "none: -3:3, none:5",
        )
    group.add_argument(
        "--obs-scale",
        metavar="X",
        default=1.0,
        type=values.number(0.0, 1e100, above_minimum=True),
        help="scale of observation axes without bounds, in units of the observation (default 1)",
    )
    group.add_argument(
        "--history-size",
        metavar="N",
        default=1000,
        type=values.whole(1, LONGEST_HISTORY),
        help="mean and deviation are over the last N values (default 1000)",
    )
    group.add_argument(
        "--encoder",
        metavar="NAME",
        default="auto",
        type=values.encoder,
        help="auto (default) encodes what is too large for an axis a scalar; none; "
        "'GreyGrid(rows=4)' and the like; or module:function that turns an observation into a 1-D "
        "array",
    )


def _add_shaping(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reward shaping")
    group.add_argument(
        "--mode",
        choices=MODES,
        default="fine_tuning",
        help="fine_tuning (default) rewards steady behaviour, exploration novelty; monitor leaves "
        "rewards alone",
    )
    group.add_argument(
        "--kl-penalty-weight",
        metavar="X",
        default=0.1,
        type=values.number(0.0),
        help="penalty per nat above the threshold (default 0.1)",
    )
    group.add_argument(
        "--kl-bonus-weight",
        metavar="X",
        default=0.05,
        type=values.number(0.0),
        help="bonus at no drift (default 0.05)",
    )
    group.add_argument(
        "--kl-threshold",
        metavar="X",
        default=0.5,
        type=values.number(0.0, above_minimum=True),
        help="where the bonus ends and the penalty begins, in nats (default 0.5)",
    )
    group.add_argument(
        "--shape-on",
        choices=SHAPE_ON,
        default="kl",
        help="shape on the KL, or on its excess over the noise floor (default kl)",
    )
