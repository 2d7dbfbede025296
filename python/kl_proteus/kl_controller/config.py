"""Settings of the drop-in controller."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, get_args, runtime_checkable

from kl_proteus import _checks
from kl_proteus.controllers import KLCoefficientController
from kl_proteus.estimators import Estimator

Reduction = Literal["sequence_mean", "sequence_sum"]

_UNITS: dict[Reduction, str] = {"sequence_mean": "nats/token", "sequence_sum": "nats/sequence"}
_CHOICES = {
    "estimator": get_args(Estimator),
    "reduction": get_args(Reduction),
    "on_nonfinite": ("raise", "exclude"),
}


@runtime_checkable
class SavedController(KLCoefficientController, Protocol):
    """A coefficient controller that goes into a checkpoint with the rest."""

    def state_dict(self) -> dict[str, Any]:
        """All that it needs to continue, as JSON can hold it."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from what `state_dict` returned."""
        ...


@dataclass
class KLConfig:
    """Settings of a `KLControllerBase`; the defaults are those of the controller it replaces.

    A field may be set while a controller runs; it acts from the next call on (`kl_coeff` is where
    a controller begins).

    Attributes:
        reference_model_name: Name or path of the reference model; the base does not load it.
        kl_coeff: Coefficient to begin with, finite and >= 0. One outside the bounds stays until the
            window is full.
        kl_target: Divergence aimed at, above 0, in the unit of `reduction`.
        adaptive: Whether the coefficient adapts.
        kl_coeff_min: Smallest coefficient of an adaptation, above 0.
        kl_coeff_max: Largest coefficient of an adaptation.
        adaptation_window: Values in the mean that is compared with 1.5 and 0.5 times the target.
        increase_factor: Multiplies the coefficient above that band, at least 1.
        decrease_factor: Multiplies it below, above 0 and at most 1.
        device: Where a reference model is loaded: a name of torch, or ``"auto"`` for an accelerator
            if there is one.
        use_bf16: Whether it is loaded in bfloat16 on an accelerator; on a CPU it is float32.
        estimator: What is estimated of a token: ``"k1"``, ``"abs"``, ``"k2"`` or ``"k3"``; see
            `kl_from_logprobs`.
        reduction: ``"sequence_mean"``, in nats per token, or ``"sequence_sum"``, in nats per
            sequence.
        clamp: Whether an estimate from lists that is below 0 counts as 0. It biases the mean of k1
            upwards. Estimates from tensors are not clamped.
        on_nonfinite: ``"raise"``, or ``"exclude"`` to leave out tokens with a log-probability that
            is not finite.
        controller: Any coefficient controller of the unit that `reduction` gives, with `state_dict`
            and `load_state_dict`, in place of the rule that the fields above describe; it is used,
            not copied. Each call gives it one divergence, the mean of the batch, with the number of
            its sequences as n_steps, where the default rule takes every sequence into its window: a
            `ThresholdKLController` here averages the last `window` batches.
        temperature: What the logits of a reference model are divided by; that of the policy.
        trust_remote_code: Whether code that comes with a reference model may run.

    Raises:
        TypeError: A field is of another type.
        ValueError: A field is out of its range, or the controller has another unit.
    """

    reference_model_name: str
    kl_coeff: float = 0.1
    kl_target: float = 3.0
    adaptive: bool = True
    kl_coeff_min: float = 0.01
    kl_coeff_max: float = 1.0
    adaptation_window: int = 10
    increase_factor: float = 1.5
    decrease_factor: float = 0.8
    device: str = "auto"
    use_bf16: bool = True
    estimator: Estimator = "k1"
    reduction: Reduction = "sequence_mean"
    clamp: bool = True
    on_nonfinite: Literal["raise", "exclude"] = "raise"
    controller: SavedController | None = None
    temperature: float = 1.0
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        self.check()

    @property
    def unit(self) -> str:
        """Unit of the divergences, as `reduction` gives it."""
        return _UNITS[self.reduction]

    def check(self) -> None:
        """Checks every field.

        Raises:
            TypeError: A field is of another type.
            ValueError: A field is out of its range, or the controller has another unit.
        """
        _checks.text("reference_model_name", self.reference_model_name)
        _checks.text("device", self.device)
        for name in ("adaptive", "use_bf16", "clamp", "trust_remote_code"):
            _flag(name, getattr(self, name))
        for name, choices in _CHOICES.items():
            _choice(name, getattr(self, name), choices)
        _checks.real_number("kl_coeff", self.kl_coeff, minimum=0.0)
        for name in ("kl_target", "kl_coeff_min", "kl_coeff_max", "temperature"):
            _checks.real_number(name, getattr(self, name), minimum=0.0, above_minimum=True)
        if self.kl_coeff_min > self.kl_coeff_max:
            raise ValueError(
                f"kl_coeff_min must be at most kl_coeff_max = {self.kl_coeff_max!r}, "
                f"got {self.kl_coeff_min!r}"
            )
        whole("adaptation_window", self.adaptation_window, minimum=1, maximum=2**32 - 1)
        _checks.real_number("increase_factor", self.increase_factor, minimum=1.0)
        _checks.real_number(
            "decrease_factor", self.decrease_factor, minimum=0.0, maximum=1.0, above_minimum=True
        )
        self._check_controller()

    def _check_controller(self) -> None:
        controller = cast("object", self.controller)
        if controller is None:
            return
        if not isinstance(controller, SavedController):
            raise TypeError(
                "controller must have value, unit, update(current, n_steps), state_dict() and "
                f"load_state_dict(state), got {controller!r} ({type(controller).__name__})"
            )
        _checks.real_number("controller.value", controller.value, minimum=0.0)
        if controller.unit != self.unit:
            raise ValueError(
                f"controller must be of the unit {self.unit!r}, which reduction="
                f"{self.reduction!r} gives, got {controller.unit!r}"
            )


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r} ({type(value).__name__})")


def _choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {value!r} ({type(value).__name__})")
    if value not in choices:
        expected = ", ".join(map(repr, choices[:-1]))
        raise ValueError(f"{name} must be {expected} or {choices[-1]!r}, got {value!r}")


def whole(name: str, value: object, *, minimum: int, maximum: int | None = None) -> int:
    """Returns an integer after checking its type and its range.

    Args:
        name: Name of the argument or field, for the message.
        value: What arrived; a ``bool`` is refused.
        minimum: Smallest legal value.
        maximum: Largest legal value; None for none.

    Raises:
        TypeError: It is no integer.
        ValueError: It is out of range.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r} ({type(value).__name__})")
    number = int(cast("int", value))
    if number < minimum or (maximum is not None and number > maximum):
        expected = f">= {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    return number
