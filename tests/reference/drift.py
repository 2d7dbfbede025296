"""Two distributions from a list of pairs, and their divergence, straight from the definitions.

A cell is (observation digits, action digits). Every sum is an fsum.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence

Cell = tuple[Hashable, Hashable]
Counts = Counter[Cell]


def count_windows(
    pairs: Sequence[Cell], window: int | None, lag: int | None, reference: Counts | None
) -> tuple[Counts, Counts]:
    """The counts of the current and of the previous distribution."""
    n = len(pairs)
    if reference is not None:
        current = pairs if window is None else pairs[max(0, n - window) :]
        return Counter(current), reference
    if window is None:
        return Counter(pairs), Counter(pairs[:-1])
    if lag is not None:
        end = max(0, n - lag)
        return Counter(pairs[max(0, n - window) :]), Counter(pairs[max(0, end - window) : end])
    if n < 2 * window:
        half = n // 2
        return Counter(pairs[half:]), Counter(pairs[:half])
    return Counter(pairs[n - window :]), Counter(pairs[n - 2 * window : n - window])


def is_reported(
    n: int, window: int | None, lag: int | None, has_reference: bool, min_window: int
) -> bool:
    """Whether there is enough to report a value after n pairs."""
    if has_reference:
        return n >= min_window if window is None else min(n, window) >= min(min_window, window)
    if window is None:
        return n >= 2
    if lag is not None:
        return n >= window + lag
    return min(n // 2, window) >= min(min_window, window)


def is_ready(
    n: int, window: int | None, lag: int | None, has_reference: bool, min_window: int
) -> bool:
    """Whether the windows are full after n pairs."""
    if has_reference:
        return n >= (min_window if window is None else window)
    if window is None:
        return n >= 2
    return n >= (2 * window if lag is None else window + lag)


def support(current: Counts, previous: Counts) -> set[Cell]:
    """U: the cells seen in either."""
    return {cell for counts in (current, previous) for cell, count in counts.items() if count > 0}


def smoothed(counts: Counts, cells: set[Cell], epsilon: float) -> dict[Cell, float]:
    """The probability of each cell with the pseudocount added."""
    total = sum(counts[cell] for cell in cells) + epsilon * len(cells)
    return {cell: (counts[cell] + epsilon) / total for cell in cells}


def log_quotient(count: int, other: int, pseudo: float) -> float:
    """log((count + pseudo) / (other + pseudo)), with all its digits where the two are close."""
    change = (count - other) / (other + pseudo)
    if abs(change) < 0.5:
        return math.log1p(change)
    return math.log((count + pseudo) / (other + pseudo))


def groups(cells: Iterable[Cell]) -> dict[Hashable, list[Cell]]:
    """The cells of each observation."""
    found: dict[Hashable, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell[0], []).append(cell)
    return found


def kl_joint(current: Counts, previous: Counts, epsilon: float) -> float:
    """sum of p log(p / q) over U."""
    cells = support(current, previous)
    p = smoothed(current, cells, epsilon)
    totals = log_quotient(current.total(), previous.total(), epsilon * len(cells))
    return math.fsum(
        p[cell] * (log_quotient(current[cell], previous[cell], epsilon) - totals) for cell in cells
    )


def kl_observation(current: Counts, previous: Counts, epsilon: float) -> float:
    """The divergence of the observation marginals of the same p and q."""
    cells = support(current, previous)
    p = smoothed(current, cells, epsilon)
    totals = log_quotient(current.total(), previous.total(), epsilon * len(cells))
    return math.fsum(
        math.fsum(p[cell] for cell in group)
        * (marginal(current, previous, group, epsilon) - totals)
        for group in groups(cells).values()
    )


def kl_policy(current: Counts, previous: Counts, epsilon: float) -> float:
    """The mean over P of the divergence of p(a|o) from q(a|o)."""
    cells = support(current, previous)
    p = smoothed(current, cells, epsilon)
    terms: list[float] = []
    for group in groups(cells).values():
        whole = marginal(current, previous, group, epsilon)
        terms.extend(
            p[cell] * (log_quotient(current[cell], previous[cell], epsilon) - whole)
            for cell in group
        )
    return math.fsum(terms)


def marginal(current: Counts, previous: Counts, group: list[Cell], epsilon: float) -> float:
    """log((C_o + alpha k_o) / (D_o + alpha k_o)) of one observation."""
    return log_quotient(
        sum(current[cell] for cell in group),
        sum(previous[cell] for cell in group),
        epsilon * len(group),
    )


def flow_share(current: Counts, in_flow: Callable[[Cell], bool]) -> float:
    """The share of the current pairs with a digit in a flow bin."""
    total = current.total()
    return sum(count for cell, count in current.items() if in_flow(cell)) / total if total else 0.0
