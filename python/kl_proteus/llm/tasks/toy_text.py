"""What the toy-text environments of Gymnasium are about."""

from __future__ import annotations

import math

from gymnasium import spaces

from kl_proteus.llm.tasks.state_text import TAXI_STANDS, BlackjackText, GridText, TaxiText
from kl_proteus.llm.tasks.task import Setting, Task, ending
from kl_proteus.llm.text.wording import rounded

__all__ = ["blackjack", "cliff_walking", "frozen_lake", "taxi"]

_LARGEST_MAP = 400

# A wall is a "|" between two columns; ":" can be passed.
_TAXI_MAP = """\
|R: | : :G|
| : | : : |
| : : : : |
| | : | : |
|Y| : |B: |"""


def frozen_lake(setting: Setting) -> Task | None:
    """Describe FrozenLake with any map; None if the actions are not its own."""
    if not setting.has_actions(4):
        return None
    grid = _lake_grid(setting)
    shape = _lake_shape(setting, grid)
    goal, hole, ice = _lake_rewards(setting)
    reward = f"The reward is {goal} for the goal, {hole} for a hole and {ice} for any other step."
    if shape:
        where = (
            f"The lake has {shape[0]} rows and {shape[1]} columns of tiles; row 0 is at the top "
            "and column 0 at the left."
        )
    else:
        where = "The lake is a grid of tiles, numbered row by row."
    parts = [
        "Cross a frozen lake to the goal without falling into a hole.",
        where,
        "LEFT, DOWN, RIGHT and UP move by one tile; at the edge you stay where you are.",
        _slipperiness(setting),
        ending(setting, "when you reach the goal", "when you fall into a hole"),
        reward,
    ]
    text = " ".join(part for part in parts if part)
    if grid and len(grid) * len(grid[0]) <= _LARGEST_MAP:
        text += "\nMap (S start, F frozen, H hole, G goal):\n" + "\n".join(grid)
    return Task(
        name="FrozenLake",
        description=text,
        observation_formatter=GridText(*shape) if shape else None,
        action_names=("LEFT", "DOWN", "RIGHT", "UP"),
    )


def cliff_walking(setting: Setting) -> Task | None:
    """Describe CliffWalking; None if the actions are not its own."""
    if not setting.has_actions(4):
        return None
    slippery = setting.kwargs.get("is_slippery", False)
    parts = [
        "Walk from the start at row 3, column 0 to the goal at row 3, column 11 without stepping "
        "off the cliff at row 3, columns 1 to 10.",
        "There are 4 rows and 12 columns; row 0 is at the top and column 0 at the left.",
        "UP, RIGHT, DOWN and LEFT move by one cell; at the edge you stay where you are.",
        "The ground is slippery: a move goes in the chosen direction or to either side of it, with "
        "equal probability."
        if slippery
        else "",
        "Stepping off the cliff puts you back at the start, and the episode goes on.",
        ending(setting, "when you reach the goal"),
        "The reward is -1 for every step, but -100 for one off the cliff.",
    ]
    return Task(
        name="CliffWalking",
        description=" ".join(part for part in parts if part),
        observation_formatter=GridText(4, 12) if setting.has_states(48) else None,
        action_names=("UP", "RIGHT", "DOWN", "LEFT"),
    )


def taxi(setting: Setting) -> Task | None:
    """Describe Taxi; None if the actions are not its own."""
    if not setting.has_actions(6):
        return None
    stands = ", ".join(f"{name} (row {r}, column {c})" for name, (r, c) in TAXI_STANDS.items())
    parts = [
        "Drive a taxi to the passenger, pick the passenger up, and drop the passenger off at the "
        "destination.",
        "There are 5 rows and 5 columns; row 0 is in the north and column 0 in the west.",
        f"Passengers wait and want to go at four places: {stands}.",
        "SOUTH, NORTH, EAST and WEST move the taxi by one cell, and do nothing at a wall or at the "
        "edge. PICKUP takes the passenger in at the place where the passenger waits. DROPOFF lets "
        "the passenger out at one of the four places.",
        _rain(setting),
        _whims(setting),
        ending(setting, "when the passenger is dropped off at the destination"),
        "The reward is 20 for that, -10 for a PICKUP or DROPOFF that is not possible, and -1 for "
        "every other step.",
    ]
    text = " ".join(part for part in parts if part)
    return Task(
        name="Taxi",
        description=f'{text}\nMap ("|" is a wall, ":" is none):\n{_TAXI_MAP}',
        observation_formatter=TaxiText() if setting.has_states(500) else None,
        action_names=("SOUTH", "NORTH", "EAST", "WEST", "PICKUP", "DROPOFF"),
    )


def blackjack(setting: Setting) -> Task | None:
    """Describe Blackjack; None if the actions are not its own."""
    if not setting.has_actions(2):
        return None
    hand = (spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2))
    if setting.kwargs.get("sab", False):
        natural = "An ace and a ten as your first two cards beat every other hand of the dealer."
    elif setting.kwargs.get("natural", False):
        natural = "A win with an ace and a ten as your first two cards is worth 1.5."
    else:
        natural = ""
    parts = [
        "Beat the dealer at blackjack: get a sum of cards that is closer to 21 than the dealer's, "
        "but not above 21.",
        "Cards come from an endless deck. Jack, queen and king count 10, and an ace counts 11 "
        "where that keeps the sum within 21 (a usable ace) and 1 elsewhere.",
        "You see one of the dealer's two cards. HIT takes another card. STICK ends your turn; the "
        "dealer then takes cards up to a sum of 17 or more.",
        ending(setting, "when you STICK", "when your sum exceeds 21"),
        "The reward is 1 for a win, -1 for a loss and 0 for a draw or a step that ends nothing.",
        natural,
    ]
    return Task(
        name="Blackjack",
        description=" ".join(part for part in parts if part),
        observation_formatter=(
            BlackjackText() if setting.observation_space == spaces.Tuple(hand) else None
        ),
        action_names=("STICK", "HIT"),
    )


def _lake_grid(setting: Setting) -> tuple[str, ...] | None:
    """Find the rows of the map that has as many tiles as there are states."""
    # Gymnasium's own maps; the module needs nothing beyond NumPy, but takes a while to import.
    from gymnasium.envs.toy_text.frozen_lake import MAPS

    desc = setting.kwargs.get("desc")
    name = setting.kwargs.get("map_name", "4x4")
    candidates = (setting.grid, desc if desc is not None else MAPS.get(name))
    for rows in candidates:
        if rows is None:
            continue
        grid = tuple(map(str, rows))
        if grid and setting.has_states(sum(map(len, grid))) and len(set(map(len, grid))) == 1:
            return grid
    return None


def _lake_shape(setting: Setting, grid: tuple[str, ...] | None) -> tuple[int, int] | None:
    if grid:
        return len(grid), len(grid[0])
    space = setting.observation_space
    side = math.isqrt(int(space.n)) if isinstance(space, spaces.Discrete) else 0
    # A map that is not known here is square unless somebody drew it.
    return (side, side) if side and setting.has_states(side * side) else None


def _lake_rewards(setting: Setting) -> tuple[str, str, str]:
    goal, hole, ice = setting.kwargs.get("reward_schedule", (1, 0, 0))
    return rounded(goal), rounded(hole), rounded(ice)


def _slipperiness(setting: Setting) -> str:
    if not setting.kwargs.get("is_slippery", True):
        return ""
    success = float(setting.kwargs.get("success_rate", 1 / 3))
    side = rounded((1 - success) / 2)
    return (
        "The ice is slippery: a move goes in the chosen direction with probability "
        f"{rounded(success)}, and to each side of it with probability {side}."
    )


def _rain(setting: Setting) -> str:
    if not setting.kwargs.get("is_rainy", False):
        return ""
    success = float(setting.kwargs.get("rainy_probability", 0.8))
    side = rounded((1 - success) / 2)
    return (
        f"It rains: a move goes in the chosen direction with probability {rounded(success)}, and "
        f"to each side of it with probability {side}."
    )


def _whims(setting: Setting) -> str:
    if not setting.kwargs.get("fickle_passenger", False):
        return ""
    return "The passenger may change the destination once, just after being picked up."
