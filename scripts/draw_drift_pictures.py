"""Draws the pictures of docs/when_to_believe_the_number.md.

    sh scripts/uv run --extra dev --extra bench python scripts/draw_drift_pictures.py [DIRECTORY]

CartPole under a policy that is random at first; from `CHANGE` on, three actions of ten are those of
a policy that balances the pole.
"""

import sys
from pathlib import Path

import gymnasium as gym
import matplotlib as mpl

from kl_proteus import DriftDetector, JointKLDivergenceWrapper

mpl.use("Agg")
from matplotlib import pyplot as plt

CHANGE = 40_000
STEPS = 48_000
SHOWN = range(32_000, STEPS, 20)
SHARE = 0.3
COLOURS = {"value": "#1f4e79", "floor": "#c55a11", "excess": "#548235", "grey": "#7f7f7f"}


def run():
    """What the wrapper reported at the shown steps, and the detector with its alarms."""
    detector = DriftDetector(50_000)
    env = JointKLDivergenceWrapper(gym.make("CartPole-v1"), drift_detector=detector)
    env.action_space.seed(0)
    rng = env.action_space.np_random
    observation, _ = env.reset(seed=0)
    rows = []
    for step in range(STEPS):
        action = env.action_space.sample()
        if step >= CHANGE and rng.random() < SHARE:
            action = int(observation[2] + observation[3] > 0)
        observation, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()
        if step in SHOWN:
            keys = ("kl_divergence", "kl_noise_floor", "kl_excess")
            rows.append((step, *(info[key] for key in keys), detector.pvalue))
    return list(zip(*rows, strict=True)), detector


def axes(title, label):
    """An empty picture with the change in it."""
    figure, plot = plt.subplots(figsize=(8, 3.2), layout="constrained")
    plot.set_title(title, loc="left", fontsize=10)
    plot.set_xlabel("step")
    plot.set_ylabel(label)
    plot.axvline(CHANGE, color=COLOURS["grey"], linestyle="--", linewidth=1)
    plot.spines[["top", "right"]].set_visible(False)
    return figure, plot


def draw_floor(columns):
    """The value, its floor and the excess through the change."""
    steps, value, floor, excess, _ = columns
    title = "CartPole, random; 30 % of a balancing policy from the dashed line on"
    figure, plot = axes(title, "nats")
    plot.plot(steps, value, color=COLOURS["value"], linewidth=1, label="kl_divergence")
    plot.plot(steps, floor, color=COLOURS["floor"], linewidth=1, label="kl_noise_floor")
    plot.plot(steps, excess, color=COLOURS["excess"], linewidth=1, label="kl_excess")
    plot.set_ylim(bottom=min(0.0, *excess))
    plot.legend(frameon=False, loc="upper left")
    return figure


def draw_alarm(columns, detector):
    """The p-value of the detector, its threshold and the alarms."""
    steps, _, _, _, pvalue = columns
    figure, plot = axes("DriftDetector(50_000) on the same steps", "p-value")
    plot.semilogy(steps, pvalue, color=COLOURS["value"], linewidth=1, label="pvalue")
    plot.axhline(detector.threshold, color=COLOURS["floor"], linewidth=1, label="threshold")
    alarms = [alarm for alarm in detector.alarms if alarm.step > steps[0]]
    plot.plot(
        [alarm.step for alarm in alarms],
        [detector.threshold] * len(alarms),
        "v",
        color=COLOURS["floor"],
        label="alarm",
    )
    plot.legend(frameon=False, loc="lower left")
    return figure


def main():
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")
    directory.mkdir(parents=True, exist_ok=True)
    # The same file from the same run.
    mpl.rcParams["svg.hashsalt"] = "kl_proteus"
    columns, detector = run()
    pictures = {"floor.svg": draw_floor(columns), "alarm.svg": draw_alarm(columns, detector)}
    for name, figure in pictures.items():
        figure.savefig(directory / name, metadata={"Date": None})
    for alarm in detector.alarms:
        print(f"alarm at step {alarm.step}: {alarm.part}, p {alarm.pvalue:.1e}")


if __name__ == "__main__":
    main()
