"""Preference pairs: two actions in the same observation cell, ranked by what followed.

Steps of all episodes are grouped by observation cell. Inside a group the step with the highest
discounted return-to-go of the base reward is matched with the lowest one of another action, then
the next highest, and so on; every step is used at most once, and no two steps left over could form
a pair. The matching depends only on the episodes and their order.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kl_proteus import _checks
from kl_proteus.llm.recording.episodes import Episode, check_episode, returns_to_go

__all__ = ["PreferencePair", "PreferenceReport", "find_preferences"]

# Steps looked at per chosen step that turn out to have its text. Only a formatter that gives many
# action cells the same text comes near this; it keeps n steps at O(n log n) then too, at the price
# of a pair that may be missed.
_LOOK_AHEAD = 32


class PreferencePair(NamedTuple):
    """Two steps of the same observation cell, the better one first.

    Attributes:
        system_prompt: Task description of the chosen step's episode; may be empty.
        observation_text: Observation of the chosen step.
        chosen_text: Action with the higher return-to-go.
        rejected_text: Action with the lower return-to-go; another cell and another text.
        chosen_return: Discounted return-to-go of the chosen step.
        rejected_return: Discounted return-to-go of the rejected step.
        chosen_step: Which step was chosen, counted from 0 over the steps of all episodes.
        rejected_step: Which step was rejected, counted the same way.
    """

    system_prompt: str
    observation_text: str
    chosen_text: str
    rejected_text: str
    chosen_return: float
    rejected_return: float
    chosen_step: int
    rejected_step: int


@dataclass(slots=True)
class PreferenceReport:
    """What became of the steps: ``steps == 2 * pairs + ties + unmatched``.

    Attributes:
        episodes: Episodes read.
        steps: Steps read.
        groups: Observation cells seen.
        pairs: Pairs made.
        ties: Steps left over because the other actions were not worse by the margin.
        unmatched: Steps left over because no step with another action remained.
    """

    episodes: int = 0
    steps: int = 0
    groups: int = 0
    pairs: int = 0
    ties: int = 0
    unmatched: int = 0


class _Candidate(NamedTuple):
    """A step, in the order in which steps are ranked."""

    value: float
    order: int
    action_key: str
    action_text: str
    observation_text: str
    system_prompt: str


@dataclass(slots=True)
class _Group:
    """The steps of a group that are not used yet, per action cell and best last."""

    queues: dict[str, deque[_Candidate]] = field(default_factory=dict)
    # One entry per action cell that is not empty: its worst step.
    heads: list[tuple[float, int, str]] = field(default_factory=list)


def find_preferences(
    episodes: Iterable[Episode], *, gamma: float = 0.99, min_margin: float = 0.0
) -> tuple[list[PreferencePair], PreferenceReport]:
    """Match the steps of episodes into preference pairs.

    A pair has the same environment, binning and observation key, different action keys and
    different action texts, and the return-to-go of the chosen step is strictly higher, by at least
    ``min_margin``.
    The returns of a truncated episode are cut at its last step, so late steps of truncated
    episodes rank lower than they would in full.

    The texts of all steps are held in memory.

    Args:
        episodes: Completed episodes.
        gamma: Discount factor of the return-to-go, in [0, 1].
        min_margin: Smallest difference of returns that counts, finite and >= 0.

    Returns:
        The pairs, group by group in the order the groups first occur, and what became of the
        steps.

    Raises:
        TypeError: If ``gamma`` or ``min_margin`` is not a real number, or an item is no `Episode`.
        ValueError: If ``gamma`` or ``min_margin`` is outside its range, or a return overflows.
    """
    gamma = _checks.real_number("gamma", gamma, minimum=0.0, maximum=1.0)
    min_margin = _checks.real_number("min_margin", min_margin, minimum=0.0)
    report = PreferenceReport()
    groups = _group(episodes, gamma, report)
    report.groups = len(groups)
    pairs: list[PreferencePair] = []
    while groups:
        # Taking each group out lets its steps go as soon as they are matched.
        steps = groups.pop(next(iter(groups)))
        pairs.extend(_match(steps, min_margin, report))
    report.pairs = len(pairs)
    return pairs, report


def _group(
    episodes: Iterable[Episode], gamma: float, report: PreferenceReport
) -> dict[tuple[str, str, str], list[_Candidate]]:
    """Collect the steps of each observation cell."""
    groups: dict[tuple[str, str, str], list[_Candidate]] = {}
    # Few keys and actions are repeated many times, so keep one copy of each.
    known: dict[str, str] = {}
    for episode in map(check_episode, episodes):
        report.episodes += 1
        values = returns_to_go(episode.base_rewards, gamma)
        for index, value in enumerate(values):
            candidate = _Candidate(
                value,
                report.steps,
                known.setdefault(episode.action_keys[index], episode.action_keys[index]),
                known.setdefault(episode.action_texts[index], episode.action_texts[index]),
                episode.observation_texts[index],
                episode.system_prompt,
            )
            key = (episode.env_id, episode.binning, episode.observation_keys[index])
            groups.setdefault(key, []).append(candidate)
            report.steps += 1
    return groups


def _match(
    steps: list[_Candidate], min_margin: float, report: PreferenceReport
) -> Iterator[PreferencePair]:
    """Match the best steps of a group with its worst ones."""
    ranked = sorted(steps)
    group = _Group()
    for step in ranked:
        group.queues.setdefault(step.action_key, deque()).append(step)
    group.heads = [(queue[0].value, queue[0].order, key) for key, queue in group.queues.items()]
    heapq.heapify(group.heads)
    used: set[int] = set()
    for chosen in reversed(ranked):
        if chosen.order in used:
            continue
        # The best step left is the best of its action cell.
        group.queues[chosen.action_key].pop()
        rejected, has_other = _take_worst(group, chosen, min_margin)
        if rejected is not None:
            used.add(rejected.order)
            yield PreferencePair(
                system_prompt=chosen.system_prompt,
                observation_text=chosen.observation_text,
                chosen_text=chosen.action_text,
                rejected_text=rejected.action_text,
                chosen_return=chosen.value,
                rejected_return=rejected.value,
                chosen_step=chosen.order,
                rejected_step=rejected.order,
            )
        elif has_other:
            report.ties += 1
        else:
            report.unmatched += 1


def _take_worst(
    group: _Group, chosen: _Candidate, min_margin: float
) -> tuple[_Candidate | None, bool]:
    """Remove the worst step with another action; also tell whether there was another action."""
    visited: list[str] = []
    looked_at = 0
    rejected: _Candidate | None = None
    has_other = False
    while group.heads and looked_at < _LOOK_AHEAD and rejected is None:
        value, _, key = heapq.heappop(group.heads)
        queue = group.queues[key]
        if not queue:
            continue
        visited.append(key)
        if key == chosen.action_key:
            continue
        if not _is_worse(value, chosen.value, min_margin):
            # The heads come in order, so no later one is worse enough either.
            has_other = True
            break
        for index, step in enumerate(queue):
            if step.action_text != chosen.action_text:
                has_other = True
                if _is_worse(step.value, chosen.value, min_margin):
                    rejected = step
                    del queue[index]
                break
            looked_at += 1
            if looked_at >= _LOOK_AHEAD:
                break
    for key in visited:
        queue = group.queues[key]
        if queue:
            heapq.heappush(group.heads, (queue[0].value, queue[0].order, key))
    return rejected, has_other


def _is_worse(value: float, best: float, min_margin: float) -> bool:
    return value < best and best - value >= min_margin
