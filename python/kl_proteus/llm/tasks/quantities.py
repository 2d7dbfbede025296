"""What the numbers of an observation or action measure."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Quantity", "each_quantity"]


class Quantity(NamedTuple):
    """What a number of an observation or action measures.

    Attributes:
        name: Such as "pole angle".
        unit: Such as "rad"; empty where the number has none.
    """

    name: str
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name


def each_quantity(quantities: tuple[Quantity, ...]) -> str:
    """List quantities with their units, such as "cart position (m), cart velocity (m/s)"."""
    return ", ".join(map(str, quantities))
