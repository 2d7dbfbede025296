"""Record a policy that is good most of the time, and write all three kinds of training data."""

import random
import sys
from pathlib import Path

import gymnasium as gym

from kl_proteus import LLMTrainingWrapper

output_dir = Path(sys.argv[1] if len(sys.argv) > 1 else "training_data")
rng = random.Random(0)
for format_type in ("chat", "completion", "preference"):
    # One recording serves every format: the first wrapper plays, the others only export.
    # Four axes: with ten bins each, too many cells would hold too few pairs.
    env = LLMTrainingWrapper(
        gym.make("CartPole-v1"), output_dir, format_type, mode="monitor", obs_bins=6
    )
    if format_type == "chat":
        for episode in range(30):
            observation, _ = env.reset(seed=episode)
            done = False
            while not done:
                good = int(observation[2] + observation[3] > 0)
                action = good if rng.random() < 0.8 else 1 - good
                observation, _, terminated, truncated, _ = env.step(action)
                done = terminated or truncated
        statistics = env.get_training_statistics()
        print(f"{statistics['num_episodes']} episodes, {statistics['num_steps']} steps")
    path = env.save_all_trajectories(f"{format_type}.jsonl")
    env.close()
    with path.open(encoding="utf-8") as file:
        print(f"{path.name}: {sum(1 for _ in file)} rows")
