"""The grammar of `kl-proteus score`."""

import argparse
from typing import Any

from kl_proteus.cli import score_options, values

__all__ = ["add_score"]

_SCORE = """\
Scores chat or completion data: how far a policy is from a frozen reference
model on the tokens of each completion, in nats. Needs the extra torch."""

_NOTES = """\
rows of DATA (JSON Lines): {"messages": [...]}, or {"prompt", "completion"} as
texts or lists of messages; what `kl-proteus collect` exports can be scored. In
conversations only what the assistant says is scored.

The scores, a row per row of DATA, are appended to --output as they are made,
with their settings beside them in OUTPUT.run.json. The same command continues
where an earlier one was stopped; other models or settings are refused.

exit status: 0 done; 1 failed; 2 wrong usage; 130 interrupted by Ctrl-C (rows
that were scored are kept).

example:
  kl-proteus score rows.jsonl --reference base/ --policy trained/ --cache kl/"""


def add_score(commands: Any) -> None:
    """Adds the command to the grammar.

    Args:
        commands: What `add_subparsers` returned.
    """
    score: argparse.ArgumentParser = commands.add_parser(
        "score",
        usage="kl-proteus score [options] DATA --reference MODEL --policy MODEL",
        help="measure how far a language model is from a reference on given text",
        description=_SCORE,
        epilog=_NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    score.add_argument("data", metavar="DATA", type=values.path, help="rows, as JSON Lines")
    _add_models(score)
    _add_measure(score)
    _add_text(score)
    _add_output(score)


def _add_models(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    for name, what in (("--reference", "frozen reference"), ("--policy", "policy")):
        group.add_argument(
            name,
            metavar="MODEL",
            required=True,
            type=values.path,
            help=f"directory or name of the {what}; a directory with a PEFT adapter loads its "
            "base model and the adapter",
        )
    group.add_argument(
        "--tokenizer",
        metavar="MODEL",
        type=values.path,
        help="tokenizer for both; by default that of the policy, and a reference with another "
        "one is refused",
    )
    group.add_argument(
        "--dtype",
        choices=score_options.DTYPES,
        default="auto",
        help="of the weights (default auto: that of each checkpoint)",
    )
    group.add_argument(
        "--device",
        metavar="D",
        default="auto",
        type=values.path,
        help="cpu, cuda, cuda:1, mps, ... (default auto: an accelerator if there is one)",
    )
    group.add_argument(
        "--attn-implementation",
        metavar="NAME",
        type=values.path,
        help="eager, sdpa, flash_attention_2, ... (default: Transformers chooses)",
    )
    group.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run code that comes with a model; off by default",
    )


def _add_measure(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measure")
    group.add_argument(
        "--estimator",
        choices=score_options.ESTIMATORS,
        default="k1",
        help="of each token, from l = policy - reference log-probability: k1 is l (default), "
        "abs |l|, k2 l^2/2, k3 exp(-l)-1+l; an estimate of KL(policy || reference) only where the "
        "policy wrote the completions",
    )
    group.add_argument(
        "--full-kl",
        action="store_true",
        help="also the exact divergence over the vocabulary at each token, whoever wrote it",
    )
    group.add_argument(
        "--direction",
        choices=score_options.DIRECTIONS,
        default="policy_reference",
        help="of --full-kl: KL(policy || reference) (default), or KL(reference || policy)",
    )
    group.add_argument(
        "--temperature",
        metavar="X",
        default=1.0,
        type=values.number(0.0, above_minimum=True),
        help="what the logits of both models are divided by (default 1)",
    )
    group.add_argument(
        "--vocab-size",
        metavar="N",
        type=values.whole(1),
        help="ids that both models share, where their heads differ in size",
    )
    group.add_argument(
        "--batch-size",
        metavar="N",
        default=8,
        type=values.whole(1),
        help="rows of a forward pass (default 8)",
    )
    group.add_argument(
        "--cache",
        metavar="DIR",
        type=values.path,
        help="keep the reference's log-probabilities there, for other policies on the same rows",
    )


def _add_text(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("text")
    group.add_argument(
        "--chat-template",
        metavar="FILE",
        type=values.path,
        help="Jinja file in place of the tokenizer's template; plain: a line 'role: content' per "
        "message",
    )
    group.add_argument(
        "--turns",
        choices=score_options.TURNS,
        default="all",
        help="turns of the assistant that are scored (default all)",
    )
    group.add_argument(
        "--completion-field",
        choices=score_options.COMPLETION_FIELDS,
        default="completion",
        help="the field beside prompt; chosen and rejected are for preference data "
        "(default completion)",
    )
    group.add_argument(
        "--max-length",
        metavar="N",
        type=values.whole(2),
        help="most tokens of a row (default: the smaller context of the two models)",
    )
    group.add_argument(
        "--overlong",
        choices=score_options.OVERLONG,
        default="cut-end",
        help="longer rows: drop their end (default), drop their beginning, score nothing of them, "
        "or stop; the scores tell how many tokens were cut",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--output",
        metavar="PATH",
        type=values.path,
        help="the scores (default: DATA with the ending .scores.jsonl)",
    )
    group.add_argument(
        "--json", action="store_true", help="print one JSON object instead of a table"
    )
    group.add_argument("--quiet", action="store_true", help="no progress bar")
