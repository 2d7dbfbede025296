"""Watch the drift while a policy changes: random for 4000 steps, then it balances the pole."""

import gymnasium as gym

from kl_proteus import JointKLDivergenceWrapper

env = JointKLDivergenceWrapper(gym.make("CartPole-v1"))
env.action_space.seed(0)
observation, _ = env.reset(seed=0)
print("  step   joint  states  actions   (nats)")
for step in range(8000):
    balance = int(observation[2] + observation[3] > 0)
    action = balance if step >= 4000 else env.action_space.sample()
    observation, _, terminated, truncated, info = env.step(action)
    if (step + 1) % 500 == 0:
        joint, states, actions = (
            info["kl_divergence"],
            info["kl_observation"],
            info["kl_policy"],
        )
        print(f"{step + 1:6}  {joint:6.3f}  {states:6.3f}  {actions:7.3f}")
    if terminated or truncated:
        observation, _ = env.reset()
env.close()
