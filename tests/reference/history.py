"""What is said about the last values of a series, with NumPy."""

import numpy as np


class ReferenceHistory:
    """Every value is kept; the statistics look at the newest `size`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.all_values: list[float] = []

    def push(self, value: float) -> None:
        """Add the newest value."""
        self.all_values.append(value)

    @property
    def values(self) -> list[float]:
        """The values that count, newest last."""
        return self.all_values[-self.size :]

    def _apply(self, function) -> float:
        return float(function(self.values)) if self.all_values else 0.0

    def mean(self) -> float:
        """The mean, 0.0 when empty."""
        return self._apply(np.mean)

    def std(self) -> float:
        """The population standard deviation, 0.0 when empty."""
        return self._apply(np.std)

    def min(self) -> float:
        """The smallest value, 0.0 when empty."""
        return self._apply(np.min)

    def max(self) -> float:
        """The largest value, 0.0 when empty."""
        return self._apply(np.max)
