"""What the classic-control environments of Gymnasium are about."""

from __future__ import annotations

import math

from kl_proteus.llm.tasks.quantities import Quantity
from kl_proteus.llm.tasks.task import Setting, Task, box_matches, ending

__all__ = ["acrobot", "cart_pole", "mountain_car", "mountain_car_continuous", "pendulum"]

_CAR_LOW, _CAR_HIGH = (-1.2, -0.07), (0.6, 0.07)
_CAR_VALUES = (Quantity("position", "m"), Quantity("velocity", "m/step"))


def cart_pole(setting: Setting) -> Task | None:
    """Describe CartPole; None if the actions are not its own."""
    if not setting.has_actions(2):
        return None
    high = (4.8, None, 0.418879, None)
    low = (-4.8, None, -0.418879, None)
    if setting.kwargs.get("sutton_barto_reward"):
        reward = (
            "The reward is 0 for every step, but -1 for the one that loses the pole or the cart."
        )
    else:
        reward = "The reward is 1 for every step, so keep the pole up for as long as possible."
    return Task(
        name="CartPole",
        description=_paragraph(
            "Balance a pole that stands on a cart by pushing the cart along a track.",
            "LEFT pushes the cart to the left and RIGHT to the right, always with the same force "
            "and for 0.02 s; there is no action without a push.",
            "Positions, velocities and angles are positive to the right, and the angle of an "
            "upright pole is 0.",
            ending(
                setting,
                "when the pole is more than 0.2094 rad (12 degrees) from upright",
                "when the cart is more than 2.4 m from the middle of the track",
            ),
            reward,
        ),
        observation_values=_if(
            box_matches(setting.observation_space, low, high) or _unbounded(setting, 4),
            Quantity("cart position", "m"),
            Quantity("cart velocity", "m/s"),
            Quantity("pole angle", "rad"),
            Quantity("pole angular velocity", "rad/s"),
        ),
        action_names=("LEFT", "RIGHT"),
    )


def mountain_car(setting: Setting) -> Task | None:
    """Describe MountainCar with three actions; None if the actions are not its own."""
    if not setting.has_actions(3):
        return None
    return Task(
        name="MountainCar",
        description=_paragraph(
            _valley("0.5"),
            "LEFT and RIGHT accelerate the car in that direction, and COAST leaves it to gravity.",
            ending(setting, _flag(setting, "0.5")),
            "The reward is -1 for every step, so reach the flag in as few steps as possible.",
        ),
        observation_values=_car_values(setting),
        action_names=("LEFT", "COAST", "RIGHT"),
    )


def mountain_car_continuous(setting: Setting) -> Task | None:
    """Describe MountainCarContinuous; None if the actions are not its own."""
    if not setting.has_continuous_actions(1.0):
        return None
    return Task(
        name="MountainCarContinuous",
        description=_paragraph(
            _valley("0.45"),
            "The action is the force of the engine, from -1 (full power to the left) to 1 (full "
            "power to the right).",
            ending(setting, _flag(setting, "0.45")),
            "The reward of a step is -0.1 times the square of the force, and 100 more for "
            "reaching the flag.",
        ),
        observation_values=_car_values(setting),
        action_values=(Quantity("force"),),
    )


def pendulum(setting: Setting) -> Task | None:
    """Describe Pendulum; None if the actions are not its own."""
    if not setting.has_continuous_actions(2.0):
        return None
    bounds = (1.0, 1.0, 8.0)
    return Task(
        name="Pendulum",
        description=_paragraph(
            "Swing a pendulum up and keep it upright with as little torque as possible.",
            "The action is the torque at the joint, from -2 to 2 N m, which is too weak to lift "
            "a hanging pendulum without swinging.",
            "The angle is 0 when the pendulum is upright and pi or -pi when it hangs; angle, "
            "angular velocity and torque are positive counter-clockwise. The angular velocity "
            "stays within -8 and 8 rad/s.",
            ending(setting),
            "The reward of a step is -(angle^2 + 0.1 * angular velocity^2 + 0.001 * torque^2) "
            "with the angle in rad, so 0 is the best there is.",
        ),
        observation_values=_if(
            box_matches(setting.observation_space, [-x for x in bounds], bounds)
            or _unbounded(setting, 3),
            Quantity("cosine of the angle"),
            Quantity("sine of the angle"),
            Quantity("angular velocity", "rad/s"),
        ),
        action_values=(Quantity("torque", "N m"),),
    )


def acrobot(setting: Setting) -> Task | None:
    """Describe Acrobot; None if the actions are not its own."""
    if not setting.has_actions(3):
        return None
    bounds = (1.0, 1.0, 1.0, 1.0, 4 * math.pi, 9 * math.pi)
    return Task(
        name="Acrobot",
        description=_paragraph(
            "Swing the free end of a chain of two links up to a height of one link above the "
            "point where the chain is fixed.",
            "Only the joint between the links has a motor; the action is its torque in N m: "
            "TORQUE -1, TORQUE 0 or TORQUE +1.",
            "Angle 1 is 0 when the first link hangs straight down. Angle 2 is measured from the "
            "direction of the first link, and is 0 when the links are in line.",
            ending(setting, "when -cos(angle 1) - cos(angle 1 + angle 2) is more than 1"),
            "The reward is -1 for every step, and 0 for the step that reaches the height.",
        ),
        observation_values=_if(
            box_matches(setting.observation_space, [-x for x in bounds], bounds),
            Quantity("cosine of angle 1"),
            Quantity("sine of angle 1"),
            Quantity("cosine of angle 2"),
            Quantity("sine of angle 2"),
            Quantity("angular velocity 1", "rad/s"),
            Quantity("angular velocity 2", "rad/s"),
        ),
        action_names=("TORQUE -1", "TORQUE 0", "TORQUE +1"),
    )


def _valley(flag: str) -> str:
    return (
        "Drive a car out of a valley to the flag on the hill to the right, at position "
        f"{flag}. The engine is too weak to drive straight up, so swing back and forth to gain "
        "speed. Positions run from -1.2 to 0.6 with the bottom of the valley near -0.52, and "
        "velocities from -0.07 to 0.07; the car stops at the left end."
    )


def _flag(setting: Setting, position: str) -> str:
    condition = f"when the position is at least {position}"
    velocity = setting.kwargs.get("goal_velocity", 0)
    return f"{condition} and the velocity at least {velocity:g}" if velocity else condition


def _car_values(setting: Setting) -> tuple[Quantity, ...]:
    return _if(box_matches(setting.observation_space, _CAR_LOW, _CAR_HIGH), *_CAR_VALUES)


def _unbounded(setting: Setting, size: int) -> bool:
    """Tell whether this is the JAX version of an environment, which declares no bounds."""
    infinite = [math.inf] * size
    return setting.namespace == "phys2d" and box_matches(
        setting.observation_space, [-x for x in infinite], infinite
    )


def _if(matches: bool, *quantities: Quantity) -> tuple[Quantity, ...]:
    return quantities if matches else ()


def _paragraph(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)
