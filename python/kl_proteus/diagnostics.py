"""What a drift may be blind to, and what to do about it."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

__all__ = ["AxisUse", "Finding", "axis_uses", "findings", "is_worth_a_look", "warning_text"]

_RANGED = frozenset({"regular", "unbounded", "lower_bounded", "upper_bounded", "integer"})

LEAST_SUPPORT = 0.5
LEAST_COVERAGE = 0.6
ONE_BIN = 0.99
MOST_FLOW = 0.01
LEAST_EPISODES = 10
LEAST_PAIRS = 100
"""A share of a hundredth means something from so many pairs on."""


class AxisUse(NamedTuple):
    """How the newest pairs lie on an axis.

    Attributes:
        name: Name of the axis.
        tells_apart: Whether a range divides it in more than one bin.
        odd_bins: Whether zero lies inside a bin because their number is odd.
        flow: Share of the pairs outside its range.
        fullest: Share of the pairs in its fullest bin.
    """

    name: str
    tells_apart: bool
    odd_bins: bool
    flow: float
    fullest: float


class Finding(NamedTuple):
    """Something that the divergence cannot show.

    Attributes:
        code: What kind it is, such as "low_support".
        severity: "warning", or "note" where the value can still be believed.
        message: What was measured.
        remedy: What to do about it.
    """

    code: str
    severity: Literal["warning", "note"]
    message: str
    remedy: str


def axis_uses(
    axes: Sequence[dict[str, Any]], shares: Sequence[tuple[str, float, float]]
) -> list[AxisUse]:
    """How the newest pairs lie on each axis.

    Args:
        axes: Axes as a snapshot describes them.
        shares: Name, share outside the range, and share of the fullest bin of each.
    """
    by_name = {axis["name"]: axis for axis in axes}
    return [
        AxisUse(name, _tells_apart(by_name[name]), _odd(by_name[name]), flow, fullest)
        for name, flow, fullest in shares
        if name in by_name
    ]


def _tells_apart(axis: dict[str, Any]) -> bool:
    """Whether a range divides the axis in more than one bin: a category is what it is."""
    return axis["kind"] in _RANGED and axis["bins"] > 1


def _odd(axis: dict[str, Any]) -> bool:
    """Whether zero is in the middle of a bin where it is the middle of the range."""
    centred = axis["kind"] == "unbounded" or (
        axis["kind"] == "regular" and axis["low"] == -axis["high"]
    )
    return centred and axis["bins"] > 1 and axis["bins"] % 2 == 1


def findings(statistics: dict[str, Any], axes: Sequence[AxisUse], pairs: int) -> list[Finding]:
    """What there is to say against the newest value.

    Args:
        statistics: What `get_kl_statistics` returns.
        axes: The axes of the pairs.
        pairs: Pairs of the newest distribution.

    Returns:
        Warnings before notes.
    """
    if statistics["steps"] == 0:
        return []
    found: list[Finding] = []
    support, coverage = statistics["support"], statistics["coverage"]
    if support < LEAST_SUPPORT:
        found.append(
            Finding(
                "low_support",
                "warning",
                f"{support:.0%} of the newest pairs lie in observation cells with at least five "
                "earlier pairs, so a change of policy elsewhere does not show in kl_policy",
                "fewer obs_bins or action_bins, a longer window, or an encoder",
            )
        )
    if coverage < LEAST_COVERAGE:
        found.append(
            Finding(
                "low_coverage",
                "warning",
                f"coverage is {coverage:.0%}: most cells hold a single pair, and two samples of "
                "one behaviour hardly meet",
                "fewer obs_bins or action_bins, a longer window, or an encoder",
            )
        )
    for axis in axes:
        if axis.flow > MOST_FLOW:
            found.append(
                Finding(
                    "flow",
                    "warning",
                    f"{axis.flow:.1%} of the pairs lie outside the range of {axis.name}, where "
                    "all values are one",
                    "a wider obs_range or action_range",
                )
            )
        elif axis.tells_apart and axis.fullest >= ONE_BIN:
            found.append(
                Finding(
                    "one_bin",
                    "warning",
                    f"{axis.fullest:.1%} of the pairs lie in one bin of {axis.name}, which says "
                    "nothing then",
                    "a narrower obs_range or action_range, or another obs_scale",
                )
            )
    if statistics["episodes_in_window"] < LEAST_EPISODES:
        found.append(
            Finding(
                "few_episodes",
                "note",
                f"the windows hold {statistics['episodes_in_window']} episodes, whose differences "
                "are large",
                "a window of at least ten episodes before kl_pvalue is believed",
            )
        )
    if statistics["cells"] > pairs:
        found.append(
            Finding(
                "many_cells",
                "note",
                f"{statistics['cells']} cells are occupied, more than the {pairs} newest pairs",
                "fewer obs_bins or action_bins, or a longer window",
            )
        )
    odd = [axis.name for axis in axes if axis.odd_bins]
    if odd:
        found.append(
            Finding(
                "odd_bins",
                "note",
                f"an odd number of bins puts the middle of the range inside one: {', '.join(odd)}",
                "an even number, where the sign of a value matters",
            )
        )
    return found


def is_worth_a_look(statistics: dict[str, Any], pairs: int) -> bool:
    """Whether there are enough pairs for a warning: full windows, and not too few."""
    return bool(statistics["ready"]) and pairs >= LEAST_PAIRS


def warning_text(found: Sequence[Finding]) -> str | None:
    """One text of all warnings; None without any."""
    lines = [f"{one.message}. Remedy: {one.remedy}." for one in found if one.severity == "warning"]
    if not lines:
        return None
    return "the KL drift may be blind: " + " ".join(lines) + " See kl_diagnostics()."
