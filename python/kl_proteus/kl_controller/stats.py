"""What a drop-in controller says of its divergences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class KLStats:
    """Statistics of divergences, in the unit of the controller.

    Attributes:
        mean_kl: Their mean; 0.0 without any.
        max_kl: The largest.
        min_kl: The smallest.
        std_kl: Their population standard deviation.
        current_coeff: The coefficient in force.
        adaptation_count: Updates that changed the coefficient.
        samples_processed: Sequences measured since construction.
    """

    mean_kl: float = 0.0
    max_kl: float = 0.0
    min_kl: float = 0.0
    std_kl: float = 0.0
    current_coeff: float = 0.1
    adaptation_count: int = 0
    samples_processed: int = 0

    def to_dict(self) -> dict[str, float | int]:
        """A row for W&B, TensorBoard and the like: keys under ``kl/``, floats to 4 decimals."""
        return {
            "kl/mean": round(self.mean_kl, 4),
            "kl/max": round(self.max_kl, 4),
            "kl/min": round(self.min_kl, 4),
            "kl/std": round(self.std_kl, 4),
            "kl/coeff": round(self.current_coeff, 4),
            "kl/adaptation_count": self.adaptation_count,
            "kl/samples_processed": self.samples_processed,
        }


def moments(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the population standard deviation; both 0.0 without values."""
    if not values:
        return 0.0, 0.0
    # Scaled by a power of two, which is exact, so that no square of a finite value overflows.
    _, exponent = math.frexp(max(map(abs, values)))
    scaled = [math.ldexp(x, -exponent) for x in values]
    mean = math.fsum(scaled) / len(scaled)
    variance = math.fsum((x - mean) ** 2 for x in scaled) / len(scaled)
    return math.ldexp(mean, exponent), math.ldexp(math.sqrt(variance), exponent)
