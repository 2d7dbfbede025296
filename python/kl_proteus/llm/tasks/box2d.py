"""What the Box2D environments of Gymnasium with vector observations are about."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kl_proteus.llm.tasks.quantities import Quantity
from kl_proteus.llm.tasks.task import Setting, Task, box_matches, ending

__all__ = ["bipedal_walker", "lunar_lander"]

# Version 2 of LunarLander declared tighter bounds than version 3 does.
_LANDER_BOUNDS = (
    (2.5, 2.5, 10.0, 10.0, 2 * math.pi, 10.0),
    (1.5, 1.5, 5.0, 5.0, math.pi, 5.0),
)
_LEGS = ("1", "2")


def lunar_lander(setting: Setting) -> Task | None:
    """Describe LunarLander with either kind of actions; None if they are not its own."""
    if setting.has_actions(4):
        engines = (
            "MAIN ENGINE pushes the lander along its own upward direction. LEFT ENGINE pushes it "
            "to the left and turns it counter-clockwise, RIGHT ENGINE pushes it to the right and "
            "turns it clockwise. NOTHING fires no engine."
        )
    elif setting.has_continuous_actions(1.0, 1.0):
        engines = (
            "The action is the throttle of the main engine and that of the side engines. The main "
            "engine pushes the lander along its own upward direction; it is off up to 0, and its "
            "power rises from 50% to 100% between 0 and 1. The side engines are off between -0.5 "
            "and 0.5; below -0.5 the left engine pushes the lander to the left and turns it "
            "counter-clockwise, above 0.5 the right engine pushes it to the right and turns it "
            "clockwise, with a power from 50% to 100%."
        )
    else:
        return None
    windy = setting.kwargs.get("enable_wind", False)
    parts = [
        "Land a spacecraft softly on the pad at x = 0, y = 0, with both legs on the ground and the "
        "engines off.",
        engines,
        "Wind pushes and turns the lander until a leg touches the ground." if windy else "",
        "x is positive to the right and y upwards; the screen ends at x = -1 and x = 1. The angle "
        "is 0 when the lander is upright, and positive counter-clockwise.",
        ending(
            setting,
            "when the body of the lander touches the ground (a crash)",
            "when it leaves the screen to a side",
            "when it has come to rest",
        ),
        "The reward of a step rises with coming closer to the pad, slower and more upright, by 10 "
        "for each leg that touches down, and falls by 0.3 for full power of the main engine and "
        "0.03 for that of a side engine. The last step gives 100 for coming to rest and -100 for "
        "a crash or leaving the screen.",
    ]
    discrete = setting.has_actions(4)
    return Task(
        name="LunarLander",
        description=" ".join(part for part in parts if part),
        observation_values=_lander_values(setting),
        action_names=("NOTHING", "LEFT ENGINE", "MAIN ENGINE", "RIGHT ENGINE") if discrete else (),
        action_values=(
            () if discrete else (Quantity("main engine throttle"), Quantity("side engine throttle"))
        ),
    )


def bipedal_walker(setting: Setting) -> Task | None:
    """Describe BipedalWalker; None if the actions are not its own."""
    if not setting.has_continuous_actions(1.0, 1.0, 1.0, 1.0):
        return None
    if setting.kwargs.get("hardcore", False):
        terrain = "The terrain has stumps, stairs and pits."
    else:
        terrain = "The terrain is slightly uneven."
    parts = [
        "Walk a two-legged robot to the right, to the end of the terrain, without falling.",
        terrain,
        "The action is the torque of the four joints, each as a fraction of the strongest torque. "
        "A positive value swings a leg forward at the hip, or straightens it at the knee; a "
        "negative value swings it back, or bends it.",
        "Angles are positive counter-clockwise, so that a positive hull angle leans back. Angular "
        "velocities and speeds are scaled to be near -1 to 1. A contact is 1 while the foot is on "
        "the ground. Lidar 0 looks straight down and lidar 9 almost straight ahead; each is the "
        "distance to the ground as a fraction of its range, 1 if it sees nothing.",
        ending(
            setting,
            "when the hull touches the ground or the robot walks back beyond the start (a fall)",
            "when the end of the terrain is reached",
        ),
        "The reward of a step rises with the way forward, about 300 for the whole terrain, and "
        "falls with tilting the hull and with torque. The last step gives -100 for a fall.",
    ]
    low, high = _walker_bounds()
    matches = box_matches(setting.observation_space, low, high)
    return Task(
        name="BipedalWalker",
        description=" ".join(parts),
        observation_values=_walker_values() if matches else (),
        action_values=tuple(
            Quantity(f"{joint} {leg}") for leg in _LEGS for joint in ("hip", "knee")
        ),
    )


def _lander_values(setting: Setting) -> tuple[Quantity, ...]:
    def matches(bounds: Sequence[float]) -> bool:
        low = [*(-bound for bound in bounds), 0.0, 0.0]
        return box_matches(setting.observation_space, low, [*bounds, 1.0, 1.0])

    if not any(map(matches, _LANDER_BOUNDS)):
        return ()
    return (
        Quantity("x"),
        Quantity("y"),
        Quantity("x velocity"),
        Quantity("y velocity"),
        Quantity("angle", "rad"),
        Quantity("angular velocity", "0.4 rad/s"),
        # The environment creates the leg to the right of the body first.
        Quantity("right leg contact"),
        Quantity("left leg contact"),
    )


def _walker_bounds() -> tuple[list[float], list[float]]:
    leg = [math.pi, 5.0, math.pi, 5.0]
    high = [math.pi, 5.0, 5.0, 5.0, *leg, 5.0, *leg, 5.0, *([1.0] * 10)]
    low = [-math.pi, -5.0, -5.0, -5.0, *(-x for x in leg), 0.0, *(-x for x in leg), 0.0]
    return [*low, *([-1.0] * 10)], high


def _walker_values() -> tuple[Quantity, ...]:
    legs = [
        Quantity(name.format(leg=leg), unit)
        for leg in _LEGS
        for name, unit in (
            ("hip {leg} angle", "rad"),
            ("hip {leg} speed", ""),
            ("knee {leg} angle plus 1", "rad"),
            ("knee {leg} speed", ""),
            ("leg {leg} contact", ""),
        )
    ]
    return (
        Quantity("hull angle", "rad"),
        Quantity("hull angular velocity"),
        Quantity("horizontal speed"),
        Quantity("vertical speed"),
        *legs,
        *(Quantity(f"lidar {i}") for i in range(10)),
    )
