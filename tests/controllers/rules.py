"""Every rule with plausible random parameters: the compiled controller and its twin."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from kl_proteus import (
    AdaptiveKLController,
    FixedKLController,
    PIDKLController,
    PPOPenaltyController,
    ScheduledKLController,
    ThresholdKLController,
)
from reference import controllers as twin

RULES = ("fixed", "adaptive", "ppo_penalty", "threshold", "pid", "scheduled")
BARE = RULES[:-1]

positive = st.floats(1e-3, 1e3)
targets = st.sampled_from([0.01, 0.1, 1.0, 3.0, 6.0]) | st.floats(1e-2, 10)


@dataclass
class Case:
    """How to make a controller and its twin, and what to feed them."""

    make: Any
    make_twin: Any
    feed: list[tuple[Any, int]]
    exact: bool  # whether the twin does the same operations in the same order

    def pair(self):
        """A fresh controller and a fresh twin."""
        return self.make(), self.make_twin()


@st.composite
def bounds(draw):
    """Bounds and an initial coefficient within them."""
    low, init, high = sorted(draw(st.tuples(positive, positive, positive)))
    return {"min_value": low, "max_value": high}, {"minimum": low, "maximum": high}, init


@st.composite
def parameters(draw, rule):
    """A constructor and its arguments, the same for the twin, and whether they agree bit by bit."""
    limits, twin_limits, init = draw(bounds())
    target = draw(targets)
    unit = draw(st.sampled_from(["nats/token", "nats/sequence", "nats/step"]))
    limits["unit"] = unit
    if rule == "fixed":
        return (FixedKLController, (init,), limits), (twin.Fixed, (init,), twin_limits), True
    if rule in ("adaptive", "pid"):
        horizon = draw(st.floats(10, 1e4))
        gains = {"clip": draw(st.floats(1e-3, 1.0))}
        if rule == "pid":
            gains |= {name: draw(st.floats(0, 3)) for name in ("kp", "ki", "kd")}
        classes = {
            "adaptive": (AdaptiveKLController, twin.Adaptive),
            "pid": (PIDKLController, twin.PID),
        }[rule]
        arguments = (init, target, horizon)
        return (
            (classes[0], arguments, limits | gains),
            (classes[1], arguments, twin_limits | gains),
            rule == "adaptive",
        )
    band = {
        "high": draw(st.floats(1, 3)),
        "low": draw(st.floats(0, 1)),
        "increase_factor": draw(st.floats(1, 3)),
        "decrease_factor": draw(st.floats(0.1, 1)),
    }
    if rule == "ppo_penalty":
        classes = PPOPenaltyController, twin.PPOPenalty
    else:
        band["window"] = draw(st.integers(1, 12))
        classes = ThresholdKLController, twin.Threshold
    return (
        (classes[0], (init, target), limits | band),
        (classes[1], (init, target), twin_limits | band),
        True,
    )


def build(recipe):
    """Calls a constructor."""
    constructor, arguments, keywords = recipe
    return constructor(*arguments, **keywords)


@st.composite
def cases(draw, rule):
    """A case of a rule, with a feed that the rule accepts."""
    inner = draw(st.sampled_from(BARE)) if rule == "scheduled" else rule
    recipe, twin_recipe, exact = draw(parameters(inner))
    target = recipe[1][1] if len(recipe[1]) > 1 else 1.0
    # Adaptive refuses clip * n_steps >= horizon.
    most = 9 if inner == "adaptive" else 2000
    steps = st.integers(0, most)
    kl = st.floats(-1, 4).map(lambda x: x * target) | st.sampled_from(
        [0.0, target, 1.5 * target, 0.5 * target, 1e12]
    )
    several = st.lists(kl, max_size=6)
    values = kl | several if inner == "threshold" else kl
    feed = draw(st.lists(st.tuples(values, steps), max_size=40))

    def make():
        return build(recipe)

    def make_twin():
        return build(twin_recipe)

    if rule != "scheduled":
        return Case(make, make_twin, feed, exact)
    warmup = draw(st.integers(0, 100))
    shape = draw(st.sampled_from(["linear", "cosine"]))
    low, high = recipe[2]["min_value"], recipe[2]["max_value"]
    start = draw(st.floats(low, high))
    return Case(
        lambda: ScheduledKLController(make(), warmup, start=start, shape=shape),
        lambda: twin.Scheduled(make_twin(), warmup, start, shape),
        feed,
        False,
    )
