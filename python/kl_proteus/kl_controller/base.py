"""The drop-in controller without a model: it takes log-probabilities of both sides."""

import copy
import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import numpy as np

from kl_proteus import _checks
from kl_proteus._core import CoefficientController, ThresholdKLController
from kl_proteus.estimators import kl_from_logprobs
from kl_proteus.kl_controller.config import KLConfig, SavedController, whole
from kl_proteus.kl_controller.stats import KLStats, moments

logger = logging.getLogger("kl_proteus.kl_controller")

_STATS_VALUES = 100
"""`KLControllerBase.get_stats` looks at this many of the newest values."""


class KLControllerBase:
    """Turns divergences into reward penalties, and adapts the coefficient to hold a target.

    The rule, unless the config brings a controller: once `adaptation_window` values have been seen,
    each call compares the mean of the newest ones with 1.5 and 0.5 times `kl_target` and multiplies
    the coefficient once, within its bounds (`ThresholdKLController`). A sequence without tokens
    costs nothing and is no measurement.

    Attributes:
        config: The settings; fields, and the whole, may be replaced while the controller runs.

    Args:
        config: The settings.

    Raises:
        TypeError: `config` is no `KLConfig`.
    """

    config: KLConfig

    def __init__(self, config: KLConfig) -> None:
        if not isinstance(cast("object", config), KLConfig):
            raise TypeError(f"config must be a KLConfig, got {config!r} ({type(config).__name__})")
        config.check()
        self.config = config
        self._adaptation_count = 0
        self._samples_processed = 0
        self._kl_history: deque[float] = deque(maxlen=_history_length(config))
        self._rule = _threshold(config, float(config.kl_coeff), ())
        self._built_for = _rule_fields(config)
        self._start = _start_of(config.controller)

    @property
    def kl_coeff(self) -> float:
        """The coefficient in force.

        It can be set to any finite number >= 0; one outside the bounds stays until the next
        adaptation. With a controller in the config it is the controller's.

        Raises:
            TypeError: The controller in the config has a value that is no real number.
            ValueError: It has one that is negative, NaN or infinite.
        """
        return _coefficient(self._coefficient_rule())

    @kl_coeff.setter
    def kl_coeff(self, value: float) -> None:
        if self.config.controller is not None:
            raise AttributeError("kl_coeff is that of config.controller, and cannot be set here")
        value = _checks.real_number("kl_coeff", value, minimum=0.0)
        self._rebuild(value, self._kl_history)

    def compute_kl_from_logprobs(self, policy_logprobs: Any, reference_logprobs: Any) -> float:
        """Estimates the divergence of one sequence from its sampled tokens.

        Args:
            policy_logprobs: Log-probabilities of the tokens under the policy, shape (tokens,).
            reference_logprobs: The same under the reference.

        Returns:
            By default the mean difference in nats per token, at least 0; 0.0 without tokens.

        Raises:
            TypeError: An argument does not hold real numbers.
            ValueError: The lengths differ, a value is not finite (the message has its position), or
                they are of several sequences.
        """
        kl = self._measure(policy_logprobs, reference_logprobs)
        return 0.0 if kl is None else kl

    def get_penalty_from_logprobs(
        self, policy_logprobs: Any, reference_logprobs: Any
    ) -> tuple[float, float]:
        """Measures one sequence, adapts, and returns its penalty.

        Args:
            policy_logprobs: Log-probabilities of the tokens under the policy, shape (tokens,).
            reference_logprobs: The same under the reference.

        Returns:
            The penalty (the coefficient *after* the adaptation times the divergence), to subtract
            from a reward, and the divergence.

        Raises:
            TypeError: An argument does not hold real numbers.
            ValueError: As for `compute_kl_from_logprobs`, or the penalty is too large for a float.
                Nothing is changed then.
        """
        (kl,), _ = self._observe(lambda: [self._measure(policy_logprobs, reference_logprobs)])
        return (0.0, 0.0) if kl is None else (self.kl_coeff * kl, kl)

    def get_batch_penalty_from_logprobs(
        self, policy_logprobs_batch: Any, reference_logprobs_batch: Any
    ) -> tuple[list[float], KLStats]:
        """Measures a batch of sequences, then adapts once.

        Args:
            policy_logprobs_batch: A sequence of what `compute_kl_from_logprobs` takes.
            reference_logprobs_batch: As many for the reference.

        Returns:
            The penalty of each sequence (the coefficient *before* the adaptation times its
            divergence), and the statistics of the batch after it.

        Raises:
            TypeError: An argument does not hold sequences of real numbers.
            ValueError: The batches differ in length, or a sequence is as `compute_kl_from_logprobs`
                refuses it, where the message has its place; or a penalty, under the coefficient
                before or after, is too large for a float. Nothing is changed then.
        """
        coefficient = self.kl_coeff
        measured, values = self._observe(
            lambda: self._measure_batch(policy_logprobs_batch, reference_logprobs_batch)
        )
        penalties = [0.0 if kl is None else coefficient * kl for kl in measured]
        return penalties, self._compute_stats(values)

    def get_stats(self) -> KLStats:
        """Statistics of the newest 100 values."""
        values = self._kl_history
        return self._compute_stats(
            list(islice(values, max(0, len(values) - _STATS_VALUES), len(values)))
        )

    def reset_history(self) -> None:
        """Forgets the values, and so empties the window; the coefficient and the counts stay.

        The memory of a controller in the config is its own, and stays too.
        """
        self._rebuild(self._rule.value, ())
        self._kl_history.clear()

    def save_state(self) -> dict[str, Any]:
        """Everything that a resumed run needs, as JSON can hold it.

        Returns:
            A dict with `kl_coeff`, `adaptation_count`, `samples_processed` and `recent_history`
            (the newest max(100, adaptation_window) values, newest last); where the config has a
            controller, its `state_dict` as `controller`.
        """
        state: dict[str, Any] = {
            "kl_coeff": self.kl_coeff,
            "adaptation_count": self._adaptation_count,
            "samples_processed": self._samples_processed,
            "recent_history": list(self._kl_history),
        }
        if self.config.controller is not None:
            state["controller"] = self.config.controller.state_dict()
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continues from what `save_state` returned.

        Args:
            state: The dict; a key that is missing counts as that of a new controller, keys of other
                programs are ignored. Where the config has a controller, only an empty dict may lack
                its state; it then goes back to where it was when it was given to this object.

        Raises:
            TypeError: A value is of another type.
            ValueError: A value is out of its range, or the state is that of another controller.
                Nothing is changed then.
        """
        if not isinstance(cast("object", state), Mapping):
            raise TypeError(f"state must be a dict, got {state!r} ({type(state).__name__})")
        coefficient = _checks.real_number(
            "state['kl_coeff']", state.get("kl_coeff", self.config.kl_coeff), minimum=0.0
        )
        adaptations = whole(
            "state['adaptation_count']", state.get("adaptation_count", 0), minimum=0
        )
        samples = whole("state['samples_processed']", state.get("samples_processed", 0), minimum=0)
        values = _finite_values("state['recent_history']", state.get("recent_history", ()))
        # Everything that may be refused comes first, and the controller of the user last.
        self.config.check()
        rule = _threshold(self.config, coefficient, values)
        self._load_controller(state)
        self._rule = rule
        self._built_for = _rule_fields(self.config)
        self._kl_history = deque(values, maxlen=_history_length(self.config))
        self._adaptation_count = adaptations
        self._samples_processed = samples

    def _load_controller(self, state: Mapping[str, Any]) -> None:
        controller = self.config.controller
        new = state.get("controller")
        if controller is None:
            if new is not None:
                raise ValueError(
                    "state['controller'] must be missing where config.controller is None, "
                    f"got {new!r}"
                )
            return
        self._note_controller()
        if new is None:
            if state:
                raise ValueError(
                    "state['controller'] must be there for config.controller, got the keys "
                    f"{list(state)}"
                )
            new = copy.deepcopy(self._start[1])
        before = copy.deepcopy(controller.state_dict())
        try:
            controller.load_state_dict(new)
            _coefficient(controller)
        except Exception:
            controller.load_state_dict(before)
            raise

    def _coefficient_rule(self) -> SavedController:
        self._note_controller()
        own = self.config.controller
        return self._rule if own is None else own

    def _note_controller(self) -> None:
        """Keeps where a controller began that has just been put into the config."""
        if self._start[0] is not self.config.controller:
            self.config.check()
            self._start = _start_of(self.config.controller)

    def _rebuild(self, coefficient: float, values: Sequence[float] | deque[float]) -> None:
        self._rule = _threshold(self.config, coefficient, values)
        self._built_for = _rule_fields(self.config)

    def _follow_config(self) -> None:
        """Makes the rule and the history those of the config, where its fields have changed."""
        if self._built_for == _rule_fields(self.config):
            return
        self.config.check()
        self._rebuild(self._rule.value, self._kl_history)
        self._kl_history = deque(self._kl_history, maxlen=_history_length(self.config))

    def _measure(self, policy_logprobs: Any, reference_logprobs: Any) -> float | None:
        """The divergence of one sequence; None without any token that counts."""
        config = self.config
        if _rank(policy_logprobs) == 2:
            raise ValueError(
                "policy_logprobs must be of one sequence, shape (tokens,), got rank 2; "
                "get_batch_penalty_from_logprobs takes several"
            )
        kl, counts = kl_from_logprobs(
            policy_logprobs,
            reference_logprobs,
            estimator=config.estimator,
            reduction=config.reduction,
            on_nonfinite=config.on_nonfinite,
            return_counts=True,
        )
        if counts.kept == 0:
            return None
        return max(0.0, kl) if config.clamp else kl

    def _measure_batch(self, policy_batch: Any, reference_batch: Any) -> list[float | None]:
        try:
            sizes = len(policy_batch), len(reference_batch)
        except TypeError:
            raise TypeError(
                "policy_logprobs_batch and reference_logprobs_batch must be sequences of "
                f"sequences, got {type(policy_batch).__name__} and {type(reference_batch).__name__}"
            ) from None
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"reference_logprobs_batch has {sizes[1]} sequences, and policy_logprobs_batch "
                f"{sizes[0]}; expected as many"
            )
        measured: list[float | None] = []
        for place, pair in enumerate(zip(policy_batch, reference_batch, strict=True)):
            try:
                measured.append(self._measure(*pair))
            except (TypeError, ValueError) as error:
                raise type(error)(f"sequence {place} of the batch: {error}") from None
        return measured

    def _observe(
        self, measure: Callable[[], list[float | None]]
    ) -> tuple[list[float | None], list[float]]:
        """Measures sequences, and adapts to those that have a divergence.

        Returns:
            What was measured, and the values that were adapted to.
        """
        measured = measure()
        values = [kl for kl in measured if kl is not None]
        self._adapt_to_each(values)
        return measured, values

    def _adapt_to_each(self, values: list[float]) -> None:
        if values:
            self._adapt_to(values, len(values), max(map(abs, values)))

    def _adapt_to(
        self,
        values: list[float],
        samples: int,
        largest: float,
        limit: float = sys.float_info.max,
    ) -> None:
        """Lets measured values join the history, and adapts once.

        Args:
            values: At least one finite divergence.
            samples: Sequences that they stand for.
            largest: The largest absolute divergence that will be penalised.
            limit: The largest number of the penalties' type.
        """
        self._follow_config()
        _check_penalty(self.kl_coeff, largest, limit)
        if self.config.adaptive:
            self._adapt(values, samples, largest, limit)
        self._kl_history.extend(values)
        self._samples_processed += samples

    def _adapt(self, values: list[float], samples: int, largest: float, limit: float) -> None:
        controller = self._coefficient_rule()
        before = _coefficient(controller)
        # A state is costly, and not needed of a controller that cannot go wrong.
        sound = isinstance(controller, CoefficientController) and (
            max(before, controller.max_value) * largest <= limit
        )
        state = None if sound else copy.deepcopy(controller.state_dict())
        try:
            if controller is self._rule:
                controller.update(values)
            else:
                controller.update(moments(values)[0], samples)
            after = _coefficient(controller)
            _check_penalty(after, largest, limit)
        except Exception:
            if state is not None:
                controller.load_state_dict(state)
            raise
        if after != before:
            self._adaptation_count += 1
            logger.debug(
                "KL coefficient %.6g -> %.6g (target %.6g)", before, after, self.config.kl_target
            )

    def _compute_stats(self, values: Sequence[float]) -> KLStats:
        mean, std = moments(values)
        return KLStats(
            mean_kl=mean,
            max_kl=max(values, default=0.0),
            min_kl=min(values, default=0.0),
            std_kl=std,
            current_coeff=self.kl_coeff,
            adaptation_count=self._adaptation_count,
            samples_processed=self._samples_processed,
        )


def _start_of(controller: SavedController | None) -> tuple[SavedController | None, Any]:
    """A controller and a copy of its state."""
    return controller, None if controller is None else copy.deepcopy(controller.state_dict())


def _coefficient(controller: SavedController) -> float:
    """The value of a controller, which a user's own may have let go anywhere."""
    if isinstance(controller, CoefficientController):
        return controller.value
    return _checks.real_number("config.controller.value", controller.value, minimum=0.0)


def _check_penalty(coefficient: float, kl: float, limit: float) -> None:
    if not abs(coefficient * kl) <= limit:
        raise ValueError(
            f"kl_coeff must give finite penalties, got {coefficient!r} for a divergence of {kl!r}"
        )


def _rank(values: Any) -> int:
    """The rank of an array; that of a list by its first item, the rest is checked later."""
    if isinstance(values, list | tuple):
        items = cast("Sequence[Any]", values)
        return 1 + np.ndim(items[0]) if items else 1
    return np.ndim(values)


def _history_length(config: KLConfig) -> int:
    return max(_STATS_VALUES, config.adaptation_window)


def _rule_fields(config: KLConfig) -> tuple[Any, ...]:
    """What the rule is built from; with `adaptive`, since it sees no values while that is off."""
    return (
        config.kl_target,
        config.adaptation_window,
        config.increase_factor,
        config.decrease_factor,
        config.kl_coeff_min,
        config.kl_coeff_max,
        config.reduction,
        config.controller is None,
        config.adaptive,
    )


def _threshold(
    config: KLConfig, coefficient: float, values: Sequence[float] | deque[float]
) -> ThresholdKLController:
    """The rule of the config at a coefficient, its window filled with the newest values."""
    rule = ThresholdKLController(
        coefficient,
        config.kl_target,
        window=config.adaptation_window,
        increase_factor=config.increase_factor,
        decrease_factor=config.decrease_factor,
        min_value=config.kl_coeff_min,
        max_value=config.kl_coeff_max,
        unit=config.unit,
        keep_outside=True,
    )
    newest = list(values)[-config.adaptation_window :]
    rule.load_state_dict(rule.state_dict() | {"memory": {"window": newest}})
    return rule


def _finite_values(name: str, values: Any) -> list[float]:
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        raise TypeError(f"{name} must be a list of numbers, got {values!r}")
    return [_checks.finite(f"{name}[{i}]", value) for i, value in enumerate(values)]
