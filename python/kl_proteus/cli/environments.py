"""Making the environment that a command line names, and wrapping it."""

from typing import Any

import gymnasium

from kl_proteus.cli.failures import CommandError, describe
from kl_proteus.cli.options import CollectOptions
from kl_proteus.llm.wrapper import LLMTrainingWrapper

__all__ = ["make"]


def make(options: CollectOptions) -> LLMTrainingWrapper[Any, Any]:
    """Makes the environment with the wrapper that measures, shapes and records.

    Args:
        options: The command line.

    Raises:
        CommandError: The environment does not exist or lacks a dependency, the wrapper refuses it
            or an option, or the output directory cannot be used.
    """
    try:
        env: gymnasium.Env[Any, Any] = gymnasium.make(options.env_id, **options.env_kwargs)
    # `module:id` imports code of the user, which may do anything.
    except (Exception, SystemExit) as error:
        raise CommandError(f"cannot make {options.env_id!r}: {describe(error)}") from error
    try:
        return LLMTrainingWrapper(
            env,
            output_dir=options.output_dir,
            format_type=options.format,
            kl_penalty_weight=options.kl_penalty_weight,
            kl_bonus_weight=options.kl_bonus_weight,
            kl_threshold=options.kl_threshold,
            shape_on=options.shape_on,
            mode=options.mode,
            gamma=options.gamma,
            min_margin=options.min_margin,
            obs_bins=options.obs_bins,
            action_bins=options.action_bins,
            obs_range=options.obs_range,
            action_range=options.action_range,
            obs_scale=options.obs_scale,
            history_size=options.history_size,
            epsilon=options.epsilon,
            window=options.window,
            lag=options.lag,
            reference=options.reference,
            encoder=options.encoder,
            min_window=options.min_window,
        )
    except (Exception, SystemExit) as error:
        env.close()
        if isinstance(error, OSError) and error.filename == options.reference is not None:
            raise CommandError(f"cannot read the reference: {describe(error)}") from error
        raise CommandError(f"cannot set up {options.env_id!r}: {describe(error)}") from error
