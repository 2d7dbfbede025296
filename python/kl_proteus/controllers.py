"""Controllers of a KL coefficient: a measured divergence goes in, the coefficient comes out.

They know no model and no trainer. Call `update` once per batch with the mean divergence of that
batch, in the controller's unit, and use `value` for the next one.
"""

from typing import Any, Protocol, TypedDict, runtime_checkable

from kl_proteus._core import (
    AdaptiveKLController,
    FixedKLController,
    PIDKLController,
    PPOPenaltyController,
    ScheduledKLController,
    ThresholdKLController,
)

__all__ = [
    "AdaptiveKLController",
    "CoefficientChange",
    "FixedKLController",
    "KLCoefficientController",
    "PIDKLController",
    "PPOPenaltyController",
    "ScheduledKLController",
    "ThresholdKLController",
]


@runtime_checkable
class KLCoefficientController(Protocol):
    """What this package needs of a coefficient controller; bring your own if you like."""

    @property
    def value(self) -> float:
        """The coefficient in force."""
        ...

    @property
    def unit(self) -> str:
        """Unit of the divergences: ``"nats/token"``, ``"nats/sequence"`` or ``"nats/step"``."""
        ...

    def update(self, current: Any, n_steps: int = ...) -> float:
        """Adapts to a divergence, in `unit`, that stands for `n_steps`; returns the new value."""
        ...


class CoefficientChange(TypedDict):
    """What `last_change` of the controllers of this module holds.

    Attributes:
        measured: The divergence that was compared (the value, or the mean of a window), in `unit`.
        target: What it was compared with; None for a constant coefficient.
        ratio: measured / target; None without a target.
        error: The clipped relative error; None for band rules and during a warm-up.
        n_steps: Steps that the update stood for.
        before: The coefficient before the update.
        after: The coefficient after it.
        action: Which way it moved: ``"up"``, ``"down"`` or ``"hold"``.
        bounded: Whether a bound cut the change short.
        reason: ``"fixed"``, ``"above_target"``, ``"below_target"``, ``"at_target"``,
            ``"above_band"``, ``"below_band"``, ``"inside_band"``, ``"window_not_full"`` or
            ``"warm_up"``.
        unit: Unit of the divergences.
    """

    measured: float
    target: float | None
    ratio: float | None
    error: float | None
    n_steps: int
    before: float
    after: float
    action: str
    bounded: bool
    reason: str
    unit: str
