"""Training files of real environments: every row from what a spy inside the wrapper saw."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from wrapper_harness import Nested, Spy, cell, load, play

from kl_proteus import LLMTrainingWrapper

GAMMA = 0.9
MAP = ["SFF", "FHF", "FFG"]


def newest(name):
    """The registered id with the highest version."""
    found = [i for i in gym.registry if i.rpartition("-v")[0] == name]
    return max(found, key=lambda i: int(i.rpartition("-v")[2]))


MAKERS = {
    "CartPole": lambda: gym.make("CartPole-v1"),
    "FrozenLake": lambda: gym.make("FrozenLake-v1", desc=MAP, is_slippery=False),
    "Pendulum": lambda: gym.make("Pendulum-v1", max_episode_steps=60),
    "Taxi": lambda: gym.make(newest("Taxi"), max_episode_steps=80),
    "Blackjack": lambda: gym.make("Blackjack-v1"),
    "Nested": Nested,
}
EPISODES = {"Taxi": 4, "Pendulum": 4, "FrozenLake": 40, "Blackjack": 60}
# Few enough that cells are met again.
BINS = {"Pendulum": 4, "Nested": 2}


@pytest.fixture(scope="module", params=MAKERS)
def run(request, tmp_path_factory):
    """A recording of whole episodes, what a spy saw, and how to make more wrappers on it."""
    directory = tmp_path_factory.mktemp(request.param)
    bins = BINS.get(request.param, 10)

    def make(format_type, **arguments):
        env = Spy(MAKERS[request.param]())
        options = {"obs_bins": bins, "action_bins": bins, "window": 16, "gamma": GAMMA}
        return LLMTrainingWrapper(env, directory, format_type, **(options | arguments))

    env = make("chat")
    play(env, EPISODES.get(request.param, 12), seed=3)
    episodes = env.env.episodes
    env.close()
    return SimpleNamespace(make=make, episodes=episodes, bins=bins, env=env)


def prompt(env, observation):
    return [
        {"role": "system", "content": env.system_prompt},
        {"role": "user", "content": env.observation_text(observation)},
    ]


def answer(env, action):
    return {"role": "assistant", "content": env.action_text(action)}


def schema(value):
    """The shape of a row: names in their order, and types."""
    if isinstance(value, dict):
        return tuple((key, schema(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(map(schema, value))
    return type(value).__name__


def test_chat_has_a_row_per_step(run):
    env = run.make("chat")
    rows = load(env.save_all_trajectories("chat.jsonl"))
    steps = [step for episode in run.episodes for step in episode]
    assert rows == [{"messages": [*prompt(env, o), answer(env, a)]} for o, a, _ in steps]
    assert len({schema(row) for row in rows}) == 1


def test_completion_has_a_row_per_step(run):
    env = run.make("completion")
    rows = load(env.save_all_trajectories("completion.jsonl"))
    steps = [step for episode in run.episodes for step in episode]
    assert [row["prompt"] for row in rows] == [
        f"{env.system_prompt}\n\n{env.observation_text(o)}\nAction:" for o, _, _ in steps
    ]
    assert [row["completion"] for row in rows] == [f" {env.action_text(a)}" for _, a, _ in steps]
    assert {schema(row) for row in rows} == {(("prompt", "str"), ("completion", "str"))}


def preferences(run, env, min_margin):
    """The pairs that the definition asks for, by comparing everything with everything."""
    groups = {}
    for episode in run.episodes:
        value = 0.0
        steps = []
        for observation, action, reward in reversed(episode):
            value = float(reward) + GAMMA * value
            steps.append((value, observation, action))
        for value, observation, action in reversed(steps):
            where = cell(env.observation_space, observation, run.bins)
            move = cell(env.action_space, action, run.bins)
            groups.setdefault(where, []).append((value, observation, action, move))
    pairs = []
    for steps in groups.values():
        # Best first; of equal ones the later first.
        left = sorted(range(len(steps)), key=lambda i: (steps[i][0], i))
        while left:
            best = left.pop()
            for worst in left:
                if (
                    steps[worst][3] != steps[best][3]
                    and env.action_text(steps[worst][2]) != env.action_text(steps[best][2])
                    and steps[worst][0] < steps[best][0]
                    and steps[best][0] - steps[worst][0] >= min_margin
                ):
                    pairs.append((steps[best], steps[worst]))
                    left.remove(worst)
                    break
    return pairs


@pytest.mark.parametrize("min_margin", [0.0, 0.75])
def test_preferences_are_those_of_the_definition(run, min_margin):
    env = run.make("preference", min_margin=min_margin)
    rows = load(env.save_all_trajectories(f"preference-{min_margin}.jsonl"))
    pairs = preferences(run, env, min_margin)
    assert pairs
    assert rows == [
        {
            "prompt": prompt(env, better[1]),
            "chosen": [answer(env, better[2])],
            "rejected": [answer(env, worse[2])],
        }
        for better, worse in pairs
    ]
    assert len({schema(row) for row in rows}) == 1
    for row, (better, worse) in zip(rows, pairs, strict=True):
        assert row["chosen"] != row["rejected"]
        for side, action in (("chosen", better[2]), ("rejected", worse[2])):
            parsed = env.parse_action(row[side][0]["content"])
            assert env.action_space.contains(parsed)
            assert_same_action(env.action_space, parsed, action)


def assert_same_action(space, parsed, action):
    """Equal to the last bit, with the dtypes and shapes of the space."""
    if isinstance(space, gym.spaces.Dict):
        assert list(parsed) == list(space)
        for key, part in space.items():
            assert_same_action(part, parsed[key], action[key])
        return
    parsed = np.asarray(parsed)
    assert (parsed.dtype, parsed.shape) == (space.dtype, space.shape)
    assert parsed.tobytes() == np.asarray(action, space.dtype).tobytes()


def test_every_action_that_was_taken_is_read_back(run):
    env = run.env
    for episode in run.episodes:
        for _, action, _ in episode:
            assert_same_action(env.action_space, env.parse_action(env.action_text(action)), action)


def test_gamma_decides_who_is_preferred(tmp_path):
    # Step 0 of the first episode earns more at once, that of the second more in the end.
    script = {0: [(0, 1.0), (0, 0.0)], 1: [(1, 0.0), (1, 2.0)]}

    class Bandit(gym.Env):
        observation_space = gym.spaces.Discrete(2)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            self._step = 0
            return np.int64(0), {}

        def step(self, action):
            reward = script[int(action)][self._step][1]
            self._step += 1
            return np.int64(1), reward, self._step == 2, False, {}

    chosen = {}
    for gamma in (0.0, 1.0):
        env = LLMTrainingWrapper(Bandit(), tmp_path / str(gamma), "preference", gamma=gamma)
        for action in (0, 1):
            play(env, 1, actions=[action])
        row = load(env.save_all_trajectories())[0]
        assert row["prompt"][-1]["content"] == env.observation_text(0)
        chosen[gamma] = row["chosen"][0]["content"]
    assert chosen == {0.0: "action 0", 1.0: "action 1"}


def test_shaping_does_not_change_who_is_preferred(tmp_path):
    options = {"window": 4, "min_window": 1, "format_type": "preference", "obs_bins": 3}
    files = []
    for name, weight in (("with", 50.0), ("without", 0.0)):
        directory = tmp_path / name
        options |= {"kl_penalty_weight": weight, "kl_threshold": 0.01, "kl_bonus_weight": weight}
        env = LLMTrainingWrapper(gym.make("CartPole-v1"), directory, **options)
        rewards = {result[1] for result in play(env, 8)}
        assert (len(rewards) > 1) == (weight > 0)
        files.append(env.save_all_trajectories().read_bytes())
    assert files[0] == files[1]
