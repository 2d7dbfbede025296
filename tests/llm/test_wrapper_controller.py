"""A coefficient controller as the penalty weight: when it is updated, and with what."""

import copy
import math

import pytest
from wrapper_harness import Controller, Line, contents, names, on_line, play, recorded

from kl_proteus import LLMTrainingWrapper

# Windows of four pairs are full from the eighth step on: in the middle of the second episode.
FULL = 8


def test_one_update_per_completed_episode_with_what_its_full_windows_saw(tmp_path):
    controller = Controller()
    lengths = (5, 6, 4, 7)
    env = on_line(tmp_path, lengths=lengths, kl_penalty_weight=controller)
    values = [result[4]["kl_divergence"] for result in play(env, 4)]
    assert len(set(values[FULL - 1 :])) > 5
    expected = []
    end = 5
    for length in lengths[1:]:
        measured = values[max(end, FULL - 1) : end + length]
        expected.append((math.fsum(measured) / len(measured), length))
        end += length
    assert [n for _, n in controller.updates] == [6, 4, 7]
    for (mean, _), (by_hand, _) in zip(controller.updates, expected, strict=True):
        assert type(mean) is float
        assert mean == pytest.approx(by_hand, abs=1e-15)


def test_weight_in_use_is_the_value_at_that_step(tmp_path):
    controller = Controller(0.5, factor=2.0)
    env = on_line(tmp_path, lengths=(8,), kl_penalty_weight=controller, kl_threshold=0.01)
    weights = [0.5] * 8 + [1.0] * 8 + [2.0] * 8
    results = play(env, 3)
    penalties = [result[4]["kl_penalty"] for result in results]
    by_hand = [
        weight * max(0.0, result[4]["kl_divergence"] - 0.01) if n >= FULL else 0.0
        for n, (weight, result) in enumerate(zip(weights, results, strict=True), start=1)
    ]
    assert penalties == by_hand
    assert all(any(penalties[i : i + 8]) for i in (8, 16))
    assert controller.value == env.get_training_statistics()["kl_penalty_weight"] == 4.0


def test_not_updated_while_nothing_is_measured(tmp_path):
    controller = Controller()
    env = on_line(tmp_path, lengths=(3,), kl_penalty_weight=controller)
    play(env, 2)
    assert controller.updates == []
    play(env, 1)
    assert len(controller.updates) == 1


def test_not_updated_by_an_episode_that_did_not_end(tmp_path):
    controller = Controller()
    env = on_line(tmp_path, lengths=(20,), kl_penalty_weight=controller)
    for _ in range(3):
        env.reset()
        for n in range(19):
            env.step(n % 3)
    env.close()
    assert env.get_kl_statistics()["ready"]
    assert controller.updates == []
    # What those steps measured does not leak into the next episode either.
    results = play(env, 1, actions=[1])
    values = [result[4]["kl_divergence"] for result in results]
    assert controller.updates == [(pytest.approx(math.fsum(values) / 20, abs=1e-15), 20)]


def test_not_updated_by_an_episode_that_was_joined_in_the_middle(tmp_path):
    controller = Controller()
    line = Line((40, 9))
    line.reset()
    line.step(1)
    env = LLMTrainingWrapper(line, tmp_path, window=4, min_window=1, kl_penalty_weight=controller)
    for n in range(39):
        env.step(n % 3)
    assert env.get_kl_statistics()["ready"]
    assert controller.updates == []
    play(env, 1)
    assert [n for _, n in controller.updates] == [9]


def test_truncated_episodes_count(tmp_path):
    controller = Controller()
    play(on_line(tmp_path, lengths=(9,), truncates=True, kl_penalty_weight=controller), 2)
    assert [n for _, n in controller.updates] == [9, 9]


def test_a_copy_has_a_controller_of_its_own(tmp_path):
    controller = Controller()
    env = on_line(tmp_path, lengths=(9,), kl_penalty_weight=controller)
    play(env, 1)
    twin = copy.deepcopy(env)
    play(twin, 3)
    assert len(controller.updates) == 1
    assert twin.get_training_statistics()["kl_penalty_weight"] == 8.0
    assert env.get_training_statistics()["kl_penalty_weight"] == 1.0


def test_the_recorded_argument_is_the_controller_as_it_was(tmp_path):
    controller = Controller()
    env = on_line(tmp_path, lengths=(9,), kl_penalty_weight=controller)
    play(env, 3)
    assert controller.value == 4.0
    assert env._saved_kwargs["kl_penalty_weight"].value == 0.5
    assert env._saved_kwargs["kl_penalty_weight"].updates == []


class WithoutUpdate:
    value = 0.5
    unit = "nats/step"


@pytest.mark.parametrize(
    ("controller", "error", "message"),
    [
        (Controller(unit="nats/token"), ValueError, "the unit 'nats/step', got 'nats/token'"),
        (Controller(unit="nats/sequence"), ValueError, "got 'nats/sequence'"),
        (Controller(value=-1.0), ValueError, r"\.value must be >= 0, got -1.0"),
        (Controller(value=math.nan), ValueError, r"\.value must be a finite number, got nan"),
        (Controller(value="1"), TypeError, r"\.value must be a real number, got '1'"),
        (WithoutUpdate(), TypeError, "a controller with value, unit and update, got <"),
        (Controller, TypeError, "must be a real number or a controller"),
    ],
)
def test_controllers_that_cannot_be_used(tmp_path, controller, error, message):
    with pytest.raises(error, match=f"kl_penalty_weight.*{message}"):
        on_line(tmp_path / "new", kl_penalty_weight=controller)
    assert names(tmp_path) == []


class Refusing(Controller):
    """Refuses episodes of ten steps, as a controller does whose horizon is too short."""

    def update(self, current, n_steps=1):
        if n_steps == 10:
            raise ValueError("n_steps must be below the horizon")
        return super().update(current, n_steps)


def test_refused_update_comes_after_the_recording(tmp_path):
    controller = Refusing()
    env = on_line(tmp_path, lengths=(10, 9), kl_penalty_weight=controller)
    with pytest.raises(ValueError, match="n_steps must be below the horizon"):
        play(env, 1)
    assert [len(row["action_texts"]) for row in recorded(tmp_path)] == [10]
    assert controller.updates == []
    play(env, 1)
    assert [len(row["action_texts"]) for row in recorded(tmp_path)] == [10, 9]
    assert [n for _, n in controller.updates] == [9]
    assert env.get_training_statistics()["num_episodes"] == 2


def test_a_value_that_became_nan_reaches_neither_reward_nor_file(tmp_path):
    controller = Controller(factor=math.nan)
    env = on_line(tmp_path, lengths=(9,), kl_penalty_weight=controller, kl_threshold=1e-6)
    results = play(env, 1)
    before = contents(tmp_path)
    env.reset()
    with pytest.raises(ValueError, match=r"kl_penalty_weight\.value .* got nan"):
        env.step(1)
    assert all(math.isfinite(result[1]) for result in results)
    # The step happened and was not delivered, so this episode is not recorded.
    controller.value = 0.5
    ended = False
    while not ended:
        *_, ended, _, _ = env.step(1)
    assert contents(tmp_path) == before
    assert len(controller.updates) == 1
    play(env, 1)
    assert len(recorded(tmp_path)) == 2
    assert env.get_kl_statistics()["steps"] == 27
