"""`kl-proteus score`: how far a policy is from a reference on rows of text."""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kl_proteus.cli import score_table, streams
from kl_proteus.cli.failures import CommandError, Interrupted, describe
from kl_proteus.cli.progress import Progress
from kl_proteus.cli.score_options import ScoreOptions
from kl_proteus.cli.score_output import ScoreFile, row_digest
from kl_proteus.llm.recording import jsonl

if TYPE_CHECKING:
    from kl_proteus.cli.score_models import Models

__all__ = ["run"]


def run(options: ScoreOptions) -> int:
    """Scores, and prints the totals.

    Args:
        options: The command line.

    Returns:
        The exit status.

    Raises:
        CommandError: There are no totals.
        KeyboardInterrupt: The user interrupted before the first row.
    """
    with (
        streams.only_results(),
        streams.warnings_as_lines(streams.say),
        streams.log_as_lines(streams.say),
    ):
        found, problem = _score(options)
    try:
        if options.json:
            streams.write(json.dumps(found, allow_nan=False) + "\n")
        else:
            streams.write(score_table.render(found))
    finally:
        if problem is not None:
            streams.complain(problem)
    return 0 if problem is None else problem.status


def _score(options: ScoreOptions) -> tuple[dict[str, Any], CommandError | None]:
    rows = _count(options)
    models = _load(options)
    with ScoreFile(options.output_path, models.settings) as file:
        file.resume(row_digest(row) for row in jsonl.read_rows(options.data))
        resumed = file.done
        problem = None
        try:
            with Progress(rows, "rows", visible=not options.quiet, done=resumed) as progress:
                _add_scores(options, models, file, progress)
        except KeyboardInterrupt:
            problem = Interrupted(
                f"interrupted; {file.done} of {rows} rows are scored in {file.path}, and the same "
                "command continues there"
            )
        except CommandError as error:
            kept = f"; {file.done} of {rows} rows are scored in {file.path}" if file.done else ""
            raise CommandError(f"{error}{kept}") from error
        empty = file.totals.rows - file.totals.scored_rows
        if empty and file.totals.cut_rows:
            streams.say(
                f"warning: {empty} rows have no scored token, and {file.totals.cut_rows} were cut "
                f"to {models.max_length} tokens; see --max-length and --overlong"
            )
        if file.totals.excluded:
            streams.say(
                f"warning: {file.totals.excluded} tokens are left out, because a log-probability "
                "or divergence of theirs is not finite"
            )
        return _summary(options, models, file, rows, resumed), problem


def _count(options: ScoreOptions) -> int:
    """Reads all rows once, so that a damaged one is told before the models load."""
    data, output = Path(options.data), options.output_path
    try:
        if output.exists() and output.samefile(data):
            raise CommandError(f"--output must not be the data, {data}")
        rows = sum(1 for _ in jsonl.read_rows(data))
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot read the data: {describe(error)}") from error
    if not rows:
        raise CommandError(f"{data} holds no rows")
    return rows


def _load(options: ScoreOptions) -> "Models":
    try:
        from transformers.utils import logging

        from kl_proteus.cli import score_models
    except ImportError as error:
        raise CommandError(
            f"score needs the extra 'torch': pip install 'kl-proteus[torch]' ({describe(error)})"
        ) from error
    # Bars for the loading of weights: many, and not only on terminals.
    shown = cast(bool, cast(Any, logging).is_progress_bar_enabled())
    logging.disable_progress_bar()
    try:
        return score_models.load(options)
    finally:
        if shown:
            logging.enable_progress_bar()


def _add_scores(
    options: ScoreOptions, models: "Models", file: ScoreFile, progress: Progress
) -> None:
    """Scores what is missing, in the batches that a run without a stop would have made."""
    first = file.done - file.done % options.batch_size
    rows = islice(enumerate(jsonl.read_rows(options.data)), first, None)
    for batch in _batches(rows, options.batch_size):
        if batch[-1][0] < file.done:
            continue
        with _naming(batch):
            scores = models.score([(number, row) for number, row in batch])
        file.append([score for score in scores if score["row"] >= file.done])
        progress.show(file.done, file.totals.per_token("kl_sum"))


def _batches(
    rows: Iterator[tuple[int, dict[str, Any]]], size: int
) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    while batch := list(islice(rows, size)):
        yield batch


@contextmanager
def _naming(batch: list[tuple[int, dict[str, Any]]]) -> Generator[None]:
    """Says which rows an error came from."""
    try:
        yield
    except CommandError:
        raise
    # Models run code of anybody, and an accelerator may run out of memory.
    except Exception as error:
        first, last = batch[0][0] + 1, batch[-1][0] + 1
        raise CommandError(f"rows {first} to {last} cannot be scored: {describe(error)}") from error


def _summary(
    options: ScoreOptions, models: "Models", file: ScoreFile, rows: int, resumed: int
) -> dict[str, Any]:
    """Everything that is known after a run, as JSON values."""
    totals = file.totals
    found: dict[str, Any] = {
        "data": options.data,
        "policy": options.policy,
        "reference": options.reference,
        "output": str(file.path),
        "rows": rows,
        "done_rows": totals.rows,
        "resumed_rows": resumed,
        "scored_rows": totals.scored_rows,
        "tokens": totals.tokens,
        "excluded_tokens": totals.excluded,
        "max_length": models.max_length,
        "overlong": options.overlong,
        "cut_rows": totals.cut_rows,
        "cut_tokens": totals.cut,
        "temperature": options.temperature,
        "estimator": options.estimator,
        "policy_logprob": totals.per_token("policy_logprob"),
        "reference_logprob": totals.per_token("reference_logprob"),
        "kl": totals.over_rows("kl"),
    }
    if options.full_kl:
        found["direction"] = options.direction
        found["full_kl"] = totals.over_rows("full_kl")
    if models.cache is not None:
        found["cache"] = {
            "directory": options.cache,
            "hits": models.cache.hits,
            "misses": models.cache.misses,
            "unsaved": models.cache.unsaved,
        }
    return found
