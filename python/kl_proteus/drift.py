"""The drift of a policy's behaviour in one environment."""

import json
import warnings
from collections.abc import Mapping
from os import PathLike
from typing import Any, SupportsFloat, TypeVar

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from kl_proteus import detector, diagnostics, snapshots
from kl_proteus._core import PairTracker
from kl_proteus.detector import DriftDetector
from kl_proteus.snapshots import Snapshot
from kl_proteus.spaces import Bins, Range
from kl_proteus.tracking import (
    ALARM_KEY,
    INFO_KEYS,
    STATISTICS_KEY,
    TOP_MOVERS,
    Encoder,
    EncoderArgument,
    Report,
    check_prefix,
    flag,
    plain,
    tracking,
)

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")


class JointKLDivergenceWrapper(
    gym.Wrapper[ObsType, ActType, ObsType, ActType], RecordConstructorArgs
):
    """Reports, every step, how far the newest behaviour has moved from earlier behaviour.

    Behaviour is the distribution of pairs (observation the policy saw, action it answered with),
    binned. With P the newest `window` pairs and Q the `window` pairs before them, or a frozen
    reference, each step's info gains, in nats:

    * `kl_divergence`: KL(P || Q); 0.0 until there is enough evidence,
    * `kl_divergence_mean`, `kl_divergence_std`: over the last `history_size` reported values,
    * `kl_observation`: the part that comes from where the agent goes,
    * `kl_policy`: the part that comes from what it does there. The two add up to the first,
    * `kl_noise_floor`: what the divergence would be on average if nothing had changed and the pairs
      were independent,
    * `kl_excess`: the divergence minus the floor; may be negative;

    and with `drift_detector=` also `kl_alarm`: 1.0 where this pair raised an alarm, else 0.0.

    Everything else passes through: observations, rewards and flags are the very objects of the
    environment. `reset` does not clear the windows, because drift is between episodes as much as
    within them; `reset_kl` does.

    Args:
        env: Any environment. Text, Sequence, Graph, OneOf and custom spaces have no order, so each
            content is a cell of its own.
        obs_bins: In-range bins of the observation, a number or one per axis in walk order.
        action_bins: The same for the action.
        history_size: Number of reported values behind mean, deviation, minimum and maximum.
        epsilon: Pseudocount of each occupied cell, above 0 and at most 1e6.
        normalize_obs: False says that the observations already lie in [0, 1].
        normalize_action: The same for the actions.
        window: Pairs in each window; None compares every pair so far with all but the newest.
        lag: The previous window ends this many pairs earlier; None puts it next to the current one.
        reference: A snapshot, or the path of one, as the frozen previous distribution.
        obs_range: (low, high) in place of the declared bounds, each side a number or one per axis;
            None or an infinity is no bound.
        action_range: The same for the action.
        obs_scale: Scale `s` of the maps of unbounded axes, in units of the observation.
        encoder: "auto" gives an axis to each scalar of small spaces, and picks an encoder for the
            arrays of others (see `kl_proteus.encoders.choose`; `kl_encoder` tells which). None
            never encodes. One of `kl_proteus.encoders`, or the text of its `repr`, encodes every
            array that it takes. A function, or `"module:function"`, turns an observation into a 1-D
            array: integers are cell digits, floats are unbounded axes.
        min_window: Fewer pairs than this in a window report 0.0.
        axis_histograms: Keep the histogram of each axis for `kl_axes`; None does so for up to 64
            axes. A pair of the windows takes one or two bytes an axis.
        info_prefix: Precedes every key that this wrapper adds to info.
        info_on_reset: Add the keys to the info of `reset` as well.
        drift_detector: A `DriftDetector` that counts the same pairs; or its arguments as a dict, or
            a number for its `false_alarm_every`, so that a saved specification can hold it.
        episode_statistics: Add what `get_kl_statistics` returns to the info of the step that ends
            an episode, under the key `kl`.

    Raises:
        TypeError: An argument, or a space, is of a kind that cannot be used.
        ValueError: An argument is out of its range, the reference has other axes, or another
            wrapper of the environment already reports under this `info_prefix`.
    """

    def __init__(
        self,
        env: gym.Env[ObsType, ActType],
        obs_bins: Bins = 10,
        action_bins: Bins = 10,
        history_size: int = 1000,
        epsilon: float = 0.5,
        normalize_obs: bool = True,
        normalize_action: bool = True,
        *,
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
        episode_statistics: bool = False,
    ) -> None:
        RecordConstructorArgs.__init__(
            self,
            # `plain` copies what can change; an encoder may hold what cannot be copied.
            _disable_deepcopy=True,
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
        )
        if isinstance(env, gym.vector.VectorEnv):
            # Some are both; their batches are no single observation.
            raise TypeError(
                "env is a vector environment; use VectorJointKLDivergenceWrapper for it"
            )
        gym.Wrapper.__init__(self, env)
        check_prefix(info_prefix)
        self.refuse_twin(env, info_prefix)
        self._info_keys = tuple(info_prefix + key for key in INFO_KEYS)
        self._info_prefix = info_prefix
        self._info_on_reset = flag(info_on_reset, "info_on_reset")
        self._statistics_key = info_prefix + STATISTICS_KEY
        self._episode_statistics = flag(episode_statistics, "episode_statistics")
        settings = tracking(
            env.observation_space,
            env.action_space,
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
        self._encoder = settings.encoder
        self._encoder_error: Exception | None = None
        self._tracker = PairTracker(settings.observation, settings.action, **settings.keywords)
        self._window: int | None = settings.keywords["window"]
        # Every pair against all but the newest says nothing of change in any case.
        self._diagnosed = self._window is None and settings.keywords["reference"] is None
        self._alarm_key = info_prefix + ALARM_KEY
        self._drift_detector = detector.make_detector(drift_detector)
        if self._drift_detector is not None:
            self._drift_detector.attach_to(self._tracker)

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Steps the environment and counts the pair (last observation, action).

        Returns:
            What the environment returned, with the keys above in a copy of info.

        Raises:
            TypeError: The last observation or the action is not made of real numbers.
            ValueError: One of them has a NaN, a wrong shape, or a value that a space of categories
                does not hold. The environment is not stepped then, and nothing is counted.
        """
        # Without an encoder there is no call of our own around those of the tracker: it would cost
        # as much as the counting.
        tracker, encodes = self._tracker, self._encoder is not None
        if encodes:
            self._choose(action)
        else:
            tracker.choose(action)
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except Exception:
            raise  # nothing has happened, and the observation waits for another action
        except BaseException:
            # Interrupted: who knows whether the environment has moved.
            tracker.forget()
            raise
        report = self._advance(observation) if encodes else tracker.advance(observation)
        info = dict(info)
        # Written out: a loop would cost as much as the counting.
        joint, mean, std, where, what, floor, excess = self._info_keys
        info[joint], info[mean], info[std], info[where], info[what], info[floor], info[excess] = (
            report
        )
        if self._episode_statistics and (terminated or truncated):
            info[self._statistics_key] = self._statistics()
        if self._drift_detector is not None:
            info[self._alarm_key] = float(tracker.alarmed)
            self._report_alarm()
        return observation, reward, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Resets the environment; windows and history go on.

        Returns:
            What the environment returned, with the keys above in a copy of info where
            `info_on_reset` asks for it.
        """
        if not self._diagnosed:
            self._diagnose()
        observation, info = self.env.reset(seed=seed, options=options)
        self._observe(observation)
        self._tracker.begin_episode()
        if self._info_on_reset:
            info = self._with_report(info, self._tracker.report())
            if self._drift_detector is not None:
                info[self._alarm_key] = 0.0  # no pair, no alarm
        return observation, info

    @property
    def kl_encoder(self) -> str | None:
        """How observations are encoded, as snapshots record it; None where each scalar has an axis.

        Built-in encoders are listed with their arrays and a hash of shape and bounds.
        """
        return self._tracker.encoder

    @property
    def kl_history(self) -> list[float]:
        """The reported divergences in nats, newest last, at most `history_size` of them."""
        return self._tracker.history()

    def get_kl_statistics(self) -> dict[str, Any]:
        """What is known of the drift.

        Returns:
            `current, mean, std, min, max` of the joint divergence and `observation_mean,
            policy_mean` of its parts, in nats, over the `count` values of the history; `cells`
            occupied in either distribution; `steps`, the pairs counted; `flow`, the share of P's
            pairs that lie outside the range of an axis; `ready`, whether the windows are full.
            `top_movers` holds the first three of `kl_axes()`. With a drift detector,
            `drift_detector` holds its `statistics()`.

            Of how far the newest value can be believed: `kl_noise_floor` and `kl_excess` as in
            info; `floor_available`, False where the distributions share pairs (`window=None`
            without a reference, `lag < window`) or nothing is reported yet, and the floor is 0.0;
            `kl_expected`, the geometric mean of 20 earlier values one window apart, and
            `kl_pvalue`, the probability of a larger one than the newest by the Student-t prediction
            interval of their logarithms (0.0 and 1.0 until there are 20); `kl_policy_floor`,
            `kl_policy_excess`, `kl_policy_z` and `kl_policy_pvalue`, the same of the policy part if
            the actions taken in each observation cell are independent: mean, excess over it, excess
            in standard deviations, tail of a Gamma distribution; `coverage`, the probability that a
            further pair falls in an occupied cell (Good 1953); `support`, the share of P's pairs
            whose observation cell holds at least five pairs of Q; `kl_detectable`, the `kl_policy`
            in nats that would be found with probability 0.8 at the level of 1 % (0.0 without a
            floor); `episodes_in_window`, episodes with a pair in the windows. Their cost grows
            with the number of occupied cells.
        """
        if not self._diagnosed:
            self._diagnose()
        return self._statistics()

    def kl_diagnostics(self) -> list[dict[str, str]]:
        """What there is to say against the newest value, warnings first.

        The first of them are also given once as a `UserWarning`, at the first `reset` or
        `get_kl_statistics` after the windows are full with at least 100 pairs each.

        Returns:
            A dict for each finding: `code` (`low_support`, `low_coverage`, `flow`, `one_bin`,
            `few_episodes`, `many_cells` or `odd_bins`), `severity` ("warning" or "note"), `message`
            and `remedy`.
        """
        return [finding._asdict() for finding in self._findings(self._tracker.statistics())]

    @property
    def drift_detector(self) -> DriftDetector | None:
        """The detector that counts the same pairs, if there is one."""
        return self._drift_detector

    def kl_axes(self) -> list[dict[str, Any]]:
        """Which axis has moved: every scalar of observation and action on its own.

        Each axis has a histogram of its own in P and in Q: 20 bins over the range of a float or of
        many integers, else a bin a value (up to 64). An axis alone shows less than the pairs do,
        but with fewer bins to fill it shows small changes, and it has a name.

        `excess` ranks the axes. Once ten windows have passed before P, it compares the logarithm of
        `kl` with those of successive windows of this run (at most 20 of them), so axes that always
        move slowly do not stand out. Before that it takes pairs as independent; successive steps
        are alike, so slow axes then stand out without any change. It is a rank, not an alarm: of
        many axes the largest excess of an unchanged run is often 2 to 3.

        Returns:
            A dict an axis, the largest `excess` first: `axis`, its name; `kl`, KL(P || Q) of its
            histograms, and `expected`, what it would be about without a change, in nats; `excess`,
            in standard deviations; `past`, the earlier windows behind `expected` (0: independent
            pairs); `shift`, how far the mean has moved, in units of the axis (None for categories);
            `grown`, the bin that has grown most, with `low` and `high` (None without a bound) and
            its shares `before` and `now` (None if none has); `flow`, the share of P's pairs outside
            the range; `fullest`, the share of the fullest bin in P. Empty until a value is
            reported, with `window=None` and no reference, with a reference that has no histograms,
            and where none are kept.
        """
        return self._tracker.axis_moves()

    def reset_kl(self) -> None:
        """Forgets windows and history; keeps the reference.

        A drift detector goes on: it watches the run, and its own `rebase` starts it anew.
        """
        self._tracker.reset()

    def snapshot(self, which: str = "current") -> Snapshot:
        """A distribution on its own, to be saved as JSON, merged, or given as `reference=`.

        Args:
            which: "current" for P, "previous" for Q.

        Returns:
            A plain dict with the axes, the encoder's name, and the count of each observation key
            and action key.

        Raises:
            ValueError: `which` is neither.
        """
        return json.loads(self._tracker.snapshot_json(which))

    def kl_state_dict(self) -> dict[str, Any]:
        """The full state as a JSON-able dict; `load_kl_state_dict` continues it bit for bit."""
        return json.loads(self._tracker.state_json())

    def load_kl_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the state of a wrapper with the same arguments.

        Args:
            state: What `kl_state_dict` returned.

        Raises:
            TypeError: It is no dict of JSON values.
            ValueError: It belongs to other arguments, or no run can have it. Nothing is changed
                then.
        """
        self._tracker.load_state_json(snapshots.to_text(state, "state"))
        self._encoder_error = None

    @staticmethod
    def refuse_twin(env: gym.Env[Any, Any], prefix: str) -> None:
        """Refuses a wrapper of an environment that writes keys of this prefix."""
        inner = env
        while isinstance(inner, gym.Wrapper):
            if isinstance(inner, JointKLDivergenceWrapper) and inner._info_prefix == prefix:
                raise ValueError(
                    f"the environment is wrapped by a {type(inner).__name__} with "
                    f"info_prefix={prefix!r} already; give this one another prefix"
                )
            inner = inner.env

    def _statistics(self) -> dict[str, Any]:
        """What `get_kl_statistics` returns, without a warning: a step has happened already."""
        statistics = self._tracker.statistics()
        statistics["top_movers"] = self._tracker.axis_moves(TOP_MOVERS)
        if self._drift_detector is not None:
            statistics["drift_detector"] = self._drift_detector.statistics()
        return statistics

    def _findings(self, statistics: dict[str, Any]) -> list[diagnostics.Finding]:
        described = self.snapshot()
        uses = diagnostics.axis_uses(
            described["observation_axes"] + described["action_axes"], self._tracker.axis_shares()
        )
        return diagnostics.findings(statistics, uses, self._pairs(statistics))

    def _pairs(self, statistics: dict[str, Any]) -> int:
        """Pairs of the newest distribution."""
        steps = statistics["steps"]
        return steps if self._window is None else min(steps, self._window)

    def _diagnose(self) -> None:
        """Warns once, when there is enough to go by, of what the drift may be blind to."""
        if not self._tracker.ready:
            return
        statistics = self._tracker.statistics()
        if not diagnostics.is_worth_a_look(statistics, self._pairs(statistics)):
            # Windows that are full do not grow.
            self._diagnosed = self._window is not None
            return
        self._diagnosed = True
        text = diagnostics.warning_text(self._findings(statistics))
        if text is not None:
            # Before anything is done, so that nothing is lost where warnings are errors.
            warnings.warn(text, UserWarning, stacklevel=3)

    def _choose(self, action: ActType) -> None:
        """Checks the pair before the environment is stepped."""
        if self._encoder_error is not None:
            raise self._encoder_error
        self._tracker.choose(action)

    def _observe(self, observation: ObsType) -> None:
        """Takes the observation that the next action answers."""
        if self._encoder is None:
            self._tracker.observe(observation)
        else:
            self._encode(self._encoder, observation)

    def _advance(self, observation: ObsType) -> Report:
        """Counts the pair that the environment has accepted, and takes the next observation."""
        if self._encoder is None:
            return self._tracker.advance(observation)
        report = self._tracker.count()
        self._encode(self._encoder, observation)
        return report

    def _encode(self, encoder: Encoder, observation: ObsType) -> None:
        # An encoder that fails on the last observation of an episode does no harm, so its error
        # waits for the step that needs the result, like every other fault of an observation.
        self._encoder_error = None
        try:
            encoded = encoder(observation)
        except Exception as error:  # whatever a user's function raises
            self._tracker.forget()
            self._encoder_error = error
            return
        if self._tracker.observation is None:
            self._tracker.define_observation(encoder.axes(encoded))
        self._tracker.observe(encoded)

    def _with_report(self, info: dict[str, Any], report: Report) -> dict[str, Any]:
        # A copy, because environments and outer wrappers keep the dict they returned or received.
        info = dict(info)
        info.update(zip(self._info_keys, report, strict=True))
        if self._drift_detector is not None:
            info[self._alarm_key] = float(self._tracker.alarmed)
        return info

    def _report_alarm(self) -> None:
        """Tells the user's callback of an alarm that the newest pair has raised."""
        if self._drift_detector is not None and self._tracker.alarmed:
            self._drift_detector.report_alarm()
