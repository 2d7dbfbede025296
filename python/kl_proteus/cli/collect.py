"""`kl-proteus collect`: run a policy, measure its drift, export training data."""

import contextlib
import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from kl_proteus.cli import environments, exports, policies, results, rollout, streams, table
from kl_proteus.cli.failures import CommandError, Interrupted, describe
from kl_proteus.cli.options import CollectOptions
from kl_proteus.cli.progress import Progress
from kl_proteus.llm.wrapper import LLMTrainingWrapper

__all__ = ["run"]


def run(options: CollectOptions) -> int:
    """Collects, and prints the results.

    Args:
        options: The command line.

    Returns:
        The exit status.

    Raises:
        CommandError: There are no results.
        KeyboardInterrupt: The user interrupted before or after the run itself.
    """
    with (
        _current_directory_importable(),
        streams.only_results(),
        Progress(options.length, options.unit, visible=not options.quiet) as progress,
        streams.warnings_as_lines(progress.say),
        streams.log_as_lines(progress.say),
    ):
        found, problems = _collect(options, progress)
    try:
        if options.json:
            streams.write(json.dumps(found, allow_nan=False) + "\n")
        else:
            streams.write(table.render(found))
    finally:
        for problem in problems:
            streams.complain(problem)
    return problems[0].status if problems else 0


def _collect(
    options: CollectOptions, progress: Progress
) -> tuple[dict[str, Any], list[CommandError]]:
    """Makes the environment and closes it again, whatever happens in between."""
    env = environments.make(options)
    try:
        return _measure(env, options, progress)
    finally:
        try:
            env.close()
        except (Exception, SystemExit) as error:
            progress.say(f"warning: the environment cannot be closed: {describe(error)}")


def _measure(
    env: LLMTrainingWrapper[Any, Any], options: CollectOptions, progress: Progress
) -> tuple[dict[str, Any], list[CommandError]]:
    """Runs and exports.

    Returns:
        The results, and what went wrong on the way to them.
    """
    exports.check_snapshot_path(options)
    if options.policy == "random":
        policy = policies.random_policy(env.action_space, options.seed)
    else:
        policy = policies.load(options.policy, env.action_space)
    tally = rollout.Tally()
    interrupted = False
    try:
        rollout.run(env, policy, options, tally, progress)
    except KeyboardInterrupt:
        interrupted = True
    except CommandError as error:
        raise CommandError(f"{error}{_kept(env, options)}") from error
    try:
        return _export(env, options, tally, progress, interrupted=interrupted)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted during the export{_kept(env, options)}") from None


def _export(
    env: LLMTrainingWrapper[Any, Any],
    options: CollectOptions,
    tally: rollout.Tally,
    progress: Progress,
    *,
    interrupted: bool,
) -> tuple[dict[str, Any], list[CommandError]]:
    """Writes the files and puts the results together."""
    completed: int = env.get_training_statistics()["num_episodes"]
    files: list[exports.File] = []
    problems: list[CommandError] = []
    exported = "nothing exported"
    if completed:
        try:
            files += exports.recording(options, env.env_id)
            data = exports.save_training_data(env, options)
        except CommandError as error:
            problems.append(CommandError(f"{error}{_kept(env, options)}"))
        else:
            if isinstance(data, exports.File):
                files.append(data)
                exported = f"exported to {data.path}"
            else:
                progress.say(f"warning: {exports.explain_no_pair(data, options)}")
    elif not interrupted:
        problems.append(
            CommandError(
                f"no episode was completed in {tally.steps} steps, so none is recorded and nothing "
                "is exported; use --episodes or more --steps"
            )
        )
    if options.save_snapshot is not None and tally.steps > 0:
        try:
            files.append(exports.save_snapshot(env, options.save_snapshot))
        except CommandError as error:
            problems.append(error)
    if interrupted:
        told = Interrupted(f"interrupted; {_episodes(completed)} recorded, {exported}")
        problems.insert(0, told)
    return results.summary(env, options, tally, files, interrupted=interrupted), problems


def _kept(env: LLMTrainingWrapper[Any, Any], options: CollectOptions) -> str:
    """The end of a message about a run that failed: what is not lost."""
    completed: int = env.get_training_statistics()["num_episodes"]
    if not completed:
        return ""
    return f"; {_episodes(completed)} kept in the recording in {options.output_dir}"


def _episodes(number: int) -> str:
    return "1 completed episode is" if number == 1 else f"{number} completed episodes are"


@contextmanager
def _current_directory_importable() -> Generator[None]:
    """Lets `--policy`, `--encoder` and `module:id` name files where the user is."""
    # The empty name is the directory of the moment, which may have been deleted.
    sys.path.insert(0, "")
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove("")
