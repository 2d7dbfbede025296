"""Reward shaping by drift, and trajectories as fine-tuning data for language models."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat, TypeVar

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from kl_proteus import detector
from kl_proteus.controllers import KLCoefficientController
from kl_proteus.detector import DriftDetector
from kl_proteus.drift import JointKLDivergenceWrapper
from kl_proteus.llm.export import FormatType
from kl_proteus.llm.recording.recorder import EpisodeRecording
from kl_proteus.llm.recording.trajectory import Mean, Trajectory
from kl_proteus.llm.shaping import Mode, RewardShaping, ShapeOn, check_floor, scalar_reward
from kl_proteus.llm.text.environment_text import EnvironmentText
from kl_proteus.llm.training_data import TrainingData, binning_of
from kl_proteus.snapshots import Snapshot
from kl_proteus.spaces import Bins, Range
from kl_proteus.tracking import EncoderArgument, Report, plain

__all__ = ["LLMTrainingWrapper"]

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")

REWARD_KEYS = ("base_reward", "kl_penalty", "kl_bonus", "shaped_reward")
"""What each step's info gains besides the keys of the drift."""


class LLMTrainingWrapper(
    TrainingData[ObsType, ActType], JointKLDivergenceWrapper[ObsType, ActType]
):
    """Shapes the reward by drift, and records episodes as fine-tuning data.

    With the joint divergence KL of `JointKLDivergenceWrapper`, once its windows are full::

        kl_penalty = kl_penalty_weight * max(0, KL - kl_threshold)
        kl_bonus = kl_bonus_weight * max(0, 1 - KL / kl_threshold)
        shaped_reward = base_reward + kl_bonus - kl_penalty

    `mode="exploration"` changes the sign of both, so that novelty is rewarded; `mode="monitor"`
    makes both 0 and passes the reward object through. Each step's info gains `base_reward`,
    `kl_penalty`, `kl_bonus` and `shaped_reward`.

    Every completed episode is appended to a file under `output_dir` as it ends; an existing
    recording of the environment is continued. A process that is killed loses at most the episode
    that was running. `save_all_trajectories` writes the recording as training data.

    Args:
        env: The environment; its reward must be a scalar.
        output_dir: Directory of the recording, created if missing.
        format_type: What `save_all_trajectories` writes: "chat", "completion" or "preference".
        kl_penalty_weight: Reward per nat above the threshold, usually 0.05 to 0.5; or a coefficient
            controller of the unit "nats/step", which is updated once per completed episode.
        kl_bonus_weight: Reward at a divergence of 0, usually 0.01 to 0.2.
        kl_threshold: Where the bonus ends and the penalty begins, in nats.
        mode: "fine_tuning", "exploration" or "monitor".
        gamma: Discount of the return-to-go that ranks the steps of a preference.
        min_margin: Smallest difference of returns-to-go that makes a preference.
        shape_on: "kl" for the KL above; "excess" puts the excess over the noise floor in its place
            (0 where that is negative), which does not change with window, bins and cells where
            behaviour does not. It needs distributions that share no pairs.
        obs_bins: As the arguments below, see `JointKLDivergenceWrapper`.
        action_bins: See there.
        history_size: See there.
        epsilon: See there.
        normalize_obs: See there.
        normalize_action: See there.
        window: See there.
        lag: See there.
        reference: See there.
        obs_range: See there.
        action_range: See there.
        obs_scale: See there.
        encoder: See there.
        min_window: See there.
        axis_histograms: See there.
        info_prefix: See there.
        info_on_reset: See there.
        drift_detector: See there.
        episode_statistics: See there.
        task_description: What the system prompt says of the task; None for the built-in text.
        observation_formatter: `observation -> str`, a callable or "module:function".
        action_formatter: `action -> str`, a callable or "module:function".
        action_parser: `str -> action`, a callable or "module:function"; reads what
            `action_formatter` writes.

    Raises:
        OSError: `output_dir` cannot be created or written to.
        TypeError: An argument, or a space, is of a kind that cannot be used.
        ValueError: An argument is out of its range.
    """

    def __init__(
        self,
        env: gym.Env[ObsType, ActType],
        output_dir: str | os.PathLike[str] = "training_data",
        format_type: FormatType = "chat",
        kl_penalty_weight: float | KLCoefficientController = 0.1,
        kl_bonus_weight: float = 0.05,
        kl_threshold: float = 0.5,
        mode: Mode = "fine_tuning",
        *,
        gamma: float = 0.99,
        min_margin: float = 0.0,
        shape_on: ShapeOn = "kl",
        obs_bins: Bins = 10,
        action_bins: Bins = 10,
        history_size: int = 1000,
        epsilon: float = 0.5,
        normalize_obs: bool = True,
        normalize_action: bool = True,
        window: int | None = 1000,
        lag: int | None = None,
        reference: Snapshot | str | os.PathLike[str] | None = None,
        obs_range: Range | None = None,
        action_range: Range | None = None,
        obs_scale: float = 1.0,
        encoder: EncoderArgument = "auto",
        min_window: int = 32,
        axis_histograms: bool | None = None,
        info_prefix: str = "",
        info_on_reset: bool = False,
        drift_detector: DriftDetector | Mapping[str, Any] | float | None = None,
        episode_statistics: bool = False,
        task_description: str | None = None,
        observation_formatter: Callable[[ObsType], str] | str | None = None,
        action_formatter: Callable[[ActType], str] | str | None = None,
        action_parser: Callable[[str], ActType] | str | None = None,
    ) -> None:
        shaping = RewardShaping(kl_penalty_weight, kl_bonus_weight, kl_threshold, mode, shape_on)
        # Before the base class records its own arguments: the first call counts.
        RecordConstructorArgs.__init__(
            self,
            # `plain` copies what can change; a hook may hold what cannot be copied.
            _disable_deepcopy=True,
            output_dir=plain(output_dir),
            format_type=format_type,
            # As it is now: a controller will change.
            kl_penalty_weight=copy.deepcopy(plain(kl_penalty_weight)),
            kl_bonus_weight=plain(kl_bonus_weight),
            kl_threshold=plain(kl_threshold),
            mode=mode,
            gamma=plain(gamma),
            min_margin=plain(min_margin),
            shape_on=shape_on,
            obs_bins=plain(obs_bins),
            action_bins=plain(action_bins),
            history_size=plain(history_size),
            epsilon=plain(epsilon),
            normalize_obs=plain(normalize_obs),
            normalize_action=plain(normalize_action),
            window=plain(window),
            lag=plain(lag),
            reference=plain(reference),
            obs_range=plain(obs_range),
            action_range=plain(action_range),
            obs_scale=plain(obs_scale),
            encoder=plain(encoder),
            min_window=plain(min_window),
            axis_histograms=plain(axis_histograms),
            info_prefix=info_prefix,
            info_on_reset=plain(info_on_reset),
            drift_detector=detector.recorded(drift_detector),
            episode_statistics=plain(episode_statistics),
            task_description=task_description,
            observation_formatter=observation_formatter,
            action_formatter=action_formatter,
            action_parser=action_parser,
        )
        super().__init__(
            env,
            obs_bins,
            action_bins,
            history_size,
            epsilon,
            normalize_obs,
            normalize_action,
            window=window,
            lag=lag,
            reference=reference,
            obs_range=obs_range,
            action_range=action_range,
            obs_scale=obs_scale,
            encoder=encoder,
            min_window=min_window,
            axis_histograms=axis_histograms,
            info_prefix=info_prefix,
            info_on_reset=info_on_reset,
            drift_detector=drift_detector,
            episode_statistics=episode_statistics,
        )
        check_floor(shape_on, window, lag, reference)
        self._set_export(format_type, gamma, min_margin)
        self._shaping = shaping
        env_id = type(env.unwrapped).__name__ if env.spec is None else env.spec.id
        self._text = EnvironmentText(
            env_id,
            env.observation_space,
            env.action_space,
            task_description=task_description,
            observation_formatter=observation_formatter,
            action_formatter=action_formatter,
            action_parser=action_parser,
            env=env,
        )
        # Last, because it touches the disk.
        prompt = self._text.system_prompt()
        self._recording = EpisodeRecording(output_dir, env_id)
        self._trajectory = Trajectory(self._recording, prompt)
        self._reward_keys = tuple(info_prefix + key for key in REWARD_KEYS)
        self._observation_text: str | Exception | None = None
        self._fingerprint = ""
        self._num_episodes = 0
        self._reward = Mean()
        self._shaped_reward = Mean()
        self._kl = Mean()

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Steps the environment, counts the pair, and shapes the reward.

        Returns:
            What the environment returned, with the shaped reward in place of its own and the keys
            above in a copy of info.

        Raises:
            OSError: The episode has ended and there is no space to record it. Nothing of the step
                is counted, and the recording is as it was. If the disk fails later than that, the
                step is counted and only the episode is lost.
            TypeError: As `JointKLDivergenceWrapper.step`, or the reward is not a scalar.
            ValueError: As `JointKLDivergenceWrapper.step`, or the reward is not finite before or
                after shaping. An episode with such a step is not recorded.
        """
        self._choose(action)
        if isinstance(self._observation_text, Exception):
            raise self._observation_text
        seen = self._observation_text
        # Both are taken now: the environment may change the array it is given.
        observation_key, action_key = self._tracker.waiting()
        action_text = self._text.action_text(action)
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except Exception:
            raise  # nothing has happened, and the observation waits for another action
        except BaseException:
            # Interrupted: who knows whether the environment has moved.
            self._tracker.forget()
            self._trajectory.abandon()
            raise
        try:
            try:
                base_reward = scalar_reward(reward)
                if (terminated or truncated) and self._trajectory.records and seen is not None:
                    texts = (seen, action_text, str(observation_key), str(action_key))
                    size = self._trajectory.row_size(texts, self._binning())
                    self._recording.reserve(size)
            # A reward is any object that turns into a float, and the disk may be full.
            except Exception:
                # What was waiting must not meet the next action.
                self._observe(observation)
                raise
            report = self._advance(observation)
            kl = report[0]
            ready = self._tracker.ready
            shaped_on = self._shaping.measured(kl, report[6])
            penalty, bonus = self._shaping.terms(shaped_on, ready)
            shaped_reward = _finite_sum(base_reward, bonus, penalty)

            self._reward.add(base_reward)
            self._shaped_reward.add(shaped_reward)
            if self._tracker.reported:
                self._kl.add(kl)
            if ready:
                self._trajectory.measure(shaped_on)
            if self._trajectory.records and seen is not None:
                self._trajectory.append(
                    (seen, action_text, str(observation_key), str(action_key)),
                    (base_reward, shaped_reward, penalty, bonus, kl, report[3], report[4]),
                )
            if terminated or truncated:
                self._end_episode(bool(terminated), bool(truncated))
        except BaseException:
            # The step has happened, so the episode would lack it.
            self._trajectory.abandon()
            raise

        info = self._with_report(info, report)
        keys = self._reward_keys
        info[keys[0]], info[keys[1]], info[keys[2]] = base_reward, penalty, bonus
        info[keys[3]] = shaped_reward
        if self._episode_statistics and (terminated or truncated):
            info[self._statistics_key] = self._statistics()
        if self._shaping.mode != "monitor":
            reward = shaped_reward
        self._report_alarm()
        return observation, reward, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Resets the environment; an episode that has not ended is not recorded.

        Returns:
            As `JointKLDivergenceWrapper.reset`; the keys of the reward are 0.0 where
            `info_on_reset` asks for them.
        """
        observation, info = super().reset(seed=seed, options=options)
        self._trajectory.begin()
        if self._info_on_reset:
            info.update(dict.fromkeys(self._reward_keys, 0.0))
        return observation, info

    def close(self) -> None:
        """Closes the environment and gives the recording's file free."""
        self._recording.close()
        super().close()

    def load_kl_state_dict(self, state: dict[str, Any]) -> None:
        """As `JointKLDivergenceWrapper.load_kl_state_dict`; the running episode is not recorded.

        Args:
            state: What `kl_state_dict` returned.
        """
        super().load_kl_state_dict(state)
        # The observation that waits now is that of the state.
        self._observation_text = None
        self._trajectory.abandon()

    def get_training_statistics(self) -> dict[str, Any]:
        """What this wrapper has seen since it was made.

        Returns:
            `num_steps`; `num_episodes`, those completed and recorded; `mean_reward` and
            `mean_shaped_reward` per step; `mean_kl`, over the steps that reported a divergence, in
            nats; `kl_penalty_weight`, the weight in use.
        """
        return {
            "num_steps": self._reward.count,
            "num_episodes": self._num_episodes,
            "mean_reward": self._reward.value,
            "mean_shaped_reward": self._shaped_reward.value,
            "mean_kl": self._kl.value,
            "kl_penalty_weight": self._shaping.current_penalty_weight,
        }

    def _observe(self, observation: ObsType) -> None:
        super()._observe(observation)
        self._write(observation)

    def _advance(self, observation: ObsType) -> Report:
        report = super()._advance(observation)
        self._write(observation)
        return report

    def _write(self, observation: ObsType) -> None:
        """Writes the observation while it is fresh: environments reuse their arrays."""
        try:
            self._observation_text = self._text.observation_text(observation)
        except Exception as error:  # a formatter of the user may raise anything
            # It waits for the step that acts on the observation, like the drift's own faults.
            self._observation_text = error

    def _binning(self) -> str:
        """Fingerprint of the axes."""
        if not self._fingerprint:
            self._fingerprint = binning_of(self.snapshot("current"))
        return self._fingerprint

    def _end_episode(self, terminated: bool, truncated: bool) -> None:
        """Records the episode, then lets a controller adapt to it."""
        # Axes that no observation has decided yet have no fingerprint.
        binning = self._binning() if self._trajectory.records else ""
        recorded, kl, length = self._trajectory.end(terminated, truncated, binning)
        self._num_episodes += recorded
        # Without a full window nothing was measured.
        if kl.count > 0:
            self._shaping.end_episode(kl.value, length)


def _finite_sum(base_reward: float, bonus: float, penalty: float) -> float:
    shaped_reward = base_reward + bonus - penalty
    if not math.isfinite(shaped_reward):
        raise ValueError(
            "kl_penalty_weight and kl_bonus_weight must give a finite shaped reward, got "
            f"{shaped_reward!r} of reward {base_reward!r}, bonus {bonus!r}, penalty {penalty!r}"
        )
    return shaped_reward
