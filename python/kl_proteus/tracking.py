"""What the wrappers of one environment and of many have in common: arguments, axes, encoders."""

import math
from collections.abc import Callable
from os import PathLike, fspath
from typing import Any, TypeAlias, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from kl_proteus import encoders, hooks, snapshots
from kl_proteus._core import Layout
from kl_proteus.encoders import ArrayEncoder
from kl_proteus.snapshots import Snapshot
from kl_proteus.spaces import Bins, Range, axis_bins, encoded_layout, layout_from_space

__all__ = [
    "ALARM_KEY",
    "INFO_KEYS",
    "STATISTICS_KEY",
    "TOP_MOVERS",
    "Encoder",
    "EncoderArgument",
    "Report",
    "Tracking",
    "check_prefix",
    "flag",
    "plain",
    "tracking",
]

EncoderArgument: TypeAlias = Callable[[Any], Any] | ArrayEncoder | str | None
"""What `encoder=` takes."""

INFO_KEYS = (
    "kl_divergence",
    "kl_divergence_mean",
    "kl_divergence_std",
    "kl_observation",
    "kl_policy",
    "kl_noise_floor",
    "kl_excess",
)
"""What each step's info gains, in the order in which a tracker returns it."""

Report = tuple[float, float, float, float, float, float, float]
"""The values of `INFO_KEYS`, in nats."""

ALARM_KEY = "kl_alarm"
"""What each step's info gains besides where a drift detector is attached."""

STATISTICS_KEY = "kl"
"""What the info of an episode's last step gains where `episode_statistics` asks for it."""

TOP_MOVERS = 3
"""Axes in the statistics and on the command line."""


def plain(value: Any) -> Any:
    """A copy of a constructor argument as JSON can hold it, so that a spec can be saved."""
    if isinstance(value, np.ndarray | np.generic):
        return cast("Any", value).tolist()
    if isinstance(value, tuple | list | range):
        return [plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, PathLike):
        return fspath(cast("PathLike[str]", value))
    if isinstance(value, ArrayEncoder) and not isinstance(value, type):
        return repr(value)
    return value


class Encoder:
    """A user's encoder of observations, and the axes of what it returns.

    Args:
        source: A function, or `"module:function"`.
        bins: In-range bins of the floats that it returns, a number or one per axis.
        scale: Scale of the maps of those floats.
    """

    def __init__(self, source: Callable[[Any], Any] | str, bins: Bins, scale: float) -> None:
        self._function = hooks.Hook("encoder", source)
        self._bins = plain(bins)
        self._scale = scale

    def __call__(self, observation: Any) -> NDArray[Any]:
        """Encodes an observation.

        Returns:
            A 1-D array: integers are cell digits, floats are unbounded axes.

        Raises:
            Exception: Whatever the user's function raises.
            ValueError: It returned something else.
        """
        encoded = np.asarray(self._function(observation))
        if encoded.ndim != 1 or encoded.dtype.kind not in "fiub":
            raise ValueError(
                "encoder must return a 1-D array of real numbers, "
                f"got shape {encoded.shape} of dtype {encoded.dtype}"
            )
        return encoded

    def axes(self, encoded: NDArray[Any]) -> Layout:
        """The axes that the first result decides.

        Raises:
            ValueError: There are other bins than it has entries.
        """
        return Layout.encoded(
            axis_bins(self._bins, len(encoded), "obs_bins"),
            digits=encoded.dtype.kind != "f",
            scale=self._scale,
        )


class Tracking:
    """What the arguments of a wrapper mean, checked.

    Attributes:
        observation: Axes of the observation; None where an encoder's first result decides them.
        action: Axes of the action.
        encoder: The encoder of the user, if there is one.
        keywords: The other arguments of a tracker.
    """

    def __init__(
        self,
        observation: Layout | None,
        action: Layout,
        encoder: Encoder | None,
        keywords: dict[str, Any],
    ) -> None:
        self.observation = observation
        self.action = action
        self.encoder = encoder
        self.keywords = keywords


def tracking(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    *,
    obs_bins: Bins,
    action_bins: Bins,
    history_size: int,
    epsilon: float,
    normalize_obs: bool,
    normalize_action: bool,
    window: int | None,
    lag: int | None,
    reference: Snapshot | str | PathLike[str] | None,
    obs_range: Range | None,
    action_range: Range | None,
    obs_scale: float,
    encoder: EncoderArgument,
    min_window: int,
    axis_histograms: bool | None,
) -> Tracking:
    """Checks the arguments that both wrappers have; `JointKLDivergenceWrapper` explains them.

    Raises:
        TypeError: An argument, or a space, is of a kind that cannot be used.
        ValueError: An argument is out of its range.
    """
    function, built_in = _encoder(encoder)
    named_encoder = None if function is None else hooks.name_of(function)
    obs_scale = _positive(obs_scale, "obs_scale")
    own_encoder = None if function is None else Encoder(function, obs_bins, obs_scale)
    normalize_obs = flag(normalize_obs, "normalize_obs")
    normalize_action = flag(normalize_action, "normalize_action")
    observation: Layout | None = None
    if encoder is None:
        observation = layout_from_space(
            observation_space,
            "observation",
            bins=obs_bins,
            value_range=obs_range,
            scale=obs_scale,
            normalized=not normalize_obs,
            option="obs",
        )
    elif function is None:
        observation, named_encoder = encoded_layout(
            observation_space,
            built_in,
            bins=obs_bins,
            value_range=obs_range,
            scale=obs_scale,
            normalized=not normalize_obs,
        )
    else:
        # Its first result decides the axes.
        axis_bins(obs_bins, None, "obs_bins")
        if obs_range is not None or not normalize_obs:
            raise ValueError(
                "obs_range and normalize_obs=False do not go with a function as encoder=, "
                "whose floats are unbounded"
            )
    action = layout_from_space(
        action_space,
        "action",
        bins=action_bins,
        value_range=action_range,
        normalized=not normalize_action,
        option="action",
    )
    keywords = {
        "window": _optional(window, "window"),
        "lag": _optional(lag, "lag"),
        "reference": None if reference is None else snapshots.reference_text(reference),
        "encoder": named_encoder,
        "epsilon": _given(epsilon, "epsilon"),
        "history_size": _given(history_size, "history_size"),
        "min_window": _given(min_window, "min_window"),
        "axis_histograms": None
        if axis_histograms is None
        else flag(axis_histograms, "axis_histograms"),
    }
    return Tracking(observation, action, own_encoder, keywords)


def flag(value: Any, name: str) -> bool:
    """An argument that is True or False.

    Raises:
        TypeError: It is neither.
    """
    value = plain(value)
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def check_prefix(prefix: Any) -> None:
    """Checks an `info_prefix`.

    Raises:
        TypeError: It is no string.
        ValueError: Vector environments would take its keys for masks.
    """
    if not isinstance(prefix, str):
        raise TypeError(f"info_prefix must be a string, got {type(prefix).__name__}")
    if prefix.startswith("_"):
        raise ValueError(
            f"info_prefix must not start with an underscore, got {prefix!r}: "
            "vector environments reserve such keys for their masks"
        )


def _encoder(
    encoder: EncoderArgument,
) -> tuple[Callable[[Any], Any] | str | None, ArrayEncoder | None]:
    """The function of a user or the built-in encoder that is meant; "auto" is neither."""
    if isinstance(encoder, str):
        built_in = encoders.named(encoder)
        return (None if encoder == "auto" or built_in else encoder), built_in
    # A class has the methods of its objects too.
    if isinstance(encoder, ArrayEncoder) and not isinstance(encoder, type):
        return None, encoder
    return encoder, None


def _given(value: Any, name: str) -> Any:
    value = plain(value)
    # The tracker would take None for its own default.
    if value is None:
        raise TypeError(f"{name} must be a number, got None")
    return value


def _optional(value: Any, name: str) -> Any:
    # An array may hold a None that its caller did not mean.
    return None if value is None else _given(value, name)


def _positive(value: Any, name: str) -> float:
    try:
        if isinstance(value, bool | np.bool_ | str | bytes):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    except OverflowError:
        number = math.inf
    if not 0.0 < number <= 1e100:
        raise ValueError(f"{name} must be above 0 and at most 1e100, got {number}")
    return number
