"""The numbered states of Gymnasium's toy-text environments in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kl_proteus.llm.text.coercion import to_integer, to_items

__all__ = ["TAXI_STANDS", "BlackjackText", "GridText", "TaxiText"]

TAXI_STANDS = {"red": (0, 0), "green": (0, 4), "yellow": (4, 0), "blue": (4, 3)}
"""Row and column of the places of Taxi, in the order in which the environment numbers them."""


@dataclass(frozen=True, slots=True)
class GridText:
    """Write the state of a grid world, counted row by row, as row and column.

    Attributes:
        rows: Number of rows.
        columns: Number of columns.
    """

    rows: int
    columns: int

    def __call__(self, observation: Any) -> str:
        """Return text such as "row=1, column=2"; raise `ValueError` outside the grid."""
        row, column = divmod(_state(observation, self.rows * self.columns), self.columns)
        return f"row={row}, column={column}"


@dataclass(frozen=True, slots=True)
class TaxiText:
    """Write the state of Taxi: position, where the passenger is and wants to go."""

    def __call__(self, observation: Any) -> str:
        """Return text such as "taxi row=3, taxi column=1, passenger=yellow, destination=red"."""
        state, destination = divmod(_state(observation, 500), 4)
        state, passenger = divmod(state, 5)
        row, column = divmod(state, 5)
        stands = tuple(TAXI_STANDS)
        place = stands[passenger] if passenger < len(stands) else "in the taxi"
        return (
            f"taxi row={row}, taxi column={column}, "
            f"passenger={place}, destination={stands[destination]}"
        )


@dataclass(frozen=True, slots=True)
class BlackjackText:
    """Write the hand of Blackjack."""

    def __call__(self, observation: Any) -> str:
        """Return text such as "your sum=14, dealer's card=ace, usable ace=no"."""
        values = to_items(observation, "observation", 3)
        total, card, ace = [to_integer(value, "observation") for value in values]
        shown = "ace" if card == 1 else str(card)
        return f"your sum={total}, dealer's card={shown}, usable ace={'yes' if ace else 'no'}"


def _state(observation: Any, count: int) -> int:
    state = to_integer(observation, "observation")
    if not 0 <= state < count:
        raise ValueError(f"observation must be an integer from 0 to {count - 1}, got {state}")
    return state
