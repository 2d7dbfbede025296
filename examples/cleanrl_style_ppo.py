"""PPO in one file, as in CleanRL: CartPole in many copies, and the drift beside the losses."""

import argparse
from collections import defaultdict

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn
from torch.distributions import Categorical

from kl_proteus import VectorJointKLDivergenceWrapper

ENVS, STEPS, EPOCHS, BATCH = 8, 128, 4, 256
GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, RATE = 0.99, 0.95, 0.2, 0.01, 0.5, 1e-3

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=120_000, help="steps of the environments")
parser.add_argument("--tensorboard", metavar="FOLDER", help="write the table there, too")
arguments = parser.parse_args()
writer = None
if arguments.tensorboard:
    from torch.utils.tensorboard import SummaryWriter  # pip install tensorboard

    writer = SummaryWriter(arguments.tensorboard)

torch.manual_seed(0)
torch.set_num_threads(1)
envs = VectorJointKLDivergenceWrapper(
    SyncVectorEnv([lambda: gym.make("CartPole-v1")] * ENVS, autoreset_mode=AutoresetMode.SAME_STEP),
    pooled=True,  # one policy, so one distribution
    window=2 * STEPS,  # the newest two rollouts are compared with the two before them
)


def network(outputs, scale):
    layers = nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )
    nn.init.orthogonal_(layers[-1].weight, scale)
    return layers


actor, critic = network(2, 0.01), network(1, 1.0)
parameters = [*actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(parameters, lr=RATE, eps=1e-5)

observation = torch.as_tensor(envs.reset(seed=0)[0])
returns, running = [0.0], np.zeros(ENVS)
columns = ("reward", "approx_kl", "divergence", "observation", "policy", "excess")
print("  steps", *(f"{name:>11}" for name in columns), "  (KL in nats)")
for update in range(1, arguments.steps // (ENVS * STEPS) + 1):
    rollout = defaultdict(list)
    drift = defaultdict(list)
    for _ in range(STEPS):
        with torch.no_grad():
            policy, value = Categorical(logits=actor(observation)), critic(observation)[:, 0]
        action = policy.sample()
        rollout["observation"].append(observation)
        rollout["action"].append(action)
        rollout["logprob"].append(policy.log_prob(action))
        rollout["value"].append(value)
        seen, reward, terminated, truncated, infos = envs.step(action.numpy())
        done = terminated | truncated
        observation = torch.as_tensor(seen)
        rollout["reward"].append(torch.as_tensor(reward, dtype=torch.float32))
        rollout["goes_on"].append(torch.as_tensor(~done, dtype=torch.float32))
        for name in columns[2:]:
            drift[name].append(infos["kl_" + name][0])  # pooled: the same in every row
        running += reward
        returns = [*returns, *running[done]][-50:]
        running[done] = 0.0

    batch = {name: torch.stack(rows) for name, rows in rollout.items()}
    with torch.no_grad():
        following, advantage = critic(observation)[:, 0], torch.zeros(ENVS)
    advantages = torch.zeros(STEPS, ENVS)
    for t in reversed(range(STEPS)):
        goes_on, value = batch["goes_on"][t], batch["value"][t]
        delta = batch["reward"][t] + GAMMA * following * goes_on - value
        advantage = advantages[t] = delta + GAMMA * LAMBDA * goes_on * advantage
        following = value
    batch["advantage"], batch["target"] = advantages, advantages + batch["value"]
    batch = {name: rows.flatten(0, 1) for name, rows in batch.items()}

    approximate = []
    for _ in range(EPOCHS):
        for part in torch.randperm(ENVS * STEPS).split(BATCH):
            few = {name: rows[part] for name, rows in batch.items()}
            policy = Categorical(logits=actor(few["observation"]))
            log_ratio = policy.log_prob(few["action"]) - few["logprob"]
            ratio = log_ratio.exp()
            gain = (few["advantage"] - few["advantage"].mean()) / (few["advantage"].std() + 1e-8)
            surrogate = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
            error = critic(few["observation"])[:, 0] - few["target"]
            loss = VALUE * (error**2).mean() - surrogate.mean() - ENTROPY * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
            approximate.append(((ratio - 1) - log_ratio).mean().item())

    row = {"reward": float(np.mean(returns)), "approx_kl": float(np.mean(approximate))}
    row |= {name: float(np.mean(values)) for name, values in drift.items()}
    step = update * ENVS * STEPS
    if update % 8 == 0:
        print(f"{step:7}", *(f"{row[name]:11.4f}" for name in columns))
    if writer is not None:
        for name, number in row.items():
            writer.add_scalar(name if name in columns[:2] else f"kl/{name}", number, step)
    # With Weights & Biases: wandb.log({f"kl/{name}": row[name] for name in columns[2:]}, step=step)

movers = envs.get_kl_statistics()["top_movers"]
print("moved most:", ", ".join(mover["axis"] for mover in movers))
if writer is not None:
    writer.close()
envs.close()
