"""The drift of a policy's behaviour in many environments at once."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from kl_proteus.autoreset import autoreset_mode, checked_mask
from kl_proteus.detector import DriftDetector
from kl_proteus.drift import JointKLDivergenceWrapper
from kl_proteus.snapshots import Snapshot
from kl_proteus.spaces import Bins, Range
from kl_proteus.tracking import (
    EncoderArgument,
    check_prefix,
    flag,
    tracking,
)
from kl_proteus.vector_rows import DriftOfRows

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")
ArrayType = TypeVar("ArrayType")


if TYPE_CHECKING or getattr(VectorWrapper, "__parameters__", ()):
    _GenericWrapper = VectorWrapper
else:

    class _GenericWrapper(VectorWrapper):
        """In Gymnasium 1.0 wrappers of vector environments take no type arguments."""

        def __class_getitem__(cls, _: Any) -> Any:
            return cls


class VectorJointKLDivergenceWrapper(
    DriftOfRows, _GenericWrapper[ObsType, ActType, ObsType, ActType, ArrayType]
):
    """`JointKLDivergenceWrapper` for the sub-environments of a vector environment.

    Each sub-environment has windows and a history of its own, and reports exactly what a
    `JointKLDivergenceWrapper` around it would. With `pooled=True` the pairs of all sub-environments
    are in one distribution instead, and enter it in the order of their index; one value a step is
    computed, after the last of them, and written to every row.

    In every step `infos` gains, for each of the keys of `JointKLDivergenceWrapper`, `kl_alarm` with
    `drift_detector=` included, a new array float64[num_envs] and its mask `_key`. Outside the mask
    the array holds 0.0:

    * `NEXT_STEP`: a row that resets, ignoring its action, brings no pair and is outside the mask.
    * `SAME_STEP`: a row that ends brings a pair; its values are in `infos["final_info"]`, beside
      the info of the step that ended it, and the row is outside the mask of `infos`, where the info
      of the reset is.
    * `DISABLED`: every row brings a pair. `reset(options={"reset_mask": ...})` resets some of them.

    With `info_on_reset=True` the rows outside the mask hold what their last pair reported and are
    inside it. Values of a pooled distribution belong to all rows, and the mask is True everywhere.

    Args:
        env: A vector environment of any kind, with a single observation space and action space as
            `JointKLDivergenceWrapper` takes them.
        obs_bins: As the other arguments but `pooled`, see `JointKLDivergenceWrapper`.
        action_bins: See there.
        history_size: See there.
        epsilon: See there.
        normalize_obs: See there.
        normalize_action: See there.
        pooled: One distribution for all sub-environments. `window`, `lag` and `min_window` then
            count steps of the vector environment: a window holds `window * num_envs` pairs, and
            reaches back further where some steps brought fewer. The history holds one value a step.
        window: See there.
        lag: See there.
        reference: See there.
        obs_range: See there.
        action_range: See there.
        obs_scale: See there.
        encoder: See there; a function is called for one observation at a time.
        min_window: See there.
        axis_histograms: See there.
        info_prefix: See there.
        info_on_reset: See there.
        drift_detector: As there: a dict or a number makes a detector for each sub-environment, and
            an instance, which stays as it is, is copied with its state for each. They share
            `on_alarm`, and `DriftAlarm.row` says whose alarm it is. With `pooled=True` there is one
            detector, the instance itself where one is given, that counts the pairs of all
            sub-environments in the order of their index; its windows and `false_alarm_every` count
            pairs, not steps.

    Raises:
        TypeError: `env` is no vector environment, its `metadata["autoreset_mode"]` is no
            `AutoresetMode`, or an argument or a space is of a kind that cannot be used.
        ValueError: An argument is out of its range, the reference has other axes, or another
            wrapper of the environment already reports under this `info_prefix`.
    """

    def __init__(
        self,
        env: VectorEnv[ObsType, ActType, ArrayType],
        obs_bins: Bins = 10,
        action_bins: Bins = 10,
        history_size: int = 1000,
        epsilon: float = 0.5,
        normalize_obs: bool = True,
        normalize_action: bool = True,
        *,
        pooled: bool = False,
        window: int | None = 1000,
        lag: int | None = None,
        reference: Snapshot | str | PathLike[str] | None = None,
        obs_range: Range | None = None,
        action_range: Range | None = None,
        obs_scale: float = 1.0,
        encoder: EncoderArgument = "auto",
        min_window: int = 32,
        axis_histograms: bool | None = None,
        info_prefix: str = "",
        info_on_reset: bool = False,
        drift_detector: DriftDetector | Mapping[str, Any] | float | None = None,
    ) -> None:
        super().__init__(env)
        check_prefix(info_prefix)
        _refuse_twin(env, info_prefix)
        mode = autoreset_mode(env)
        self._resets_next_step = mode == "NEXT_STEP"
        self._resets_same_step = mode == "SAME_STEP"
        self._info_on_reset = flag(info_on_reset, "info_on_reset")
        settings = tracking(
            cast("gym.Space[Any]", env.single_observation_space),
            cast("gym.Space[Any]", env.single_action_space),
            obs_bins=obs_bins,
            action_bins=action_bins,
            history_size=history_size,
            epsilon=epsilon,
            normalize_obs=normalize_obs,
            normalize_action=normalize_action,
            window=window,
            lag=lag,
            reference=reference,
            obs_range=obs_range,
            action_range=action_range,
            obs_scale=obs_scale,
            encoder=encoder,
            min_window=min_window,
            axis_histograms=axis_histograms,
        )
        self._track_rows(
            settings,
            env.num_envs,
            cast("gym.Space[Any]", env.observation_space),
            cast("gym.Space[Any]", env.action_space),
            pooled=pooled,
            info_prefix=info_prefix,
            drift_detector=drift_detector,
        )
        self._info_masks = tuple("_" + key for key in self._info_keys)

    def step(
        self, actions: ActType
    ) -> tuple[ObsType, ArrayType, ArrayType, ArrayType, dict[str, Any]]:
        """Steps the environments and counts the pairs (last observation, action).

        Returns:
            What the environment returned, with the keys above in a copy of infos.

        Raises:
            TypeError: The last observation or the action of a row is not made of real numbers.
            ValueError: One of them has a NaN, a wrong shape, or a value that a space of categories
                does not hold. No environment is stepped then, and nothing is counted in any row.
        """
        self._choose(actions)
        try:
            observations, rewards, terminations, truncations, infos = self.env.step(actions)
        except Exception:
            raise  # the last observations that were seen wait for other actions
        except BaseException:
            # Interrupted: who knows which environments have moved.
            self._forget()
            raise
        done = np.logical_or(np.asarray(terminations), np.asarray(truncations))
        columns, masks = self._advance(observations, done)
        infos = self._with_reports(infos, columns, masks, done)
        self._report_alarms(columns)
        return observations, rewards, terminations, truncations, infos

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Resets all environments, or those of `options["reset_mask"]`; windows and history go on.

        Args:
            seed: As the environment takes it.
            options: As the environment takes them. They are not changed, so the same dict serves
                again.

        Returns:
            What the environment returned, with the keys above in a copy of infos where
            `info_on_reset` asks for it.

        Raises:
            TypeError: `options["reset_mask"]` is no array of bools.
            ValueError: It has another shape than `(num_envs,)`, or no True in it.
        """
        mask = None
        if options is not None and "reset_mask" in options:
            mask = checked_mask(options["reset_mask"], self.num_envs)
            # Environments take the mask out of the options they are given.
            options = {**options, "reset_mask": mask.copy()}
        observations, infos = self.env.reset(seed=seed, options=options)  # pyright: ignore[reportArgumentType]
        self._observe(observations, mask)
        self._tracker.begin_episodes(np.ones(self.num_envs, np.bool_) if mask is None else mask)
        if self._info_on_reset:
            among = np.ones(self.num_envs, np.bool_) if mask is None or self._pooled else mask
            infos = dict(infos)
            columns = self._tracker.report()
            if self._drift_detectors:
                columns.append(np.zeros(self.num_envs))  # no pair, no alarm
            self._write(infos, self._info_keys, columns, among)
        return observations, infos

    def _with_reports(
        self,
        infos: dict[str, Any],
        columns: Sequence[NDArray[np.float64]],
        masks: Sequence[NDArray[np.bool_]],
        done: NDArray[np.bool_],
    ) -> dict[str, Any]:
        # A copy, because environments and outer wrappers keep the dict they returned or received.
        infos = dict(infos)
        if self._resets_same_step and done.any():
            final = self._final_infos(infos, done)
            self._write(final, self._info_keys, columns, done)
            if not (self._info_on_reset or self._pooled):
                self._write(infos, self._info_keys, columns, ~done)
                return infos
            if self._drift_detectors and not self._pooled:
                # Theirs is the info of the reset: no pair, no alarm.
                columns = [*columns[:-1], np.where(done, 0.0, columns[-1])]
        infos.update(zip(self._info_keys, columns, strict=True))
        infos.update(zip(self._info_masks, masks, strict=True))
        return infos

    @staticmethod
    def _final_infos(infos: dict[str, Any], done: NDArray[np.bool_]) -> dict[str, Any]:
        """A copy, put in its place, of the infos of the steps that ended the rows."""
        final = infos["final_info"] = dict(infos.get("final_info", {}))
        infos.setdefault("_final_info", done.copy())
        return final

    @staticmethod
    def _write(
        infos: dict[str, Any],
        keys: Sequence[str],
        columns: Sequence[NDArray[np.float64]],
        mask: NDArray[np.bool_],
    ) -> None:
        """Writes the rows of a mask."""
        for key, column in zip(keys, columns, strict=True):
            infos[key], infos["_" + key] = np.where(mask, column, 0.0), mask.copy()


def _refuse_twin(env: VectorEnv[Any, Any, Any], prefix: str) -> None:
    """Refuses a wrapper inside this one that would write the same keys."""
    inner: Any = env
    while isinstance(inner, VectorWrapper):
        if isinstance(inner, VectorJointKLDivergenceWrapper) and inner.info_prefix == prefix:
            raise ValueError(
                f"the environment is wrapped by a {type(cast('Any', inner)).__name__} with "
                f"info_prefix={prefix!r} already; give this one another prefix"
            )
        inner = cast("Any", inner).env
    for single in getattr(inner, "envs", ()):
        JointKLDivergenceWrapper.refuse_twin(single, prefix)
