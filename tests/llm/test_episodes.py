"""Episodes: the constant schema, what is refused, and discounted returns."""

import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from episode_factory import make_episode
from hypothesis import given
from hypothesis import strategies as st

from kl_proteus.llm.recording.episodes import Episode, EpisodeBuilder, Step, returns_to_go

FIELDS = [
    "format",
    "version",
    "env_id",
    "episode",
    "system_prompt",
    "binning",
    "observation_texts",
    "action_texts",
    "observation_keys",
    "action_keys",
    "base_rewards",
    "shaped_rewards",
    "kl_penalties",
    "kl_bonuses",
    "kl_divergences",
    "kl_observations",
    "kl_policies",
    "terminated",
    "truncated",
]

NUMBERS = (1.0, 0.9, 0.2, 0.1, 0.3, 0.2, 0.1)


def builder_with(n):
    builder = EpisodeBuilder("Env-v0", "Go.")
    for step in range(n):
        builder.append(f"o{step}", f"a{step}", step, 2**128 - 1, *NUMBERS)
    return builder


def test_row_has_the_documented_fields_in_order():
    row = make_episode().to_row()
    assert list(row) == FIELDS
    assert row["format"] == "kl_proteus.episode"
    assert row["version"] == 1


def test_row_round_trips_through_json():
    episode = make_episode((0.1, -2.5e-300, 3.0), observations=[5, 2**128 - 1, 0])
    assert Episode.from_row(json.loads(json.dumps(episode.to_row()))) == episode


def test_integers_become_floats():
    row = make_episode((0, 1, np.float32(0.5))).to_row()
    assert json.dumps(row["base_rewards"]) == "[0.0, 1.0, 0.5]"
    row["base_rewards"] = [0, 1, 2]
    assert all(type(reward) is float for reward in Episode.from_row(row).base_rewards)


def test_steps_match_the_columns():
    episode = builder_with(2).finish(terminated=False, truncated=True)
    assert len(episode) == 2
    assert list(episode.steps()) == [
        Step(f"o{i}", f"a{i}", str(i), str(2**128 - 1), *NUMBERS) for i in range(2)
    ]
    assert (episode.terminated, episode.truncated) == (False, True)


def test_builder_starts_over_after_finish():
    builder = builder_with(3)
    assert len(builder) == 3
    assert len(builder.finish(terminated=True, truncated=False)) == 3
    assert len(builder) == 0
    assert builder.finish(terminated=True, truncated=False) is None


def test_discard_forgets_the_steps():
    builder = builder_with(3)
    builder.discard()
    assert builder.finish(terminated=True, truncated=False) is None


def test_failed_finish_keeps_the_steps():
    builder = builder_with(1)
    with pytest.raises(TypeError, match="terminated must be a bool, got 1"):
        builder.finish(terminated=1, truncated=False)
    assert len(builder.finish(terminated=True, truncated=False)) == 1


@pytest.mark.parametrize(
    ("position", "value", "error", "message"),
    [
        (0, 3, TypeError, "observation_text must be a str, got 3"),
        (0, "\ud800", ValueError, "observation_text must be text that UTF-8 can encode"),
        (1, " \n", ValueError, "action_text must hold at least one visible character"),
        (4, math.nan, ValueError, "base_reward must be a finite number, got nan"),
        (5, math.inf, ValueError, "shaped_reward must be a finite number, got inf"),
        (10, None, TypeError, "kl_policy must be a real number, got None"),
    ],
)
def test_builder_reports_a_bad_step_and_stays_as_it_was(position, value, error, message):
    builder = builder_with(1)
    arguments = ["o", "a", 1, 2, *NUMBERS]
    arguments[position] = value
    with pytest.raises(error, match=message):
        builder.append(*arguments)
    assert len(builder) == 1


def test_builder_takes_large_numbers_whose_sum_overflows():
    builder = EpisodeBuilder("Env-v0")
    builder.append("o", "a", 0, 0, 1.7e308, 1.7e308, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert builder.finish(terminated=True, truncated=False).base_rewards == (1.7e308,)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"env_id": ""}, ValueError, "env_id must hold"),
        ({"episode": -1}, ValueError, "episode must be >= 0, got -1"),
        ({"episode": True}, TypeError, "episode must be an int, got True"),
        ({"truncated": None}, TypeError, "truncated must be a bool, got None"),
        ({"action_texts": "a"}, TypeError, "action_texts must be a sequence"),
        ({"action_texts": ("a", "b")}, ValueError, r"action_texts must have one entry .* got 2"),
        ({"action_texts": ("",)}, ValueError, r"action_texts\[0\] must hold"),
        ({"observation_texts": (None,)}, TypeError, r"observation_texts\[0\] must be a str"),
        ({"observation_texts": ("\udfff",)}, ValueError, r"observation_texts\[0\] must be text"),
        ({"observation_keys": (7,)}, TypeError, r"observation_keys\[0\] must be a str"),
        ({"observation_keys": ("07",)}, ValueError, r"observation_keys\[0\] must be a decimal"),
        ({"action_keys": (str(2**128),)}, ValueError, r"action_keys\[0\] must be a decimal"),
        ({"action_keys": ("٣",)}, ValueError, r"action_keys\[0\] must be a decimal"),
        ({"kl_bonuses": (math.nan,)}, ValueError, r"kl_bonuses\[0\] must be a finite number"),
        ({"kl_policies": (True,)}, TypeError, r"kl_policies\[0\] must be a real number"),
        ({"kl_policies": (10**400,)}, ValueError, r"kl_policies\[0\] must be a finite number"),
    ],
)
def test_episode_refuses_illegal_fields(change, error, message):
    with pytest.raises(error, match=message):
        replace(make_episode(), **change)


def test_episode_without_steps_is_refused():
    empty = {field.name: () for field in fields(Episode) if field.type.startswith("tuple")}
    with pytest.raises(ValueError, match="at least one step"):
        replace(make_episode(), **empty)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version must be .* got .*2"),
        ({"format": None}, "format"),
        ({"extra": 1}, "unknown.*extra"),
    ],
)
def test_rows_of_another_schema_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Episode.from_row({**make_episode().to_row(), **change})


def test_missing_fields_are_named():
    row = make_episode().to_row()
    del row["kl_bonuses"]
    with pytest.raises(ValueError, match=r"missing.*kl_bonuses"):
        Episode.from_row(row)
    with pytest.raises(TypeError, match="row must be a JSON object, got list"):
        Episode.from_row([row])


def test_returns_to_go():
    assert returns_to_go([1.0, 2.0, 4.0], 0.5) == [3.0, 4.0, 4.0]
    assert returns_to_go([1, 2, 4], 0.0) == [1.0, 2.0, 4.0]
    assert returns_to_go(np.ones(3), 1.0) == [3.0, 2.0, 1.0]
    assert returns_to_go([], 0.9) == []


@given(st.lists(st.floats(-1e6, 1e6), max_size=50), st.floats(0.0, 1.0))
def test_returns_to_go_equal_the_definition(rewards, gamma):
    expected = [
        math.fsum(reward * gamma**k for k, reward in enumerate(rewards[step:]))
        for step in range(len(rewards))
    ]
    np.testing.assert_allclose(returns_to_go(rewards, gamma), expected, rtol=1e-12, atol=1e-6)


@pytest.mark.parametrize("gamma", [-0.1, 1.1, math.nan, math.inf])
def test_illegal_gamma(gamma):
    with pytest.raises(ValueError, match="gamma must be"):
        returns_to_go([1.0], gamma)


def test_illegal_rewards():
    with pytest.raises(ValueError, match=r"rewards\[1\] must be a finite number"):
        returns_to_go([1.0, math.nan], 0.9)
    with pytest.raises(ValueError, match="rewards must have finite discounted sums"):
        returns_to_go([1.7e308, 1.7e308], 1.0)
    with pytest.raises(TypeError, match="gamma must be a real number, got True"):
        returns_to_go([1.0], True)
