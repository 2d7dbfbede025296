"""One scalar to its digit: 0 = underflow, 1..n in range, n + 1 = overflow; categories 0..n-1."""

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """One scalar of a space and the digits that it can take."""

    kind: str
    size: int  # digits that are not flow bins
    flow: bool  # whether digits 0 and size + 1 exist
    integer: bool  # whether only whole numbers are legal
    low: float | int | None
    high: float | int | None
    digit: Callable[[float | int], int]

    @property
    def extent(self) -> int:
        """The number of digits."""
        return self.size + 2 if self.flow else self.size

    def in_flow(self, digit: int) -> bool:
        """Whether a digit of this axis is one of the two flow bins."""
        return self.flow and digit in (0, self.size + 1)


def cut(x: float, low: float, high: float, n: int) -> int:
    """Regular bins over [low, high]; the top edge belongs to the last bin."""
    if x < low:
        return 0
    if x > high:
        return n + 1
    return min(math.floor(((x - low) / (high - low)) * n), n - 1) + 1


def squash(x: float, scale: float) -> float:
    """The whole line to [0, 1]."""
    if math.isinf(x):
        return 1.0 if x > 0 else 0.0
    return (1.0 + x / (scale + abs(x))) / 2.0


def squash_above(distance: float, scale: float) -> float:
    """The distance to the only bound, from [0, inf] to [0, 1]."""
    return 1.0 if math.isinf(distance) else distance / (scale + distance)


def unbounded(n: int, scale: float) -> Axis:
    """No usable bound."""
    return Axis(
        "unbounded", n, True, False, None, None, lambda x: cut(squash(float(x), scale), 0, 1, n)
    )


def lower_bounded(low: float, n: int, scale: float) -> Axis:
    """Only the lower bound is usable."""

    def digit(x: float) -> int:
        x = float(x)
        return 0 if x < low else cut(squash_above(x - low, scale), 0, 1, n)

    return Axis("lower", n, True, False, low, None, digit)


def upper_bounded(high: float, n: int, scale: float) -> Axis:
    """Only the upper bound is usable."""

    def digit(x: float) -> int:
        x = float(x)
        return n + 1 if x > high else cut(1.0 - squash_above(high - x, scale), 0, 1, n)

    return Axis("upper", n, True, False, None, high, digit)


def regular(low: float, high: float, n: int) -> Axis:
    """Both bounds usable and apart."""
    return Axis("regular", n, True, False, low, high, lambda x: cut(float(x), low, high, n))


def degenerate(bound: float) -> Axis:
    """Both bounds at one value."""

    def digit(x: float) -> int:
        return 0 if x < bound else 2 if x > bound else 1

    return Axis("degenerate", 1, True, False, bound, bound, digit)


def whole_numbers(low: int, high: int, n: int) -> Axis:
    """A bounded integer axis: a bin a value where they fit, else cut in exact integers."""
    values = high - low + 1
    size = min(values, n)

    def digit(x: float | int) -> int:
        if x < low:
            return 0
        if x > high:
            return size + 1
        offset = int(x) - low
        return (offset if values <= n else offset * n // values) + 1

    return Axis("integers", size, True, True, low, high, digit)


def category(start: int, n: int) -> Axis:
    """One digit a value; there is nothing outside."""

    def digit(x: float | int) -> int:
        if not start <= x <= start + n - 1:
            raise ValueError(f"{x} is outside {start}..{start + n - 1}")
        return int(x) - start

    return Axis("category", n, False, True, start, start + n - 1, digit)
