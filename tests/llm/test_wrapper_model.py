"""Anything a user may do, in any order, against a model of a few lines."""

import errno
import os
import pickle
import tempfile
from collections import Counter
from pathlib import Path

import gymnasium as gym
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wrapper_harness import Controller, Line, recorded

from kl_proteus import LLMTrainingWrapper

operations = st.lists(
    st.one_of(
        st.integers(0, 2),
        st.integers(0, 2),
        st.just("reset"),
        st.sampled_from(
            ["bad reward", "nan", "full disk", "close", "pickle", "load", "reset_kl", "save"]
        ),
    ),
    max_size=60,
)


class Fickle(gym.Wrapper):
    """Replaces the next reward."""

    next = None

    def step(self, action):
        observation, reward, *rest = super().step(action)
        reward, self.next = reward if self.next is None else self.next, None
        return observation, reward, *rest


def full_disk(descriptor, data):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Model:
    """What the wrapper has to keep in mind."""

    def __init__(self):
        self.episode = None  # the steps; None where there is nothing to record
        self.episodes = []
        self.place = None
        self.pairs = self.steps = self.updates = 0
        self.measured = False

    def step(self, place, action, ended):
        self.steps += 1
        self.pairs += self.place is not None
        self.measured |= self.pairs >= 4
        if self.episode is not None:
            self.episode.append((f"observation={self.place}", f"action {action}"))
        self.place = place
        if ended:
            if self.episode:
                self.episodes.append(tuple(self.episode))
                self.updates += self.measured
            self.abandon()

    def abandon(self):
        self.episode, self.measured = None, False


@given(operations)
def test_what_is_recorded_and_counted(operations):
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        line = Fickle(Line((3, 1, 6)))
        env = LLMTrainingWrapper(
            line, directory, window=2, min_window=1, kl_penalty_weight=Controller(factor=1.0)
        )
        model = Model()
        for operation in operations:
            recording = model.episode is not None
            if isinstance(operation, int):
                observation, _, ended, *_ = env.step(operation)
                model.step(int(observation), operation, ended)
            elif operation == "reset":
                model.place = int(env.reset()[0])
                model.abandon()
                model.episode = []
            elif operation in ("bad reward", "nan"):
                env.env.next = [1.0] if operation == "bad reward" else float("nan")
                with pytest.raises((TypeError, ValueError), match="reward must be"):
                    env.step(1)
                model.place = env.unwrapped._place
                model.abandon()
            elif operation == "full disk":
                try:
                    with pytest.MonkeyPatch.context() as patch:
                        patch.setattr(os, "write", full_disk)
                        observation, _, ended, *_ = env.step(1)
                    model.step(int(observation), 1, ended)
                    assert not ended or not recording
                except OSError:
                    assert recording
                    model.place = env.unwrapped._place
                    model.abandon()
            elif operation == "close":
                env.close()
            elif operation == "pickle":
                # The original lives on for a while and keeps its file.
                env = pickle.loads(pickle.dumps(env))
            elif operation == "load":
                env.load_kl_state_dict(env.kl_state_dict())
                model.abandon()
            elif operation == "reset_kl":
                env.reset_kl()
                model.pairs = 0
            elif model.episodes:
                assert env.save_all_trajectories().exists()
            else:
                with pytest.raises(ValueError, match="at least one completed episode"):
                    env.save_all_trajectories()
        found = [
            tuple(zip(row["observation_texts"], row["action_texts"], strict=True))
            for row in recorded(directory)
        ]
        assert Counter(found) == Counter(model.episodes)
        statistics = env.get_training_statistics()
        assert (statistics["num_steps"], statistics["num_episodes"]) == (
            model.steps,
            len(model.episodes),
        )
        assert env.get_kl_statistics()["steps"] == model.pairs
        assert len(env._shaping.penalty_weight.updates) == model.updates
        env.close()
