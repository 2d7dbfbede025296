"""The texts of the wrapper: prompts, hooks, and errors that hooks make."""

import pickle
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from wrapper_harness import (
    Line,
    load,
    mean_of_image,
    names,
    on_line,
    parity,
    play,
    read_move,
    recorded,
    spy_of,
    write_move,
    write_place,
)

from kl_proteus import LLMTrainingWrapper

CALLABLES = {
    "observation_formatter": write_place,
    "action_formatter": write_move,
    "action_parser": read_move,
}
STRINGS = {name: f"wrapper_harness:{hook.__name__}" for name, hook in CALLABLES.items()}


def test_system_prompt_says_what_and_how(tmp_path):
    env = LLMTrainingWrapper(gym.make("CartPole-v1"), tmp_path)
    assert "pole" in env.system_prompt
    assert "one of these actions: LEFT, RIGHT" in env.system_prompt
    assert env.action_text(0) == "LEFT"
    assert env.observation_text([0.5, 0, 0, 0]).startswith("cart position=0.5, cart velocity=0")
    assert env.parse_action("Action: right.") == 1
    with pytest.raises(ValueError, match="one of these actions: LEFT, RIGHT"):
        env.parse_action("up")


def test_the_task_is_that_of_the_arguments_of_the_environment(tmp_path):
    prompts = {
        LLMTrainingWrapper(
            gym.make("FrozenLake-v1", is_slippery=is_slippery), tmp_path
        ).system_prompt
        for is_slippery in (False, True)
    }
    assert len(prompts) == 2


def test_an_unknown_environment_gets_the_generic_texts(tmp_path):
    env = on_line(tmp_path)
    assert env.observation_text(3) == "observation=3"
    assert env.action_text(np.array([2])) == "action 2"
    assert "action 0, action 1, action 2" in env.system_prompt


def test_task_description_replaces_the_task(tmp_path):
    env = LLMTrainingWrapper(gym.make("CartPole-v1"), tmp_path, task_description="Balance. 👑")
    play(env, 1)
    assert env.system_prompt.startswith("Balance. 👑\n\n")
    row = load(env.save_all_trajectories())[0]
    assert row["messages"][0] == {"role": "system", "content": env.system_prompt}
    assert recorded(tmp_path)[0]["system_prompt"] == env.system_prompt


@pytest.mark.parametrize("hooks", [CALLABLES, STRINGS], ids=["callables", "strings"])
def test_hooks_write_and_read(tmp_path, hooks):
    env = on_line(tmp_path, **hooks)
    play(env, 2)
    steps = spy_of(env).steps
    rows = load(env.save_all_trajectories())
    assert [row["messages"][1]["content"] for row in rows] == [f"at {o} ▲" for o, _, _ in steps]
    words = ["stay", "one", "two"]
    assert [row["messages"][2]["content"] for row in rows] == [words[a] for _, a, _ in steps]
    for action in range(3):
        parsed = env.parse_action(env.action_text(action))
        assert type(parsed) is np.int64
        assert parsed == action
    copied = pickle.loads(pickle.dumps(env))
    assert copied.observation_text(3) == "at 3 ▲"
    assert copied.parse_action("TWO") == 2


def test_words_of_a_formatter_are_read_without_a_parser(tmp_path):
    env = on_line(tmp_path, action_formatter=write_move)
    assert env.parse_action(" One. ") == 1
    assert "stay, one, two" in env.system_prompt


class Locked:
    """A hook that cannot be copied."""

    def __init__(self, function):
        self._lock = threading.Lock()
        self._function = function

    def __call__(self, value):
        with self._lock:
            return self._function(value)


def test_hooks_need_not_be_copyable(tmp_path):
    hooks = {name: Locked(hook) for name, hook in CALLABLES.items()}
    env = on_line(tmp_path, encoder=Locked(parity), **hooks)
    play(env, 1)
    assert recorded(tmp_path)[0]["observation_texts"][0] == "at 0 ▲"


class Failing:
    """Writes places except one; says what it was given."""

    def __init__(self, bad, result=None):
        self.bad = bad
        self.result = result

    def __call__(self, value):
        if int(value) == self.bad:
            if self.result is None:
                raise LookupError(f"no words for {int(value)}")
            return self.result[0]
        return f"value {int(value)}"


FAILURES = [
    (None, LookupError, "no words for 2"),
    ((None,), TypeError, "the result of {} must be a str, got None"),
    ((" \n",), ValueError, "the result of {} must hold at least one visible character"),
    (("\ud800",), ValueError, "the result of {} must be text that UTF-8 can encode"),
]


@pytest.mark.parametrize(("result", "error", "message"), FAILURES)
def test_failing_observation_formatter_stops_the_step_that_acts(tmp_path, result, error, message):
    env = on_line(tmp_path, observation_formatter=Failing(2, result))
    play(env, 1, actions=[0])
    env.reset()
    env.step(1)
    # The environment has been stepped to the place that has no words, and says so.
    assert env.step(1)[0] == 2
    before = env.kl_state_dict(), env.get_training_statistics(), len(spy_of(env).steps)
    for _ in range(2):
        with pytest.raises(error, match=message.format("observation_formatter")):
            env.step(1)
    assert (
        env.kl_state_dict(),
        env.get_training_statistics(),
        len(spy_of(env).steps),
    ) == before
    play(env, 1, actions=[0])
    assert [len(row["action_texts"]) for row in recorded(tmp_path)] == [4, 4]


def test_failing_observation_formatter_does_not_matter_at_the_end(tmp_path):
    env = on_line(tmp_path, lengths=(2,), observation_formatter=Failing(2))
    results = play(env, 3, actions=[1])
    assert results[-1][0] == 2
    assert [row["observation_texts"] for row in recorded(tmp_path)] == [["value 0", "value 1"]] * 3


@pytest.mark.parametrize(("result", "error", "message"), FAILURES)
def test_failing_action_formatter_steps_nothing(tmp_path, result, error, message):
    # Too many actions to ask for the words of each in advance.
    class Wide(Line):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.Discrete(5000)

    env = LLMTrainingWrapper(Wide(), tmp_path, action_formatter=Failing(2, result))
    env.reset()
    env.step(1)
    before = env.kl_state_dict(), env.get_training_statistics()
    with pytest.raises(error, match=message.format("action_formatter")):
        env.step(2)
    assert (env.kl_state_dict(), env.get_training_statistics()) == before
    # Another action is as good as if nothing had been tried.
    for action in (3, 4, 5):
        env.step(action)
    (row,) = recorded(tmp_path)
    assert row["action_texts"] == ["value 1", "value 3", "value 4", "value 5"]
    assert row["observation_texts"] == [f"observation={place}" for place in (0, 1, 4, 3)]


class Screen(gym.Env):
    """An image whose brightness is the action of the step before."""

    observation_space = spaces.Box(0, 255, (12, 12, 3), np.uint8)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        self._step = 0
        return np.zeros((12, 12, 3), np.uint8), {}

    def step(self, action):
        self._step += 1
        frame = np.full((12, 12, 3), 60 * int(action), np.uint8)
        return frame, float(action), self._step == 6, False, {}


@pytest.mark.parametrize("encoder", [mean_of_image, "wrapper_harness:mean_of_image"])
def test_an_image_needs_an_encoder(tmp_path, encoder):
    with pytest.raises(ValueError, match='give encoder="auto", or a function'):
        LLMTrainingWrapper(Screen(), tmp_path / "out", encoder=None)
    assert names(tmp_path) == []
    options = {"format_type": "preference", "window": 4, "min_window": 1, "obs_bins": 40}
    env = LLMTrainingWrapper(Screen(), tmp_path / "out", encoder=encoder, **options)
    play(env, 6)
    rows = recorded(tmp_path / "out")
    assert [len(row["observation_keys"]) for row in rows] == [6] * 6
    assert len({row["binning"] for row in rows}) == 1
    assert len({row["observation_keys"][0] for row in rows}) == 1
    assert len({key for row in rows for key in row["observation_keys"]}) == 4
    # A summary and no list of 432 numbers.
    assert max(len(text) for row in rows for text in row["observation_texts"]) < 200
    saved = load(env.save_all_trajectories())
    assert all(row["chosen"] != row["rejected"] for row in saved)
    assert env.get_kl_statistics()["ready"]


def test_failing_encoder_stops_the_step_that_acts(tmp_path):
    def encoder(observation):
        if int(observation) == 2:
            raise LookupError("no cell")
        return np.array([int(observation)])

    env = on_line(tmp_path, encoder=encoder)
    env.reset()
    env.step(1)
    env.step(1)
    before = env.kl_state_dict(), env.get_training_statistics()
    with pytest.raises(LookupError, match="no cell"):
        env.step(0)
    assert (env.kl_state_dict(), env.get_training_statistics()) == before
    play(env, 1, actions=[0])
    assert [len(row["action_texts"]) for row in recorded(tmp_path)] == [4]
