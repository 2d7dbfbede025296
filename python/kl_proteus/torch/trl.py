"""A KL coefficient that follows the measured divergence in the trainers of TRL."""

from __future__ import annotations

import copy
import logging
import math
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from kl_proteus import _checks
from kl_proteus._core import CoefficientController, ScheduledKLController
from kl_proteus.kl_controller.config import SavedController, whole

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
    from trl import (
        DPOTrainer,  # pyright: ignore[reportPrivateImportUsage]
        GRPOTrainer,  # pyright: ignore[reportPrivateImportUsage]
        RLOOTrainer,  # pyright: ignore[reportPrivateImportUsage]
    )
except ImportError as error:
    raise ImportError(
        "KLControlCallback needs TRL, which the extra 'trl' brings: "
        f"pip install 'kl-proteus[trl]' ({error})"
    ) from error

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

__all__ = ["KLControlCallback"]

logger = logging.getLogger("kl_proteus.torch.trl")

_UNIT = "nats/token"
"""Unit of the metric `kl` of both trainers, whatever the penalty itself sums over."""


class KLControlCallback(TrainerCallback, ExportableState):
    """Drives `beta` of a `GRPOTrainer` or `RLOOTrainer` so that the divergence keeps to a target.

    TRL penalises with a constant `beta`. With this callback a coefficient controller is updated
    with every logged `kl`, the mean over all tokens of all processes since the last log, and its
    value becomes the `beta` of what follows. The coefficient in force joins each log as `kl_coef`.

        controller = PIDKLController(0.05, target=0.02, horizon=256)
        trainer = GRPOTrainer(..., args=GRPOConfig(beta=0.05, logging_steps=1, ...))
        KLControlCallback(controller).attach(trainer)
        trainer.train()

    Both trainers measure nats per token, GRPO with k3 (never negative) and RLOO with k1 (of either
    sign), so a target means the same for both; RLOO's penalty is a sum over the tokens of a
    completion, which changes the size of a fitting coefficient and not the target. The measurement
    lags: `beta` acts on the next batch, and what it does shows several batches later. The first one
    is 0, since the policy still is the reference.

    The state of the controller goes into the trainer's checkpoints. A resumed run continues where
    the checkpoint was written, with `restore_callback_states_from_checkpoint` or without.

    Args:
        controller: A coefficient controller with the unit ``"nats/token"``, one of this package or
            one of your own with `value`, `unit`, `update`, `state_dict` and `load_state_dict`; it
            is used, not copied. Its coefficient must stay above 0: at 0 TRL no longer measures,
            and the controller could never come back. None only stands for "that of the callback
            which this one replaces", as a Trainer does when it resumes.
        n_steps: Steps that an update stands for; None for the number of completions trained on
            since the last one, over all processes.

    Raises:
        TypeError: An argument is of another type.
        ValueError: The controller has another unit, its coefficient can be 0, or `n_steps` < 1.
    """

    _attached: ClassVar[weakref.WeakKeyDictionary[Any, KLControlCallback]] = (
        weakref.WeakKeyDictionary()
    )

    def __init__(
        self, controller: SavedController | None = None, *, n_steps: int | None = None
    ) -> None:
        if controller is not None:
            _check_controller(controller)
        self._controller = controller
        self._n_steps = None if n_steps is None else whole("n_steps", n_steps, minimum=1)
        self._trainer: weakref.ref[Any] | None = None
        self._last_step = 0

    @property
    def controller(self) -> SavedController:
        """The controller.

        Raises:
            RuntimeError: There is none yet.
        """
        if self._controller is None:
            raise RuntimeError("this callback has no controller; give it one, and attach it")
        return self._controller

    def attach(self, trainer: Any) -> Self:
        """Adds the callback to a trainer, and sets its `beta` to the controller's value.

        Args:
            trainer: A `GRPOTrainer` or `RLOOTrainer` with a reference: made with a `beta` above 0,
                or training a PEFT adapter, whose reference is the model with the adapter off.

        Returns:
            The callback.

        Raises:
            TypeError: It is a `DPOTrainer`, which measures no divergence, or another object.
            ValueError: It has no reference, logs nothing, or has such a callback already.
            RuntimeError: This callback belongs to another trainer.
        """
        controller = self.controller
        _check_controller(controller)
        _check_trainer(trainer)
        owner = None if self._trainer is None else self._trainer()
        if owner is trainer:
            return self
        if owner is not None:
            raise RuntimeError("this callback is attached to another trainer; make one for each")
        callbacks = trainer.callback_handler.callbacks
        if any(isinstance(other, KLControlCallback) and other is not self for other in callbacks):
            raise ValueError("trainer must have no other KLControlCallback: both would set beta")
        self._take(trainer)
        trainer.beta = controller.value
        return self

    def state(self) -> dict[str, Any]:
        """What goes into the trainer's checkpoint; a `Trainer` calls this."""
        saved: dict[str, Any] = {"last_step": self._last_step}
        if self._controller is not None:
            saved["controller"] = self._controller.state_dict()
        return {"args": {"n_steps": self._n_steps}, "attributes": {"saved": saved}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Continues from the checkpoint of a resumed run, and puts the coefficient in force.

        Raises:
            RuntimeError: The callback was never attached.
            ValueError: The checkpoint is of another controller, or the controller's rule refuses
                as many completions as come between two logs.
        """
        del control, kwargs
        trainer = self._find_trainer()
        self._last_step = state.global_step
        stored = cast("dict[str, Any]", state.stateful_callbacks)
        if state.global_step > 0:
            self._restore(stored.get(type(self).__name__))
        # A resumed trainer saves only the callbacks that the old checkpoint has.
        stored.setdefault(type(self).__name__, self.state())
        self._check_interval(trainer, args, state)
        trainer.beta = _coefficient(self.controller)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Updates the controller with the logged divergence of the training batches.

        Raises:
            ValueError: The rule refuses the update.
        """
        del control, kwargs
        if logs is None or "kl" not in logs:
            return
        trainer = self._find_trainer()
        kl = logs["kl"]
        logs["kl_coef"] = trainer.beta
        if state.log_history and state.log_history[-1].get("step") == state.global_step:
            state.log_history[-1].setdefault("kl_coef", trainer.beta)
        if kl is None or not math.isfinite(kl):
            logger.warning(
                "step %d: kl is %r, which measures nothing; beta stays %g",
                state.global_step,
                kl,
                trainer.beta,
            )
            return
        steps = max(1, state.global_step - self._last_step)
        controller = self.controller
        controller.update(kl, self._n_steps or steps * _completions_of_a_step(args))
        self._last_step = state.global_step
        trainer.beta = _coefficient(controller)

    def _take(self, trainer: Any) -> None:
        """Makes a trainer this callback's own, and the callback the first that sees its logs."""
        self._trainer = weakref.ref(trainer)
        callbacks = trainer.callback_handler.callbacks
        # Before the reporters: what it adds to a log is then in what they report.
        callbacks[:] = [self, *(other for other in callbacks if other is not self)]
        self._attached[trainer] = self

    def _find_trainer(self) -> Any:
        """The trainer; for an object that a resuming one has made, that of its predecessor."""
        trainer = None if self._trainer is None else self._trainer()
        if trainer is not None:
            return trainer
        for other, predecessor in list(self._attached.items()):
            if any(callback is self for callback in other.callback_handler.callbacks):
                self._controller = predecessor.controller
                self._take(other)
                return other
        raise RuntimeError(
            "KLControlCallback does not know its trainer; call KLControlCallback(...)"
            ".attach(trainer) in place of passing it in callbacks="
        )

    def _restore(self, stored: Any) -> None:
        if stored is None:
            logger.warning(
                "the checkpoint holds no KLControlCallback; the controller goes on from %g",
                self.controller.value,
            )
            return
        try:
            saved = stored["attributes"]["saved"]
            new, last_step = saved["controller"], saved["last_step"]
        except (KeyError, TypeError):
            raise ValueError(
                f"the checkpoint must hold the state of one KLControlCallback, got {stored!r}"
            ) from None
        last_step = whole("last_step of the checkpoint", last_step, minimum=0)
        try:
            self.controller.load_state_dict(new)
        except (TypeError, ValueError) as error:
            raise type(error)(f"the checkpoint does not fit the controller: {error}") from error
        self._last_step = last_step

    def _check_interval(self, trainer: Any, args: TrainingArguments, state: TrainerState) -> None:
        """Tries an update as large as will come, so that it cannot fail hours later."""
        controller = self.controller
        if not isinstance(controller, CoefficientController) or controller.target is None:
            return
        steps = max(1, int(state.logging_steps)) if args.logging_strategy == "steps" else 1
        if isinstance(trainer, RLOOTrainer):
            # It measures when it generates.
            own = cast("Any", trainer)
            micro_steps: int = own.args.steps_per_generation * own.num_iterations
            steps = max(steps, -(-micro_steps // args.gradient_accumulation_steps))
        n_steps = self._n_steps or steps * _completions_of_a_step(args)
        rule = (
            controller.controller if isinstance(controller, ScheduledKLController) else controller
        )
        try:
            copy.deepcopy(rule).update(controller.target, n_steps)
        except ValueError as error:
            raise ValueError(
                f"the controller must take updates of n_steps = {n_steps}, the completions between "
                f"two logs; log more often, or choose a larger horizon: {error}"
            ) from error


def _completions_of_a_step(args: TrainingArguments) -> int:
    """Completions that one optimizer step trains on, over all processes."""
    own = cast("Any", args)
    return int(own.train_batch_size * own.gradient_accumulation_steps * own.world_size)


def _coefficient(controller: SavedController) -> float:
    return _checks.real_number(
        "controller.value", controller.value, minimum=0.0, above_minimum=True
    )


def _check_controller(controller: object) -> None:
    if not isinstance(controller, SavedController):
        raise TypeError(
            "controller must have value, unit, update(current, n_steps), state_dict() and "
            f"load_state_dict(state), got {controller!r} ({type(controller).__name__})"
        )
    if controller.unit != _UNIT:
        raise ValueError(
            f"controller must have the unit {_UNIT!r}, which is what TRL logs as kl, "
            f"got {controller.unit!r}"
        )
    _coefficient(controller)
    lowest = getattr(controller, "min_value", None)
    if lowest is not None and not lowest > 0.0:
        raise ValueError(
            f"controller must have a min_value above 0, got {lowest!r}: with beta = 0 TRL measures "
            "no divergence, and the coefficient could never rise again"
        )


def _check_trainer(trainer: Any) -> None:
    if isinstance(trainer, DPOTrainer):
        raise TypeError(
            "trainer must be a GRPOTrainer or RLOOTrainer, got a DPOTrainer: its beta is the "
            "inverse temperature of the implicit reward, which the derivation of the loss fixes, "
            "and it measures no divergence on samples of the policy that a controller could follow"
        )
    if not isinstance(trainer, GRPOTrainer | RLOOTrainer):
        raise TypeError(
            f"trainer must be a GRPOTrainer or RLOOTrainer, got {type(trainer).__name__}"
        )
    if trainer.args.logging_strategy == "no":
        raise ValueError(
            "trainer must log, with logging_strategy 'steps' or 'epoch': the divergence comes with "
            "the logs, got 'no'"
        )
    if trainer.ref_model is not None:
        return
    adapters = _adapters(trainer.accelerator.unwrap_model(trainer.model))
    if adapters is None:
        raise ValueError(
            "trainer must have a reference model, got one made with beta = 0, for which TRL loads "
            "none; give its config the coefficient to begin with, e.g. beta=0.05"
        )
    if "ref" not in adapters.peft_config and _trained(adapters):
        logger.warning(
            "the trainer was made with beta = 0 and an adapter that is trained already: its "
            "reference is the base model. With a beta above 0 TRL keeps a copy of the adapter."
        )


def _adapters(model: Any) -> Any:
    """The model if it is PEFT's, else None."""
    try:
        from peft import PeftModel
    except ImportError:
        return None
    return model if isinstance(model, PeftModel) else None


def _trained(model: Any) -> bool:
    """Whether LoRA weights differ from those of a fresh adapter, whose B is 0."""
    return any(
        bool(parameter.any()) for name, parameter in model.named_parameters() if ".lora_B." in name
    )
