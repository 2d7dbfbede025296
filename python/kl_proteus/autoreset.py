"""When the rows of a vector environment reset."""

from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

__all__ = ["autoreset_mode", "checked_mask"]

# Gymnasium 1.0 has one mode and no name for it.
_MODES: Any = getattr(gym.vector, "AutoresetMode", None)


def autoreset_mode(env: VectorEnv[Any, Any, Any]) -> str:
    """How an environment resets the rows that have ended.

    Returns:
        "NEXT_STEP", also where the environment does not say, "SAME_STEP" or "DISABLED".

    Raises:
        TypeError: What it says is no `gymnasium.vector.AutoresetMode`.
    """
    if _MODES is None:
        return "NEXT_STEP"
    if "autoreset_mode" not in env.metadata:
        gym.logger.warn(
            f'{env} has no metadata["autoreset_mode"]; its rows are taken to reset in the step '
            "after the one that ends them (AutoresetMode.NEXT_STEP)"
        )
        return "NEXT_STEP"
    mode = env.metadata["autoreset_mode"]
    if not isinstance(mode, _MODES):
        raise TypeError(
            f'env.metadata["autoreset_mode"] must be an AutoresetMode, got {mode!r} '
            f"({type(mode).__name__})"
        )
    return mode.name


def checked_mask(mask: Any, num_envs: int) -> NDArray[np.bool_]:
    """A copy of an `options["reset_mask"]`.

    Raises:
        TypeError: It is no array of bools.
        ValueError: It has another shape than `(num_envs,)`, or no True in it.
    """
    if not isinstance(mask, np.ndarray):
        raise TypeError(
            f"options['reset_mask'] must be an array of bools, got {type(mask).__name__}"
        )
    array = cast("NDArray[Any]", mask)
    dtype, shape = array.dtype, array.shape
    if dtype != np.bool_:
        raise TypeError(f"options['reset_mask'] must be an array of bools, got dtype {dtype}")
    if shape != (num_envs,):
        raise ValueError(f"options['reset_mask'] must have shape ({num_envs},), got {shape}")
    flags = np.array(array, np.bool_)
    if not flags.any():
        raise ValueError("options['reset_mask'] must be True somewhere, got False everywhere")
    return flags
