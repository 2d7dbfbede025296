"""Reward shaping by drift: what the divergence adds to a reward and takes from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Literal, cast, get_args

from kl_proteus import _checks
from kl_proteus.controllers import KLCoefficientController

# Only where arrays are: the command line reads the modes for its help.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "MODES",
    "SHAPE_ON",
    "Mode",
    "RewardShaping",
    "ShapeOn",
    "check_floor",
    "finite_sums",
    "rewards_of_rows",
    "scalar_reward",
]

Mode = Literal["fine_tuning", "exploration", "monitor"]
"""What shaping does: keep behaviour steady, reward novelty, or only watch."""

MODES: tuple[Mode, ...] = get_args(Mode)
"""The legal modes."""

ShapeOn = Literal["kl", "excess"]
"""What is shaped on: the divergence, or what of it is above its noise floor."""

SHAPE_ON: tuple[ShapeOn, ...] = get_args(ShapeOn)
"""The legal values of it."""

_UNIT = "nats/step"

# NumPy kinds that `float` may take and that are no real number: text, object, date, complex.
_NOT_REAL = frozenset("USOMmc")


@dataclass(frozen=True, slots=True)
class RewardShaping:
    """How a divergence is turned into a penalty and a bonus.

    With ``mode="fine_tuning"``, for a divergence KL in nats::

        kl_penalty = penalty_weight * max(0, KL - threshold)
        kl_bonus = bonus_weight * max(0, 1 - KL / threshold)
        shaped_reward = base_reward + kl_bonus - kl_penalty

    ``mode="exploration"`` changes the sign of both, so that novelty is rewarded and neither is
    positive; ``mode="monitor"`` makes both 0. With ``shape_on="excess"`` KL is the divergence minus
    its noise floor, and 0 below that: an excess is negative half of the time where nothing changes,
    and a bonus above ``bonus_weight`` would pay for that luck. Errors name the arguments as
    `LLMTrainingWrapper` does: ``kl_penalty_weight``, ``kl_bonus_weight``, ``kl_threshold``,
    ``mode`` and ``shape_on``.

    Attributes:
        penalty_weight: Reward per nat above the threshold, finite and >= 0, or a controller of the
            unit ``nats/step`` whose value is used.
        bonus_weight: Reward at a divergence of 0, finite and >= 0.
        threshold: Divergence at which the bonus ends and the penalty begins, in nats, finite and
            > 0.
        mode: ``"fine_tuning"``, ``"exploration"`` or ``"monitor"``.
        shape_on: ``"kl"`` or ``"excess"``.

    Raises:
        TypeError: If a weight or the threshold is not a real number (or controller), or the mode
            or ``shape_on`` is not a str.
        ValueError: If one is outside its range, the mode or ``shape_on`` is unknown, or the
            controller has another unit.
    """

    penalty_weight: float | KLCoefficientController = 0.1
    bonus_weight: float = 0.05
    threshold: float = 0.5
    mode: Mode = "fine_tuning"
    shape_on: ShapeOn = "kl"

    def __post_init__(self) -> None:
        weight = _check_penalty_weight(self.penalty_weight)
        bonus_weight = _checks.real_number("kl_bonus_weight", self.bonus_weight, minimum=0.0)
        threshold = _checks.real_number(
            "kl_threshold", self.threshold, minimum=0.0, above_minimum=True
        )
        _check_choice("mode", self.mode, MODES)
        _check_choice("shape_on", self.shape_on, SHAPE_ON)
        object.__setattr__(self, "penalty_weight", weight)
        object.__setattr__(self, "bonus_weight", bonus_weight)
        object.__setattr__(self, "threshold", threshold)

    @property
    def current_penalty_weight(self) -> float:
        """Penalty weight that `terms` uses now: the number, or the controller's value."""
        weight = self.penalty_weight
        if isinstance(weight, (int, float)):
            return weight
        # A controller of the user may have gone anywhere.
        return _checks.real_number("kl_penalty_weight.value", weight.value, minimum=0.0)

    def measured(self, kl: float, excess: float) -> float:
        """What shaping goes by, in nats, of a divergence and its excess over the noise floor."""
        return kl if self.shape_on == "kl" else max(0.0, excess)

    def measured_of_rows(
        self, kl: NDArray[np.float64], excess: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """What `measured` returns for each row."""
        return kl if self.shape_on == "kl" else excess.clip(0.0)

    def terms(
        self, kl: float, ready: bool, penalty_weight: float | None = None
    ) -> tuple[float, float]:
        """Return the penalty and the bonus of one step.

        Args:
            kl: What `measured` gives after the step, in nats.
            ready: Whether the windows behind ``kl`` are full. Until then both terms are 0, because
                early values are several times larger without any change in behaviour.
            penalty_weight: Weight to use instead of the current one, >= 0.

        Returns:
            ``(kl_penalty, kl_bonus)``: finite floats, never ``-0.0``.

        Raises:
            TypeError: If ``penalty_weight`` is not a real number.
            ValueError: If ``kl`` is not finite, a weight is illegal, or the penalty overflows.
        """
        kl = float(kl)
        if not math.isfinite(kl):
            raise ValueError(f"kl must be a finite number of nats, got {kl!r}")
        if self.mode == "monitor" or not ready:
            return 0.0, 0.0
        if penalty_weight is None:
            penalty_weight = self.current_penalty_weight
        else:
            penalty_weight = _checks.real_number("penalty_weight", penalty_weight, minimum=0.0)
        penalty = penalty_weight * max(0.0, kl - self.threshold)
        bonus = self.bonus_weight * max(0.0, 1.0 - kl / self.threshold)
        if not math.isfinite(penalty):
            raise ValueError(
                f"kl_penalty_weight must give a finite penalty, got {penalty_weight!r} for a "
                f"divergence of {kl!r} nats"
            )
        if self.mode == "exploration":
            # Subtracting from zero negates without making a negative zero.
            return 0.0 - penalty, 0.0 - bonus
        return penalty, bonus

    def terms_of_rows(
        self, kl: NDArray[np.float64], ready: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the penalty and the bonus of one step of several environments.

        Args:
            kl: Divergence of each row after the step, in nats, finite.
            ready: Whether the windows behind it are full; elsewhere both terms are 0.

        Returns:
            ``(kl_penalty, kl_bonus)``, new arrays; each row is what `terms` returns for it.

        Raises:
            ValueError: If the weight is illegal, or a penalty overflows.
        """
        import numpy as np

        if self.mode == "monitor" or not ready.any():
            return np.zeros(len(kl)), np.zeros(len(kl))
        weight = self.current_penalty_weight
        with np.errstate(over="ignore"):
            penalty = np.where(ready, weight * np.maximum(0.0, kl - self.threshold), 0.0)
        bonus = np.where(ready, self.bonus_weight * np.maximum(0.0, 1.0 - kl / self.threshold), 0.0)
        if not np.isfinite(penalty).all():
            row = int(np.argmin(np.isfinite(penalty)))
            raise ValueError(
                f"kl_penalty_weight must give a finite penalty, got {weight!r} for a divergence "
                f"of {float(kl[row])!r} nats"
            )
        if self.mode == "exploration":
            # Subtracting from zero negates without making a negative zero.
            return 0.0 - penalty, 0.0 - bonus
        return penalty, bonus

    def end_episode(self, mean_kl: float, n_steps: int) -> float:
        """Let a controller adapt the penalty weight to an episode that has ended.

        Args:
            mean_kl: Mean of what `measured` gives over the steps of the episode, in nats.
            n_steps: Number of its steps; 0 changes nothing.

        Returns:
            The penalty weight from now on; unchanged if it is a number.

        Raises:
            ValueError: If the controller refuses the measurement; its state is then unchanged.
        """
        weight = self.penalty_weight
        if isinstance(weight, (int, float)):
            return weight
        if n_steps > 0:
            weight.update(mean_kl, n_steps)
        # Checked where it is used: the episode has ended well.
        return float(weight.value)


def check_floor(shape_on: ShapeOn, window: int | None, lag: int | None, reference: object) -> None:
    """Refuses to shape on an excess where there is no noise floor.

    Args:
        shape_on: As `RewardShaping`.
        window: As `JointKLDivergenceWrapper`; it has checked this and what follows.
        lag: See there.
        reference: See there.

    Raises:
        ValueError: The two distributions share pairs.
    """
    shares = window is None or (lag is not None and lag < window)
    if shape_on == "excess" and reference is None and shares:
        raise ValueError(
            "shape_on='excess' needs two distributions that share no pairs: a reference, or a "
            f"window with no lag or lag >= window; got window={window!r}, lag={lag!r}"
        )


def scalar_reward(reward: object) -> float:
    """Return the reward of an environment as a float.

    Args:
        reward: Python or NumPy number or bool, or an array of shape ``()`` of any array library.

    Returns:
        The reward, finite.

    Raises:
        TypeError: If it is not one real number: a vector, a list, None, text, a complex number.
        ValueError: If it is NaN, infinite or too large for a float.
    """
    if type(reward) is float:
        number = reward
    else:
        try:
            number = float(cast(float, reward)) if _is_real_scalar(reward) else None
        except TypeError:
            number = None
        except OverflowError:
            number = math.inf
        if number is None:
            raise TypeError(
                f"reward must be one real number, got {_describe(reward)}; make a vector reward a "
                "scalar in a wrapper of the environment (gymnasium.wrappers.TransformReward)"
            )
    if not math.isfinite(number):
        raise ValueError(f"reward must be a finite number, got {reward!r}")
    return number


def rewards_of_rows(rewards: object, acts: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the rewards of a vector environment.

    Args:
        rewards: One real number a row, in an array of any library or a list.
        acts: Rows that made a step; the others may hold anything and are 0.0 if not finite.

    Returns:
        A new array, finite.

    Raises:
        TypeError: If it is not one real number a row.
        ValueError: If one of a row that made a step is NaN or infinite.
    """
    import numpy as np

    array = np.asarray(rewards)
    if array.shape != acts.shape or array.dtype.kind not in "fiub":
        raise TypeError(
            f"rewards must be one real number a row ({len(acts)} here), got {array.dtype} of shape "
            f"{array.shape}"
        )
    numbers = array.astype(np.float64)
    wrong = np.flatnonzero(acts & ~np.isfinite(numbers))
    if len(wrong) > 0:
        row = int(wrong[0])
        raise ValueError(
            f"rewards must be finite numbers, got {float(numbers[row])!r} of sub-environment {row}"
        )
    return np.where(acts | np.isfinite(numbers), numbers, 0.0)


def finite_sums(
    base: NDArray[np.float64], bonus: NDArray[np.float64], penalty: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the shaped reward of each row, ``base + bonus - penalty``.

    Raises:
        ValueError: If one is not finite.
    """
    import numpy as np

    with np.errstate(over="ignore"):
        shaped = base + bonus - penalty
    wrong = np.flatnonzero(~np.isfinite(shaped))
    if len(wrong) > 0:
        row = int(wrong[0])
        raise ValueError(
            "kl_penalty_weight and kl_bonus_weight must give a finite shaped reward, got "
            f"{float(shaped[row])!r} of reward {float(base[row])!r}, bonus {float(bonus[row])!r}, "
            f"penalty {float(penalty[row])!r} in sub-environment {row}"
        )
    return shaped


def _is_real_scalar(value: object) -> bool:
    if isinstance(value, Real):
        return True
    # Arrays without axes, and NumPy's bool, which is no Real. Shape (1,) is a vector.
    if getattr(value, "shape", None) != () or not hasattr(value, "__float__"):
        return False
    kind: object = getattr(getattr(value, "dtype", None), "kind", None)
    return kind not in _NOT_REAL


def _describe(value: object) -> str:
    shape: object = getattr(value, "shape", None)
    if shape is not None:
        return f"{type(value).__name__} of shape {shape!r}"
    if isinstance(value, (list, tuple)):
        items = cast("list[object]", value)
        return f"a {type(items).__name__} of {len(items)} items"
    return f"{value!r} ({type(value).__name__})"


def _check_penalty_weight(weight: object) -> float | KLCoefficientController:
    if isinstance(weight, Real):
        return _checks.real_number("kl_penalty_weight", weight, minimum=0.0)
    if not isinstance(weight, KLCoefficientController):
        raise TypeError(
            "kl_penalty_weight must be a real number or a controller with value, unit and "
            f"update, got {weight!r} ({type(weight).__name__})"
        )
    if weight.unit != _UNIT:
        raise ValueError(
            f"kl_penalty_weight must be a controller of the unit {_UNIT!r}, got {weight.unit!r}"
        )
    _checks.real_number("kl_penalty_weight.value", weight.value, minimum=0.0)
    return weight


def _check_choice(name: str, value: object, legal: tuple[str, ...]) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {value!r} ({type(value).__name__})")
    if value not in legal:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, legal))}, got {value!r}")
