"""Train PPO of Stable-Baselines3 on CartPole, and watch its behaviour drift while it learns."""

import argparse

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import KVWriter, Logger

from kl_proteus.sb3 import KLDriftCallback, VecKLDivergenceWrapper


class Table(KVWriter):
    """A line for each dump of the logger."""

    def write(self, key_values, key_excluded, step=0):
        names = ("rollout/ep_rew_mean", "kl/divergence", "kl/observation", "kl/policy", "kl/excess")
        values = (f"{float(key_values.get(name, 0.0)):9.3f}" for name in names)
        print(f"{step:7}", *values)

    def close(self):
        pass


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=60_000, help="steps of the environments")
arguments = parser.parse_args()

envs = VecKLDivergenceWrapper(
    make_vec_env("CartPole-v1", n_envs=8, seed=0), pooled=True, window=256
)
model = PPO("MlpPolicy", envs, n_steps=256, batch_size=256, seed=0, device="cpu")
# A folder in place of None, and formats such as "tensorboard" in place of the table, keep the run:
# model.set_logger(stable_baselines3.common.logger.configure("runs", ["stdout", "tensorboard"]))
model.set_logger(Logger(None, [Table()]))
print("  steps    reward     joint    states   actions    excess   (nats)")
model.learn(arguments.steps, callback=CallbackList([KLDriftCallback()]))

statistics = envs.get_kl_statistics()
print("moved most:", ", ".join(mover["axis"] for mover in statistics["top_movers"]))
envs.close()
