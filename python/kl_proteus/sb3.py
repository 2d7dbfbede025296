"""The drift of a policy's behaviour in Stable-Baselines3: in its logger, and around its VecEnvs.

Needs the extra `sb3`.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, cast

import numpy as np
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

try:
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
except ImportError as error:
    raise ImportError(
        "kl_proteus.sb3 needs Stable-Baselines3, which the extra 'sb3' brings: "
        f"pip install 'kl-proteus[sb3]' ({type(error).__name__}: {error})"
    ) from error

from kl_proteus.detector import DriftDetector
from kl_proteus.drift import JointKLDivergenceWrapper
from kl_proteus.snapshots import Snapshot
from kl_proteus.spaces import Bins, Range
from kl_proteus.tracking import (
    ALARM_KEY,
    INFO_KEYS,
    EncoderArgument,
    check_prefix,
    flag,
    tracking,
)
from kl_proteus.vector_rows import DriftOfRows

__all__ = ["KLDriftCallback", "VecKLDivergenceWrapper"]


class KLDriftCallback(BaseCallback):
    """Writes the drift that the environments report into the logger of the model.

    The environments are wrapped by `JointKLDivergenceWrapper`, or all of them at once by
    `VecKLDivergenceWrapper`. Each dump of the logger holds, in nats, averaged over the environments
    and the steps since the last dump: `kl/divergence`, `kl/divergence_mean`, `kl/divergence_std`,
    `kl/observation`, `kl/policy`, `kl/noise_floor` and `kl/excess`; and where a drift detector is
    attached, `kl/alarms`, the alarms since the training began.

    Args:
        info_prefix: That of the wrapper. It comes after `kl/` in the names above.
        stop_on_alarm: End the training at the first alarm.
        verbose: 1 prints why the training ends.

    Attributes:
        alarms: The alarms since the training began.

    Raises:
        TypeError: `info_prefix` is no string, or `stop_on_alarm` no bool.
        ValueError: `info_prefix` starts with an underscore; or, at the first step of a training,
            no environment reports the drift, or with `stop_on_alarm` no environment has a drift
            detector.
    """

    def __init__(
        self, info_prefix: str = "", *, stop_on_alarm: bool = False, verbose: int = 0
    ) -> None:
        super().__init__(verbose)
        check_prefix(info_prefix)
        self._names = {
            info_prefix + key: f"kl/{info_prefix}{key.removeprefix('kl_')}" for key in INFO_KEYS
        }
        self._first_key = next(iter(self._names))
        self._alarm_key = info_prefix + ALARM_KEY
        self._alarm_name = f"kl/{info_prefix}alarms"
        self._stop_on_alarm = flag(stop_on_alarm, "stop_on_alarm")
        self._started = False
        self._pooled = False
        self.alarms = 0

    def _on_training_start(self) -> None:
        self._started = False
        self._pooled = self._is_pooled()
        self.alarms = 0

    def _on_step(self) -> bool:
        infos = cast("Sequence[dict[str, Any]]", self.locals["infos"])
        if not self._started:
            self._check(infos)
            self._started = True
        reporting = [info for info in infos if self._first_key in info]
        if reporting:
            for key, name in self._names.items():
                values = [float(info[key]) for info in reporting]
                self.logger.record_mean(name, sum(values) / len(values))
        watched = [info for info in reporting if self._alarm_key in info]
        alarmed = [info[self._alarm_key] > 0 for info in watched]
        new = int(any(alarmed)) if self._pooled else sum(alarmed)
        self.alarms += new
        if watched:
            self.logger.record(self._alarm_name, self.alarms)
        if new and self._stop_on_alarm:
            if self.verbose >= 1:
                print(f"Stopping training: the behaviour has drifted (step {self.num_timesteps})")
            return False
        return True

    def _is_pooled(self) -> bool:
        """Whether every row holds the same alarm, so that it counts once."""
        inner: Any = self.training_env
        while isinstance(inner, VecEnvWrapper):
            own = isinstance(inner, VecKLDivergenceWrapper) and inner.pooled
            if own and inner.info_prefix + ALARM_KEY == self._alarm_key:
                return True
            inner = inner.venv
        return False

    def _check(self, infos: Sequence[dict[str, Any]]) -> None:
        """Refuses a training in which there would be nothing to log or to wait for."""
        if not any(self._first_key in info for info in infos):
            raise ValueError(
                f"no environment reports {self._first_key!r}: wrap each in "
                "JointKLDivergenceWrapper, or the VecEnv in VecKLDivergenceWrapper, and give "
                "KLDriftCallback the same info_prefix"
            )
        if self._stop_on_alarm and not any(self._alarm_key in info for info in infos):
            raise ValueError(
                f"stop_on_alarm=True, but no environment reports {self._alarm_key!r}: give the "
                "wrapper of the environments a drift_detector"
            )


class VecKLDivergenceWrapper(DriftOfRows, VecEnvWrapper):
    """`JointKLDivergenceWrapper` for the environments of a Stable-Baselines3 `VecEnv`.

    Each environment has windows and a history of its own, and reports exactly what a
    `JointKLDivergenceWrapper` around it would; with `pooled=True` the pairs of all of them are in
    one distribution instead, and enter it in the order of their index. The values are floats in a
    copy of each row's info, also in that of the step that ends an episode. The pairs are those of
    the observations that this wrapper passes on and the actions that it is given: put it inside
    `VecNormalize` to measure what the environments themselves see.

    Args:
        venv: Any `VecEnv`.
        obs_bins: As the other arguments but `pooled`, see `JointKLDivergenceWrapper`.
        action_bins: See there.
        history_size: See there.
        epsilon: See there.
        normalize_obs: See there.
        normalize_action: See there.
        pooled: One distribution for all environments. `window`, `lag` and `min_window` then count
            steps of all of them: a window holds `window * num_envs` pairs. One value a step is
            computed, after the last pair, and written to every row.
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
        drift_detector: As `VectorJointKLDivergenceWrapper` takes it: one for each environment, or
            with `pooled=True` one for all of them.

    Raises:
        TypeError: `venv` is no `VecEnv`, or an argument or a space is of a kind that cannot be
            used.
        ValueError: An argument is out of its range, the reference has other axes, or another
            wrapper of the environments already reports under this `info_prefix`.
    """

    def __init__(
        self,
        venv: VecEnv,
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
        drift_detector: DriftDetector | Mapping[str, Any] | float | None = None,
    ) -> None:
        if not isinstance(cast("Any", venv), VecEnv):
            raise TypeError(
                f"venv must be a VecEnv of Stable-Baselines3, got {type(venv).__name__}"
            )
        check_prefix(info_prefix)
        _refuse_twin(venv, info_prefix)
        super().__init__(venv)
        # The row of an episode's last step holds the first observation of the next.
        self._resets_next_step = False
        self._resets_same_step = True
        self._info_on_reset = False  # `reset` returns no info
        observation_space = cast("Any", venv.observation_space)
        action_space = cast("Any", venv.action_space)
        settings = tracking(
            observation_space,
            action_space,
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
            venv.num_envs,
            batch_space(observation_space, venv.num_envs),
            batch_space(action_space, venv.num_envs),
            pooled=pooled,
            info_prefix=info_prefix,
            drift_detector=drift_detector,
        )

    def reset(self) -> Any:
        """Resets all environments; windows and history go on.

        Returns:
            What the environments returned.
        """
        observations = self.venv.reset()
        self._observe(observations, None)
        self._tracker.begin_episodes(np.ones(self.num_envs, np.bool_))
        return observations

    def step_async(self, actions: NDArray[Any]) -> None:
        """Checks the pairs (last observation, action) and starts the step.

        Raises:
            TypeError: The last observation or the action of a row is not made of real numbers.
            ValueError: One of them has a NaN, a wrong shape, or a value that a space of categories
                does not hold. No environment is stepped then, and nothing is counted in any row.
        """
        self._choose(actions)
        self.venv.step_async(actions)

    def step_wait(self) -> Any:
        """Waits for the step and counts its pairs.

        Returns:
            What the environments returned, with the keys above in copies of the infos.
        """
        try:
            observations, rewards, dones, infos = cast("Any", self.venv).step_wait()
        except Exception:
            raise  # the last observations that were seen wait for other actions
        except BaseException:
            # Interrupted: who knows which environments have moved.
            self._forget()
            raise
        columns, _ = self._advance(observations, np.asarray(dones, np.bool_))
        values = zip(*(column.tolist() for column in columns), strict=True)
        reported: list[dict[str, Any]] = [
            {**info, **dict(zip(self._info_keys, row, strict=True))}
            for info, row in zip(infos, values, strict=True)
        ]
        self._report_alarms(columns)
        return observations, rewards, dones, reported


def _refuse_twin(venv: VecEnv, prefix: str) -> None:
    """Refuses a wrapper inside this one that would write the same keys."""
    inner: Any = venv
    while isinstance(inner, VecEnvWrapper):
        if isinstance(inner, VecKLDivergenceWrapper) and inner.info_prefix == prefix:
            raise ValueError(
                f"the VecEnv is wrapped by a {type(cast('Any', inner)).__name__} with "
                f"info_prefix={prefix!r} already; give this one another prefix"
            )
        inner = inner.venv
    for single in getattr(inner, "envs", ()):
        JointKLDivergenceWrapper.refuse_twin(single, prefix)
