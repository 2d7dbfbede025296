"""Reward shaping by drift, and trajectories, in many environments at once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from kl_proteus.autoreset import checked_mask
from kl_proteus.controllers import KLCoefficientController
from kl_proteus.detector import DriftDetector
from kl_proteus.llm.export import FormatType
from kl_proteus.llm.recording.recorder import EpisodeRecording
from kl_proteus.llm.recording.trajectory import Mean, Trajectory
from kl_proteus.llm.shaping import (
    Mode,
    RewardShaping,
    ShapeOn,
    check_floor,
    finite_sums,
    rewards_of_rows,
)
from kl_proteus.llm.text.environment_text import EnvironmentText
from kl_proteus.llm.training_data import TrainingData, binning_of
from kl_proteus.llm.wrapper import REWARD_KEYS
from kl_proteus.snapshots import Snapshot
from kl_proteus.spaces import Bins, Range
from kl_proteus.tracking import INFO_KEYS
from kl_proteus.vector_drift import VectorJointKLDivergenceWrapper

__all__ = ["VectorLLMTrainingWrapper"]

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")
ArrayType = TypeVar("ArrayType")

_MOST_FILES = 256
_EXCESS = INFO_KEYS.index("kl_excess")
_RECORDED = [INFO_KEYS.index(key) for key in ("kl_divergence", "kl_observation", "kl_policy")]


class VectorLLMTrainingWrapper(
    TrainingData[Any, Any], VectorJointKLDivergenceWrapper[ObsType, ActType, ArrayType]
):
    """`LLMTrainingWrapper` for the sub-environments of a vector environment.

    Rewards are shaped row by row, and each sub-environment has a running episode of its own, which
    is appended to its own file under `output_dir` when it ends: the recording is that of as many
    single wrappers. The system prompt describes the first of them. A row that resets and ignores
    its action (`NEXT_STEP`) makes no step of an episode. From 257 sub-environments on, every 256th
    shares a file.

    In every step `infos` gains `base_reward`, `kl_penalty`, `kl_bonus` and `shaped_reward` beside
    the keys of `VectorJointKLDivergenceWrapper`, in arrays and masks of the same kind; the terms of
    a step that ended a row under `SAME_STEP` are in `infos["final_info"]`, and its shaped reward is
    in the rewards as ever.

    Args:
        env: A vector environment with one scalar reward a row.
        output_dir: As the arguments below, see `LLMTrainingWrapper`.
        format_type: See there.
        kl_penalty_weight: See there. A controller serves all rows: the rows of a step are shaped
            with the weight before it, and the episodes that end in it update the controller in the
            order of their index.
        kl_bonus_weight: See there.
        kl_threshold: See there.
        mode: See there.
        gamma: See there.
        min_margin: See there.
        shape_on: See there.
        pooled: As the arguments below, see `VectorJointKLDivergenceWrapper`.
        obs_bins: See there.
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
        env_id: What the environment is recorded as; None for the id of the sub-environments, or the
            name of their class.
        task_description: As the arguments below, see `LLMTrainingWrapper`.
        observation_formatter: See there; it is called for one observation at a time.
        action_formatter: See there.
        action_parser: See there.

    Raises:
        OSError: `output_dir` cannot be created or written to.
        TypeError: An argument, or a space, is of a kind that cannot be used.
        ValueError: An argument is out of its range.
    """

    def __init__(
        self,
        env: VectorEnv[ObsType, ActType, ArrayType],
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
        pooled: bool = False,
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
        encoder: Callable[[Any], Any] | str | None = None,
        min_window: int = 32,
        axis_histograms: bool | None = None,
        info_prefix: str = "",
        info_on_reset: bool = False,
        drift_detector: DriftDetector | Mapping[str, Any] | float | None = None,
        env_id: str | None = None,
        task_description: str | None = None,
        observation_formatter: Callable[[Any], str] | str | None = None,
        action_formatter: Callable[[Any], str] | str | None = None,
        action_parser: Callable[[str], Any] | str | None = None,
    ) -> None:
        shaping = RewardShaping(kl_penalty_weight, kl_bonus_weight, kl_threshold, mode, shape_on)
        super().__init__(
            env,
            obs_bins,
            action_bins,
            history_size,
            epsilon,
            normalize_obs,
            normalize_action,
            pooled=pooled,
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
        )
        check_floor(shape_on, window, lag, reference)
        self._set_export(format_type, gamma, min_margin)
        self._shaping = shaping
        with _sample_of(env) as sample:
            if env_id is None:
                env_id = _env_id(env, sample)
            self._text = EnvironmentText(
                env_id,
                cast("gym.Space[Any]", env.single_observation_space),
                cast("gym.Space[Any]", env.single_action_space),
                task_description=task_description,
                observation_formatter=observation_formatter,
                action_formatter=action_formatter,
                action_parser=action_parser,
                env=sample,
            )
        prompt = self._text.system_prompt()
        # Last, because it touches the disk.
        self._recordings = [
            EpisodeRecording(output_dir, env_id) for _ in range(min(env.num_envs, _MOST_FILES))
        ]
        self._recording = self._recordings[0]
        self._trajectories = [
            Trajectory(self._recordings[row % _MOST_FILES], prompt) for row in range(env.num_envs)
        ]
        self._reward_keys = tuple(info_prefix + key for key in REWARD_KEYS)
        self._texts: list[str | Exception | None] = [None] * env.num_envs
        self._fingerprint = ""
        self._num_episodes = 0
        self._reward = Mean()
        self._shaped_reward = Mean()
        self._kl = Mean()

    def step(
        self, actions: ActType
    ) -> tuple[ObsType, ArrayType, ArrayType, ArrayType, dict[str, Any]]:
        """Steps the environments, counts the pairs, and shapes the rewards.

        Returns:
            What the environment returned, with the shaped rewards in place of its own and the keys
            above in a copy of infos.

        Raises:
            OSError: An episode has ended and there is no space to record it. Nothing of the step is
                counted in any row, and the recording is as it was. If the disk fails later than
                that, the step is counted and only that episode is lost.
            TypeError: As `VectorJointKLDivergenceWrapper.step`, or the rewards are not one number a
                row.
            ValueError: As `VectorJointKLDivergenceWrapper.step`, or a reward is not finite before
                or after shaping. The running episodes, which lack the step, are not recorded.
        """
        self._choose(actions)
        acts = ~self._tracker.ended()
        seen = self._seen(acts)
        # All are taken now: the environment may change the arrays it is given.
        texts = self._step_texts(seen, acts, actions)
        try:
            observations, rewards, terminations, truncations, infos = self.env.step(actions)
        except Exception:
            raise  # the last observations that were seen wait for other actions
        except BaseException:
            # Interrupted: who knows which environments have moved.
            self._forget()
            self._abandon()
            raise
        terminated, truncated = np.asarray(terminations, bool), np.asarray(truncations, bool)
        done = terminated | truncated
        try:
            try:
                base = rewards_of_rows(rewards, acts)
                self._reserve(texts, done)
            # The rewards may be anything, and the disk may be full.
            except Exception:
                # What was waiting must not meet the next actions.
                self._observe(observations, None, done)
                raise
            columns, masks = self._advance(observations, done)
            kl = columns[0]
            ready, reported = self._tracker.evidence()
            shaped_on = self._shaping.measured_of_rows(kl, columns[_EXCESS])
            penalty, bonus = self._shaping.terms_of_rows(shaped_on, ready & acts)
            shaped = finite_sums(base, bonus, penalty)
            self._reward.add_all(base[acts])
            self._shaped_reward.add_all(shaped[acts])
            self._kl.add_all(kl[acts & reported])
            numbers = [base, shaped, penalty, bonus, *(columns[i] for i in _RECORDED)]
            self._record(texts, numbers, shaped_on, ready & acts)
            self._write_texts(observations, None)
        except BaseException:
            # The step has happened, so the episodes would lack it.
            self._abandon()
            raise
        for row in np.flatnonzero(~acts).tolist():
            self._trajectories[row].begin()  # it has reset
        self._end(acts & done, terminated, truncated)

        infos = self._with_reports(infos, columns, masks, done)
        self._with_terms(infos, (base, penalty, bonus, shaped), acts, done)
        self._report_alarms(columns)
        if self._shaping.mode != "monitor":
            return observations, shaped, terminations, truncations, infos  # pyright: ignore[reportReturnType]
        return observations, rewards, terminations, truncations, infos

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Resets all environments, or those of `options["reset_mask"]`.

        Their episodes that have not ended are not recorded.

        Args:
            seed: As `VectorJointKLDivergenceWrapper.reset`.
            options: See there.

        Returns:
            See there; the keys of the reward are 0.0 where `info_on_reset` asks for them.
        """
        mask = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            mask = checked_mask(options["reset_mask"], self.num_envs)
        observations, infos = super().reset(seed=seed, options=options)
        for row in np.flatnonzero(mask):
            self._trajectories[row].begin()
        if self._info_on_reset:
            zeros = [np.zeros(self.num_envs)] * len(self._reward_keys)
            self._write(infos, self._reward_keys, zeros, mask)
        return observations, infos

    def close(self, **kwargs: Any) -> None:
        """Closes the environments and gives the recording's files free."""
        for recording in self._recordings:
            recording.close()
        super().close(**kwargs)

    def load_kl_state_dict(self, state: dict[str, Any]) -> None:
        """As `VectorJointKLDivergenceWrapper`'s; the running episodes are not recorded.

        Args:
            state: What `kl_state_dict` returned.
        """
        super().load_kl_state_dict(state)
        # The observations that wait now are those of the state.
        self._texts = [None] * self.num_envs
        self._abandon()

    def get_training_statistics(self) -> dict[str, Any]:
        """What this wrapper has seen in all rows since it was made.

        Returns:
            As `LLMTrainingWrapper.get_training_statistics`; a step is that of one row.
        """
        return {
            "num_steps": self._reward.count,
            "num_episodes": self._num_episodes,
            "mean_reward": self._reward.value,
            "mean_shaped_reward": self._shaped_reward.value,
            "mean_kl": self._kl.value,
            "kl_penalty_weight": self._shaping.current_penalty_weight,
        }

    def _seen(self, acts: NDArray[np.bool_]) -> list[str | None]:
        """The texts that the actions answer; an error of a formatter is raised now."""
        seen: list[str | None] = []
        for acting, text in zip(acts.tolist(), self._texts, strict=True):
            if acting and isinstance(text, Exception):
                raise text
            seen.append(text if acting and isinstance(text, str) else None)
        return seen

    def _step_texts(
        self, seen: list[str | None], acts: NDArray[np.bool_], actions: ActType
    ) -> list[tuple[str, str, str, str] | None]:
        """Texts and keys of the step of each row that acts on an observation it has seen."""
        texts: list[tuple[str, str, str, str] | None] = []
        rows = iterate(self.env.action_space, actions)
        waiting = self._tracker.waiting()
        for acting, text, action, keys in zip(acts.tolist(), seen, rows, waiting, strict=True):
            answer = self._text.action_text(action) if acting else ""
            if text is None:
                texts.append(None)
            else:
                texts.append((text, answer, str(keys[0]), str(keys[1])))
        return texts

    def _write_texts(self, observations: ObsType, mask: NDArray[np.bool_] | None) -> None:
        """Writes the observations while they are fresh: environments reuse their arrays."""
        ended = self._tracker.ended()
        among = ~ended if mask is None else mask
        if mask is None:
            self._texts = [None] * self.num_envs
        try:
            rows: list[Any] = list(iterate(self.env.observation_space, observations))
        except Exception as error:  # it waits, like the drift's own faults
            self._texts = [error] * self.num_envs
            return
        for row in np.flatnonzero(among).tolist():
            try:
                self._texts[row] = self._text.observation_text(rows[row])
            except Exception as error:  # a formatter of the user may raise anything
                self._texts[row] = error

    def _observe(
        self,
        observations: ObsType,
        mask: NDArray[np.bool_] | None,
        done: NDArray[np.bool_] | None = None,
    ) -> None:
        super()._observe(observations, mask, done)
        self._write_texts(observations, mask)

    def _reserve(
        self, texts: list[tuple[str, str, str, str] | None], done: NDArray[np.bool_]
    ) -> None:
        """Makes room for the episodes before anything of their last step is counted."""
        sizes: dict[int, int] = {}
        for row in np.flatnonzero(done).tolist():
            text, trajectory = texts[row], self._trajectories[row]
            if text is not None and trajectory.records:
                size = trajectory.row_size(text, self._binning())
                file = row % _MOST_FILES
                sizes[file] = sizes.get(file, 0) + size
        for file, size in sizes.items():
            self._recordings[file].reserve(size)

    def _record(
        self,
        texts: list[tuple[str, str, str, str] | None],
        numbers: list[NDArray[np.float64]],
        shaped_on: NDArray[np.float64],
        measured: NDArray[np.bool_],
    ) -> None:
        """Adds the step to the running episodes."""
        steps = zip(*(column.tolist() for column in numbers), strict=True)
        kl = shaped_on.tolist()
        for row, (text, step, full) in enumerate(zip(texts, steps, measured.tolist(), strict=True)):
            trajectory = self._trajectories[row]
            if full:
                trajectory.measure(kl[row])
            if text is not None and trajectory.records:
                trajectory.append(text, step)

    def _end(
        self,
        ends: NDArray[np.bool_],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
    ) -> None:
        """Records the episodes that have ended, then lets a controller adapt to each."""
        failure: Exception | None = None
        for row in np.flatnonzero(ends).tolist():
            trajectory = self._trajectories[row]
            binning = self._binning() if trajectory.records else ""
            try:
                recorded, kl, length = trajectory.end(
                    bool(terminated[row]), bool(truncated[row]), binning
                )
                self._num_episodes += recorded
                # Without a full window nothing was measured.
                if kl.count > 0:
                    self._shaping.end_episode(kl.value, length)
            except Exception as error:  # the other rows have ended all the same
                failure = failure or error
            if self._resets_same_step:
                trajectory.begin()
        if failure is not None:
            raise failure

    def _with_terms(
        self,
        infos: dict[str, Any],
        columns: Sequence[NDArray[np.float64]],
        acts: NDArray[np.bool_],
        done: NDArray[np.bool_],
    ) -> None:
        """Writes the terms of the rewards, which rows that reset do not have."""
        masks = acts
        if self._resets_same_step and done.any():
            # The copy that the drift's reports are in already.
            self._write(infos["final_info"], self._reward_keys, columns, done)
            masks = ~done
        columns = [np.where(masks, column, 0.0) for column in columns]
        if self._info_on_reset:
            masks = np.ones(self.num_envs, np.bool_)
        self._write(infos, self._reward_keys, columns, masks)

    def _abandon(self) -> None:
        for trajectory in self._trajectories:
            trajectory.abandon()

    def _binning(self) -> str:
        """Fingerprint of the axes."""
        if not self._fingerprint:
            # The counts of one row are enough, and are dropped.
            self._fingerprint = binning_of(self.snapshot("current", None if self._pooled else 0))
        return self._fingerprint


@contextlib.contextmanager
def _sample_of(env: VectorEnv[Any, Any, Any]) -> Generator[gym.Env[Any, Any] | None]:
    """A sub-environment to read descriptions from, if one is at hand or can be made."""
    base: Any = env.unwrapped
    envs = getattr(base, "envs", None)
    if envs:
        yield envs[0]
        return
    makes = getattr(base, "env_fns", None)
    if not makes:
        yield None
        return
    # Those of other processes are out of reach; they make one to learn their spaces, too.
    sample = makes[0]()
    try:
        yield sample
    finally:
        sample.close()


def _env_id(env: VectorEnv[Any, Any, Any], sample: gym.Env[Any, Any] | None) -> str:
    """What a single environment would be recorded as."""
    described: Any = env if sample is None else sample
    spec = described.spec
    return type(described.unwrapped).__name__ if spec is None else spec.id
