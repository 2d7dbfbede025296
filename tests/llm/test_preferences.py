"""Preference pairs: which steps may be paired, and that no possible pair is left over."""

import math
import time

import pytest
from episode_factory import make_episode
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_proteus.llm.preferences import find_preferences
from kl_proteus.llm.recording.episodes import returns_to_go


@st.composite
def recordings(draw):
    """Episodes with few cells, few actions, tied rewards, and texts that several cells share."""
    episodes = []
    for number in range(draw(st.integers(0, 6))):
        n = draw(st.integers(1, 8))
        columns = [
            draw(st.lists(values, min_size=n, max_size=n))
            for values in (
                st.sampled_from([0.0, 1.0, 1.5, -2.0]),
                st.integers(0, 2),
                st.integers(0, 3),
                st.sampled_from("xyz"),
            )
        ]
        rewards, observations, actions, texts = columns
        episode = make_episode(
            rewards,
            observations=observations,
            actions=actions,
            texts=texts,
            system_prompt=str(number),
        )
        episodes.append(episode)
    return episodes


@settings(max_examples=300)
@given(recordings(), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 2.0]))
def test_pairs_are_legal_and_none_is_left_over(episodes, gamma, min_margin):
    pairs, report = find_preferences(episodes, gamma=gamma, min_margin=min_margin)
    steps = [step for episode in episodes for step in episode.steps()]
    prompts = [episode.system_prompt for episode in episodes for _ in episode.steps()]
    values = [v for episode in episodes for v in returns_to_go(episode.base_rewards, gamma)]

    def is_pair(better, worse):
        a, b = steps[better], steps[worse]
        return (
            a.observation_key == b.observation_key
            and a.action_key != b.action_key
            and a.action_text != b.action_text
            and values[better] > values[worse]
            and values[better] - values[worse] >= min_margin
        )

    for pair in pairs:
        better, worse = pair.chosen_step, pair.rejected_step
        assert is_pair(better, worse)
        assert pair == (
            prompts[better],
            steps[better].observation_text,
            steps[better].action_text,
            steps[worse].action_text,
            values[better],
            values[worse],
            better,
            worse,
        )
    used = [step for pair in pairs for step in (pair.chosen_step, pair.rejected_step)]
    assert len(used) == len(set(used))
    left = set(range(len(steps))) - set(used)
    assert not any(is_pair(a, b) for a in left for b in left)

    assert report.episodes == len(episodes)
    assert report.steps == len(steps) == 2 * report.pairs + report.ties + report.unmatched
    assert report.pairs == len(pairs)
    assert report.groups == len({step.observation_key for step in steps})
    assert find_preferences(iter(episodes), gamma=gamma, min_margin=min_margin) == (pairs, report)


def one_cell(rewards, actions, texts=None):
    """One-step episodes that all saw the same cell."""
    texts = texts or [f"act {action}" for action in actions]
    return [
        make_episode((reward,), observations=[0], actions=[action], texts=[text])
        for reward, action, text in zip(rewards, actions, texts, strict=True)
    ]


def test_the_best_meets_the_worst():
    pairs, _ = find_preferences(one_cell([3.0, 0.0, 2.0, 1.0], [0, 1, 0, 1]))
    assert [(p.chosen_return, p.rejected_return) for p in pairs] == [(3.0, 0.0), (2.0, 1.0)]


def test_the_prompt_is_that_of_the_chosen_step():
    better = make_episode((2.0,), observations=[0], actions=[0], padding=" b", system_prompt="B")
    worse = make_episode((1.0,), observations=[0], actions=[1], padding=" w", system_prompt="W")
    (pair,), _ = find_preferences([worse, better])
    assert (pair.system_prompt, pair.observation_text) == ("B", "obs 0 b")


def test_what_follows_counts_and_not_the_reward_of_the_step():
    early = make_episode((0.0, 10.0), observations=[0, 1], actions=[0, 0])
    late = make_episode((1.0, 0.0), observations=[0, 2], actions=[1, 0])
    (pair,), _ = find_preferences([early, late], gamma=0.9)
    assert (pair.chosen_text, pair.chosen_return) == ("act 0", 9.0)
    (pair,), _ = find_preferences([early, late], gamma=0.0)
    assert (pair.chosen_text, pair.chosen_return) == ("act 1", 1.0)


@pytest.mark.parametrize(
    ("rewards", "actions", "texts", "ties", "unmatched"),
    [
        ([1.0, 1.0], [0, 1], None, 1, 1),
        ([2.0, 1.0], [0, 0], None, 0, 2),
        ([2.0, 1.0], [0, 1], ["same", "same"], 0, 2),
        ([2.0, 1.0], [0, 0], ["a", "b"], 0, 2),
        ([1.0], [0], None, 0, 1),
    ],
)
def test_reasons_for_no_pair(rewards, actions, texts, ties, unmatched):
    pairs, report = find_preferences(one_cell(rewards, actions, texts))
    assert pairs == []
    assert (report.ties, report.unmatched) == (ties, unmatched)


def test_margin_is_inclusive():
    episodes = one_cell([1.5, 1.0], [0, 1])
    assert len(find_preferences(episodes, min_margin=0.5)[0]) == 1
    assert find_preferences(episodes, min_margin=0.5001)[0] == []


def test_environments_are_not_mixed():
    episodes = [
        make_episode((2.0,), observations=[0], actions=[0], env_id="A-v0"),
        make_episode((1.0,), observations=[0], actions=[1], env_id="B-v0"),
    ]
    assert find_preferences(episodes)[0] == []


@pytest.mark.parametrize("kind", ["two actions", "one action", "one text", "all different"])
def test_large_groups_take_near_linear_time(kind):
    n = 20_000
    actions = {"two actions": [i % 2 for i in range(n)], "one action": [0] * n}.get(kind, range(n))
    texts = ["same"] * n if kind == "one text" else [f"text {i}" for i in range(n)]
    if kind == "two actions":
        texts = [f"text {action}" for action in actions]
    episode = make_episode([1.0] * n, observations=[0] * n, actions=actions, texts=texts)
    began = time.process_time()
    pairs, _ = find_preferences([episode], gamma=0.9999)
    # 0.1 to 0.5 s; work that grows with the square of the group takes minutes.
    assert time.process_time() - began < 20.0
    assert len(pairs) == (0 if kind in ("one action", "one text") else n // 2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"gamma": 1.01}, ValueError, "gamma must be >= 0 and <= 1, got 1.01"),
        ({"gamma": None}, TypeError, "gamma must be a real number, got None"),
        ({"min_margin": -1e-9}, ValueError, "min_margin must be >= 0"),
        ({"min_margin": math.inf}, ValueError, "min_margin must be a finite number, got inf"),
        ({"min_margin": False}, TypeError, "min_margin must be a real number, got False"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        find_preferences([], **arguments)


def test_steps_of_different_binnings_are_not_of_one_cell():
    better = make_episode((2.0,), observations=[0], actions=[0], binning="coarse")
    worse = make_episode((1.0,), observations=[0], actions=[1], binning="fine")
    pairs, report = find_preferences([better, worse])
    assert (pairs, report.groups) == ([], 2)
