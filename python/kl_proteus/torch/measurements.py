"""Divergences of the rows of a batch, and what is kept of them when batches are put together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from kl_proteus.kl_controller.stats import moments


@dataclass(frozen=True)
class Spread:
    """What is known of measured values once they are gone.

    Attributes:
        count: How many there were.
        total: Their sum.
        squares: Sum of the squared deviations from their mean.
        largest: The largest; 0.0 without any.
        smallest: The smallest; 0.0 without any.
    """

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    largest: float = 0.0
    smallest: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of values that are at hand."""
        if not values:
            return cls()
        _, std = moments(values)
        return cls(
            len(values), math.fsum(values), std * std * len(values), max(values), min(values)
        )

    @classmethod
    def together(cls, parts: Sequence["Spread"]) -> "Spread":
        """Of the values of several; empty ones change nothing, and a single one stays as it is."""
        parts = [part for part in parts if part.count]
        if len(parts) < 2:
            return parts[0] if parts else cls()
        count = sum(part.count for part in parts)
        total = math.fsum(part.total for part in parts)
        mean = total / count
        # Chan, Golub and LeVeque 1979: the deviations within parts and those of their means.
        squares = math.fsum(part.squares + part.count * (part.mean - mean) ** 2 for part in parts)
        return cls(
            count,
            total,
            squares,
            max(part.largest for part in parts),
            min(part.smallest for part in parts),
        )

    @property
    def mean(self) -> float:
        """Their mean; 0.0 without any."""
        return self.total / self.count if self.count else 0.0

    @property
    def std(self) -> float:
        """Their population standard deviation; 0.0 without any."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0
