"""What `kl-proteus collect` was asked to do."""

from dataclasses import dataclass
from typing import Any, Literal

from kl_proteus.llm.export import FormatType
from kl_proteus.llm.shaping import Mode, ShapeOn

__all__ = ["CollectOptions", "Range"]

Range = tuple[float | None, float | None]
"""Low and high; None is no bound."""

# The file that each format goes to, so that one does not replace another.
FILE_NAMES: dict[FormatType, str] = {
    "chat": "trajectories.jsonl",
    "completion": "completions.jsonl",
    "preference": "preferences.jsonl",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectOptions:
    """The options of `collect`, checked on their own; the environment has not been asked yet.

    Attributes:
        env_id: Id of the environment.
        env_kwargs: Arguments of `gymnasium.make`.
        policy: `random`, or `module:callable`.
        length: Length of the run.
        unit: What the length counts: completed episodes, or steps.
        seed: Seed of the environment and the random policy; None draws one.
        output_dir: Directory of the recording and the training data.
        format: What is exported.
        gamma: Discount of the returns that rank preferences.
        min_margin: Smallest difference of returns that makes a preference.
        save_snapshot: Where the final distribution goes; None saves none.
        window: Pairs in each window; None compares every pair.
        lag: Distance of the previous window; None puts it next to the current one.
        reference: Path of a snapshot to compare with; None compares with earlier behaviour.
        min_window: Fewer pairs than this report nothing.
        epsilon: Pseudocount of each occupied cell.
        obs_bins: Bins of the observation.
        action_bins: Bins of the action.
        obs_range: Bounds of the observation; a None inside is no bound, None takes the space's.
        action_range: Bounds of the action, likewise.
        obs_scale: Scale of unbounded axes of the observation.
        history_size: Values behind mean and deviation.
        encoder: What encodes observations; None bins every scalar.
        mode: What the drift does to rewards.
        kl_penalty_weight: Reward per nat above the threshold.
        kl_bonus_weight: Reward at no drift.
        kl_threshold: Where the bonus ends and the penalty begins, in nats.
        shape_on: What rewards are shaped on.
        json: Results as a JSON object rather than a table.
        quiet: No progress bar.
    """

    env_id: str
    env_kwargs: dict[str, Any]
    policy: str
    length: int
    unit: Literal["episodes", "steps"]
    seed: int | None
    output_dir: str
    format: FormatType
    gamma: float
    min_margin: float
    save_snapshot: str | None
    window: int | None
    lag: int | None
    reference: str | None
    min_window: int
    epsilon: float
    obs_bins: int | list[int]
    action_bins: int | list[int]
    obs_range: Range | None
    action_range: Range | None
    obs_scale: float
    history_size: int
    encoder: str | None
    mode: Mode
    kl_penalty_weight: float
    kl_bonus_weight: float
    kl_threshold: float
    shape_on: ShapeOn
    json: bool
    quiet: bool

    @property
    def file_name(self) -> str:
        """Name of the training data under `output_dir`."""
        return FILE_NAMES[self.format]

    @property
    def pairs_needed(self) -> int:
        """Pairs (steps) after which the windows are full and the drift is ready."""
        if self.reference is not None:
            return self.min_window if self.window is None else self.window
        if self.window is None:
            return 2
        return 2 * self.window if self.lag is None else self.window + self.lag
