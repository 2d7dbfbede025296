"""What chooses the actions: random ones, or a callable of the user, whose actions are checked."""

from collections.abc import Callable
from operator import index
from typing import Any, cast

import numpy as np
from gymnasium import spaces

from kl_proteus import hooks
from kl_proteus.cli.failures import CommandError, describe, one_line

__all__ = ["Policy", "load", "member", "random_policy"]

Policy = Callable[[Any], Any]
"""From an observation to an action."""

# Kinds of NumPy arrays that hold real numbers.
_NUMBERS = "biuf"


def random_policy(space: spaces.Space[Any], seed: int | None) -> Policy:
    """Samples the action space uniformly.

    Args:
        space: The action space; it is seeded.
        seed: Seed of the run; None draws one.
    """
    if seed is not None:
        # Not the seed itself: the environment draws from it, and the two would be in step.
        space.seed(int(np.random.SeedSequence([seed, 1]).generate_state(1)[0]))
    return lambda observation: space.sample()


def load(name: str, space: spaces.Space[Any]) -> Policy:
    """Imports a policy.

    Args:
        name: `module:callable`; a class is instantiated without arguments.
        space: The space that its actions must lie in.

    Returns:
        The policy. It raises `CommandError` if the user's code does, or if an action lies outside
        the space.

    Raises:
        CommandError: It cannot be imported or instantiated, or is not callable.
    """
    try:
        found = hooks.resolve("policy", name)
        if isinstance(found, type):
            found = found()
    # A script without a guard may well exit when it is imported.
    except (Exception, SystemExit) as error:
        reason = describe(error.__cause__ or error)
        raise CommandError(f"the policy {name} cannot be loaded: {reason}") from error
    if not callable(found):
        raise CommandError(
            f"the policy {name} must be a callable, got an instance of {type(found).__name__}, "
            "which has no __call__"
        )
    act = cast(Policy, found)

    def policy(observation: Any) -> Any:
        try:
            action = act(observation)
        except (Exception, SystemExit) as error:
            raise CommandError(f"the policy {name} failed: {describe(error)}") from error
        try:
            return member(space, action)
        except ValueError:
            raise CommandError(
                f"the policy {name} returned an action outside the action space: "
                f"expected {one_line(str(space))}, got {_shown(action)}"
            ) from None

    return policy


def member(space: spaces.Space[Any], action: Any) -> Any:
    """An action as a member of its space.

    Arrays of numbers get the data type of the space, because a policy that computes in float64
    means the same action; nothing else is changed.

    Args:
        space: The action space.
        action: What a policy returned.

    Returns:
        The action that the environment is given.

    Raises:
        ValueError: It lies outside the space.
    """
    if isinstance(space, spaces.Dict):
        parts = cast(dict[str, spaces.Space[Any]], space.spaces)
        if not isinstance(action, dict) or set(cast(dict[Any, Any], action)) != set(parts):
            raise ValueError
        values = cast(dict[Any, Any], action)
        return {key: member(part, values[key]) for key, part in parts.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(action, tuple | list):
            raise ValueError
        items = cast("tuple[Any, ...] | list[Any]", action)
        members = cast("tuple[spaces.Space[Any], ...]", space.spaces)
        return tuple(member(part, item) for part, item in zip(members, items, strict=True))
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        action = _as_dtype(action, cast("np.dtype[Any]", space.dtype))
    elif isinstance(space, spaces.Discrete):
        action = _whole(action)
    if not space.contains(action):
        raise ValueError
    return action


def _as_dtype(action: Any, dtype: np.dtype[Any]) -> np.ndarray:
    try:
        array = np.asarray(action)
    except Exception as error:  # nested lists of several lengths, tensors of another device
        raise ValueError from error
    if array.dtype.kind not in _NUMBERS:
        raise ValueError
    with np.errstate(all="ignore"):
        cast_array = array.astype(dtype)
    if dtype.kind != "f" and not np.array_equal(cast_array, array):
        raise ValueError
    return cast_array


def _whole(action: Any) -> int:
    """A scalar of any library, such as a tensor, as an integer."""
    # An array of one item has an index too, but environments do not take it for a number.
    if getattr(action, "shape", ()) != ():
        raise ValueError
    try:
        return index(action)
    except TypeError:
        raise ValueError from None


def _shown(value: Any) -> str:
    """A value of the user, short, with what tells it from the right one."""
    try:
        text = one_line(repr(value))
    except Exception:  # a broken __repr__ must not hide the message
        text = "a value"
    if len(text) > 60:
        text = f"{text[:57]}..."
    shape = getattr(value, "shape", None)
    detail = f" of shape {shape}" if shape is not None else ""
    return f"{text} ({type(value).__name__}{detail})"
