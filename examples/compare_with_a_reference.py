"""Freeze the behaviour of one policy, and measure others against it."""

import gymnasium as gym

from kl_proteus import JointKLDivergenceWrapper

POLICIES = {
    "random": lambda observation, random_action: random_action,
    "balances the pole": lambda observation, _: int(observation[2] + observation[3] > 0),
    "always right": lambda observation, _: 1,
}


def play(policy, seed, steps=3000, **options):
    """Runs a policy and returns the wrapper that watched it, with the last info."""
    env = JointKLDivergenceWrapper(gym.make("CartPole-v1"), **options)
    env.action_space.seed(seed)
    observation, _ = env.reset(seed=seed)
    for _ in range(steps):
        action = policy(observation, env.action_space.sample())
        observation, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()
    return env, info


# window=None: the reference holds every pair, which makes it less noisy.
watched, _ = play(POLICIES["random"], seed=0, steps=4000, window=None)
reference = watched.snapshot()
print("against a random policy          joint  states  actions   (nats)")
for name, policy in POLICIES.items():
    _, info = play(policy, seed=1, reference=reference)
    joint, states, actions = info["kl_divergence"], info["kl_observation"], info["kl_policy"]
    print(f"{name:30}  {joint:6.3f}  {states:6.3f}  {actions:7.3f}")
