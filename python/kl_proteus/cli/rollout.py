"""Running a policy in an environment for so many episodes or steps."""

from dataclasses import dataclass
from typing import Any

from kl_proteus.cli.failures import CommandError, describe
from kl_proteus.cli.options import CollectOptions
from kl_proteus.cli.policies import Policy
from kl_proteus.cli.progress import Progress
from kl_proteus.llm.wrapper import LLMTrainingWrapper

__all__ = ["Tally", "run"]


@dataclass(slots=True)
class Tally:
    """What a run has seen so far.

    Attributes:
        steps: Steps taken.
        episodes: Episodes completed.
        kl: Joint divergence after the last step, in nats.
        kl_observation: Its part from where the agent goes.
        kl_policy: Its part from what the agent does there.
        episode_reward: Reward of the environment in the episode that is running.
        total_reward: The same over all completed episodes.
    """

    steps: int = 0
    episodes: int = 0
    kl: float = 0.0
    kl_observation: float = 0.0
    kl_policy: float = 0.0
    episode_reward: float = 0.0
    total_reward: float = 0.0

    @property
    def mean_episode_reward(self) -> float | None:
        """Mean reward of the completed episodes; None while there is none."""
        return self.total_reward / self.episodes if self.episodes else None

    def add(self, info: dict[str, Any], ended: bool) -> None:
        """Counts a step."""
        self.steps += 1
        self.kl = info["kl_divergence"]
        self.kl_observation = info["kl_observation"]
        self.kl_policy = info["kl_policy"]
        self.episode_reward += info["base_reward"]
        if ended:
            self.episodes += 1
            self.total_reward += self.episode_reward
            self.episode_reward = 0.0


def run(
    env: LLMTrainingWrapper[Any, Any],
    policy: Policy,
    options: CollectOptions,
    tally: Tally,
    progress: Progress,
) -> None:
    """Steps the environment until the run is as long as it was asked to be.

    Args:
        env: The environment.
        policy: What chooses the actions.
        options: The command line: the length of the run and the seed.
        tally: Where the run is counted; valid after an error and an interrupt too.
        progress: The bar.

    Raises:
        CommandError: The policy, the environment or the recording failed.
    """
    # Only the first reset is seeded; the others go on with the environment's generator.
    observation = _reset(env, options.seed)
    while True:
        action = policy(observation)
        try:
            observation, _, terminated, truncated, info = env.step(action)
        except (Exception, SystemExit) as error:
            where = f"step {tally.steps + 1} of {options.env_id}"
            raise CommandError(f"{where} failed: {describe(error)}") from error
        ended = bool(terminated) or bool(truncated)
        tally.add(info, ended)
        done = tally.episodes if options.unit == "episodes" else tally.steps
        progress.show(done, tally.kl, tally.mean_episode_reward)
        if done == options.length:
            return
        if ended:
            observation = _reset(env, None)


def _reset(env: LLMTrainingWrapper[Any, Any], seed: int | None) -> Any:
    try:
        return env.reset(seed=seed)[0]
    except (Exception, SystemExit) as error:
        raise CommandError(f"the environment cannot be reset: {describe(error)}") from error
