"""A step that is cut short makes no pair of an observation and an action that never met."""

import numpy as np
import pytest
from gymnasium import spaces

from environments.scripted import Scripted
from kl_proteus import JointKLDivergenceWrapper, LLMTrainingWrapper


class Unreadable:
    """An observation that raises what it was given when it is read as an array."""

    def __init__(self, error):
        self.error = error

    def __array__(self, dtype=None, copy=None):
        raise self.error


def counted(wrapper):
    """Every pair that was counted, by its keys."""
    rows = wrapper.snapshot()["counts"]
    return {(o, a): n for o, row in rows.items() for a, n in row.items()}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)], ids=type)
def test_an_observation_that_cannot_be_read_is_met_by_no_action(error):
    box = spaces.Box(0, 8, (2,), np.int64)
    readable = [np.array([i, i]) for i in range(4)]
    env = Scripted([readable[0], readable[1], Unreadable(error), readable[3], readable[3]], box)
    wrapper = JointKLDivergenceWrapper(env, window=None)
    wrapper.reset()
    wrapper.step(0)
    with pytest.raises(type(error)):
        wrapper.step(1)
    # The pair before it has happened; what answers the unreadable observation makes none.
    wrapper.step(0)
    wrapper.step(0)
    keys = [str(wrapper._tracker.observation.key(o)) for o in readable]
    assert counted(wrapper) == {(keys[0], "0"): 1, (keys[1], "1"): 1, (keys[3], "0"): 1}


class Interrupted(Scripted):
    """Is interrupted in its second step, after it has moved."""

    def step(self, action):
        result = super().step(action)
        if self.at == 2 and not self.done_once:
            self.done_once = True
            raise KeyboardInterrupt
        return result

    done_once = False


@pytest.mark.parametrize(
    "options", [{}, {"encoder": lambda observation: [observation]}], ids=["plain", "encoder"]
)
@pytest.mark.parametrize("kind", [JointKLDivergenceWrapper, LLMTrainingWrapper])
def test_an_interrupted_step_leaves_nothing_waiting(kind, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = Interrupted([0, 1, 2, 3, 4], spaces.Discrete(9))
    wrapper = kind(env, window=None, **options)
    wrapper.reset()
    wrapper.step(0)
    with pytest.raises(KeyboardInterrupt):
        wrapper.step(1)
    assert wrapper.kl_state_dict()["observed"] is None
    for _ in range(2):
        wrapper.step(0)
    assert counted(wrapper) == {("0", "0"): 1, ("3", "0"): 1}
    if kind is LLMTrainingWrapper:
        assert wrapper.get_training_statistics()["num_episodes"] == 0
        assert list((tmp_path / "training_data").iterdir()) == []
