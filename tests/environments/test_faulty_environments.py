"""The complaints about environments that misbehave: the counts stay right."""

import copy

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from environments.scripted import (
    INFO_KEYS,
    Scripted,
    Walk,
    make_walk,
    pairs_of,
    play,
    random_actions,
    twin_of,
    values,
)
from kl_proteus import JointKLDivergenceWrapper

NAN = float("nan")
BOX = spaces.Box(-1.0, 1.0, (2,), np.float64)


class Boom(Exception):
    """What the environments below raise."""


class Failing(Walk):
    """Raises in the steps and resets that it is told to, without moving."""

    def __init__(self, steps=(), resets=()):
        super().__init__()
        self.bad_steps, self.bad_resets = set(steps), set(resets)
        self.calls = {"step": 0, "reset": 0}

    def step(self, action):
        self.calls["step"] += 1
        if self.calls["step"] in self.bad_steps:
            raise Boom("step")
        return super().step(action)

    def reset(self, *, seed=None, options=None):
        self.calls["reset"] += 1
        if self.calls["reset"] in self.bad_resets:
            raise Boom("reset")
        return super().reset(seed=seed, options=options)


def counted(wrapper):
    return wrapper.get_kl_statistics()["steps"]


# The environment raises -----------------------------------------------------------------------


@pytest.mark.parametrize("bad", [1, 4, 8])
def test_a_step_that_raises_counts_nothing(bad):
    wrapper = JointKLDivergenceWrapper(Failing(steps=[bad]), window=8, min_window=1)
    smooth = JointKLDivergenceWrapper(Walk(), window=8, min_window=1)
    for env in (wrapper, smooth):
        env.reset(seed=1)
    for step in range(1, 9):
        if step == bad:
            before = wrapper.kl_state_dict()
            # An action that the pair must not be made of.
            with pytest.raises(Boom, match="step"):
                wrapper.step(2)
            assert wrapper.kl_state_dict() == before
        assert wrapper.step(step % 2)[4] == smooth.step(step % 2)[4]
    assert wrapper.snapshot() == smooth.snapshot()


def test_a_reset_that_raises_counts_nothing():
    wrapper = JointKLDivergenceWrapper(Failing(resets=[2]), window=8, min_window=1)
    play(wrapper, [0, 1])
    before = wrapper.kl_state_dict()
    with pytest.raises(Boom, match="reset"):
        wrapper.reset()
    assert wrapper.kl_state_dict() == before
    wrapper.reset()
    assert counted(wrapper) == 2


def test_a_step_before_the_first_reset_counts_nothing():
    wrapper = JointKLDivergenceWrapper(gym.make("CartPole-v1"))
    before = wrapper.kl_state_dict()
    with pytest.raises(ResetNeeded):
        wrapper.step(0)
    assert wrapper.kl_state_dict() == before
    wrapper.reset(seed=1)
    wrapper.step(0)
    assert counted(wrapper) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_in_a_step_counts_nothing(error):
    class Interrupted(Walk):
        def step(self, action):
            raise error

    wrapper = JointKLDivergenceWrapper(Interrupted())
    wrapper.reset(seed=1)
    before = wrapper.kl_state_dict()
    with pytest.raises(error):
        wrapper.step(0)
    # Nobody knows whether the environment has moved, so its observation is forgotten.
    assert wrapper.kl_state_dict() == before | {"observed": None}


# The environment reuses memory ----------------------------------------------------------------


class OneBuffer(gym.Env):
    """Returns the same array every time, with other content: all NetHack ids do."""

    def __init__(self, reuse):
        self.observation_space = spaces.Box(0.0, 10.0, (1,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.reuse, self.buffer, self.time = reuse, np.zeros(1), 0

    def _observation(self):
        self.buffer[:] = self.time
        return self.buffer if self.reuse else self.buffer.copy()

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return self._observation(), {}

    def step(self, action):
        self.time += 1
        return self._observation(), 0.0, self.time == 9, False, {}


def test_a_reused_buffer_gives_the_pairs_of_a_fresh_one():
    actions = [0, 1, 1] * 10
    reused, fresh = (JointKLDivergenceWrapper(OneBuffer(r), window=10) for r in (True, False))
    assert play(reused, actions) == play(fresh, actions)
    assert reused.snapshot() == fresh.snapshot()


def test_the_pair_is_made_of_the_observation_before_the_action():
    # A shared buffer that is read after the step shifts every pair by one.
    wrapper = JointKLDivergenceWrapper(OneBuffer(reuse=True), window=None)
    wrapper.reset()
    wrapper.step(1)
    wrapper.step(0)
    # Observations 0.0 and 1.0 are the digits 1 and 2; the action is its own key.
    assert wrapper.snapshot()["counts"] == {"1": {"1": 1}, "2": {"0": 1}}


def test_a_nested_buffer_is_read_in_time_too():
    class Nested(OneBuffer):
        def __init__(self, reuse):
            super().__init__(reuse)
            self.inner = self.observation_space
            self.observation_space = spaces.Dict(a=spaces.Tuple([self.inner, self.inner]))

        def _observation(self):
            array = super()._observation()
            return {"a": (array, array)}

    reused, fresh = (JointKLDivergenceWrapper(Nested(r), window=10) for r in (True, False))
    play(reused, [0, 1] * 9)
    play(fresh, [0, 1] * 9)
    assert reused.snapshot() == fresh.snapshot()


def test_an_action_that_the_environment_changes_is_counted_as_it_was_given():
    class Clipping(Scripted):
        def step(self, action):
            np.clip(action, -1, 1, out=action)
            return super().step(action)

    env = Clipping([[0, 0], [0, 0], [0, 0]], action_space=spaces.Box(-1, 1, (1,), np.float64))
    wrapper = JointKLDivergenceWrapper(env, window=None)
    wrapper.reset()
    wrapper.step(np.array([-2.38]))
    ((actions,),) = ([*row] for row in [wrapper.snapshot()["counts"].values()])
    assert list(actions) == ["0"]


def test_an_info_dict_that_is_used_again_gathers_nothing():
    shared = {"mine": 0}
    wrapper = JointKLDivergenceWrapper(
        Scripted([[0, 0], [1, 1], [0, 1]], info=lambda: shared), info_on_reset=True
    )
    for info in play(wrapper, [0, 1, 0, 1]):
        assert list(info) == ["mine", *INFO_KEYS]
    assert shared == {"mine": 0}


def test_live_objects_in_info_are_handed_on():
    array = np.zeros(3)
    wrapper = JointKLDivergenceWrapper(
        Scripted([[0, 0], [1, 1], [0, 1]], info=lambda: {"live": array})
    )
    assert play(wrapper, [0])[0]["live"] is array


# NaN and infinities ---------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [1, 2])
def test_a_nan_raises_in_the_step_that_would_count_it(bad):
    observations = [[0.0, 0.5] for _ in range(5)]
    observations[bad] = [0.0, NAN]
    env = Scripted(observations, BOX)
    wrapper = JointKLDivergenceWrapper(env, window=4, min_window=1)
    wrapper.reset()
    for _ in range(bad):
        wrapper.step(1)
    before, stepped = wrapper.kl_state_dict(), len(env.actions)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"observation\[1\] is NaN; expected a number"):
            wrapper.step(1)
    # The environment was not stepped, so that another action could still be tried.
    assert len(env.actions) == stepped
    assert wrapper.kl_state_dict() == before
    assert counted(wrapper) == bad
    wrapper.reset()
    wrapper.step(1)
    assert counted(wrapper) == bad + 1


def test_a_terminal_nan_does_no_harm():
    env = Scripted([[0.0, 0.0], [0.5, 0.5], [NAN, 0.0]], BOX)
    wrapper = JointKLDivergenceWrapper(env, window=4, min_window=1)
    for info in play(wrapper, [0, 1] * 10):
        assert np.isfinite(values(info)).all()
    assert counted(wrapper) == 20
    assert wrapper.get_kl_statistics()["cells"] == 2


def test_a_nan_in_the_first_observation():
    wrapper = JointKLDivergenceWrapper(Scripted([[NAN, 0.0], [0.0, 0.0]], BOX))
    wrapper.reset()
    with pytest.raises(ValueError, match=r"observation\[0\] is NaN"):
        wrapper.step(0)
    assert counted(wrapper) == 0


def test_a_nan_action_is_refused_before_the_environment_sees_it():
    env = Scripted([[0, 0]] * 4, BOX, spaces.Dict(push=spaces.Box(-1, 1, (2, 2))))
    wrapper = JointKLDivergenceWrapper(env)
    wrapper.reset()
    before = wrapper.kl_state_dict()
    with pytest.raises(ValueError, match=r"action\['push'\]\[1, 0\] is NaN"):
        wrapper.step({"push": np.array([[0, 0], [NAN, 0]])})
    assert env.actions == []
    assert wrapper.kl_state_dict() == before
    wrapper.step({"push": np.zeros((2, 2))})
    assert counted(wrapper) == 1


def test_an_infinite_value_is_counted_in_its_limit():
    unbounded = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    env = Scripted([[-np.inf], [np.inf], [-1e300], [1e300], [0.0]], unbounded)
    wrapper = JointKLDivergenceWrapper(env, window=None)
    play(wrapper, [0, 0, 0, 0])
    # The first and last of ten bins, twice each.
    assert wrapper.snapshot()["counts"] == {"1": {"0": 2}, "10": {"0": 2}}
    assert wrapper.get_kl_statistics()["flow"] == 0.0


# Values outside their space -------------------------------------------------------------------


def test_an_observation_outside_its_bounds_has_a_cell_of_its_own():
    # Bounds of 21 to 24 and a value of 25: neither an error nor the last bin.
    box = spaces.Box(21.0, 24.0, (1,), np.float64)
    env = Scripted([[23.9], [25.0], [20.0], [24.0], [22.0]], box)
    wrapper = JointKLDivergenceWrapper(env, window=None)
    play(wrapper, [0] * 4)
    assert wrapper.snapshot()["counts"] == {"10": {"0": 2}, "11": {"0": 1}, "0": {"0": 1}}
    assert wrapper.get_kl_statistics()["flow"] == 0.5


def test_a_dimension_declared_as_one_value_and_used_otherwise():
    # Meta-World declares its goal as [0, 0] and sets it to 0.89.
    env = Scripted([[0.0], [0.89], [-0.1], [0.0]], spaces.Box(0.0, 0.0, (1,), np.float64))
    wrapper = JointKLDivergenceWrapper(env, window=None)
    play(wrapper, [0] * 3)
    assert wrapper.snapshot()["counts"] == {"1": {"0": 1}, "2": {"0": 1}, "0": {"0": 1}}
    assert wrapper.get_kl_statistics()["flow"] == pytest.approx(2 / 3, abs=1e-15)


def test_the_step_that_ends_cartpole_is_counted():
    # Its terminal observation lies outside the termination limits.
    wrapper = JointKLDivergenceWrapper(gym.make("CartPole-v1"), window=None)
    wrapper.reset(seed=1)
    steps, terminated = 0, False
    while not terminated:
        observation, _, terminated, _, info = wrapper.step(1)
        steps += 1
    assert abs(observation[2]) > 0.2095
    assert counted(wrapper) == steps
    assert values(info)[0] > 0.0
    # An environment may be stepped on; the terminal observation is then one like any other.
    wrapper.reset()
    wrapper.step(0)
    assert counted(wrapper) == steps + 1


def test_an_action_is_counted_as_the_wrapper_received_it():
    """-2.38 in [-1, 1], where the order of the wrappers decides what is seen."""
    clip = gym.wrappers.ClipAction

    def action_key(wrap):
        env = Scripted([[0, 0]] * 3, action_space=spaces.Box(-1, 1, (1,), np.float32))
        outer, wrapper = wrap(env)
        play(outer, [np.array([-2.38], np.float32)] * 2)
        ((key, count),) = wrapper.snapshot()["counts"]["13"].items()
        assert count == 2
        return key, wrapper.get_kl_statistics()["flow"]

    def alone(env):
        wrapper = JointKLDivergenceWrapper(env, window=None)
        return wrapper, wrapper

    def before_clipping(env):
        return alone(clip(env))

    def after_clipping(env):
        wrapper, _ = alone(env)
        return clip(wrapper), wrapper

    assert action_key(alone) == ("0", 1.0)
    assert action_key(after_clipping) == ("1", 0.0)
    # ClipAction declares an action space without bounds, where -2.38 lies in the second bin.
    assert action_key(before_clipping) == ("2", 0.0)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (5, ValueError, "observation is 5, outside the space; expected an integer from 0 to 4"),
        (-1, ValueError, "observation is -1"),
        (1.5, ValueError, "observation is 1.5; expected a whole number"),
        (np.array([1, 2]), ValueError, r"observation has shape \(2,\); expected \(\)"),
        ("left", TypeError, "observation has values of type"),
        (None, TypeError, "observation has values of type"),
        (1j, TypeError, "observation has values of type complex128"),
        ([[1], [2, 3]], ValueError, r"observation is no array of shape \(\)"),
    ],
    ids=str,
)
def test_an_observation_outside_its_space(bad, error, message):
    env = Scripted([0, bad, 1, 1], spaces.Discrete(5))
    wrapper = JointKLDivergenceWrapper(env)
    wrapper.reset()
    observation = wrapper.step(0)[0]
    assert observation is bad
    before = wrapper.kl_state_dict()
    with pytest.raises(error, match=message):
        wrapper.step(0)
    assert env.actions == [0]
    assert wrapper.kl_state_dict() == before
    # As a terminal observation it would have done no harm.
    wrapper.reset()
    assert counted(wrapper) == 1


@pytest.mark.parametrize("bad", [2, -1, 0.5, "left", None, [0, 1], np.array([[0], [1]])], ids=str)
def test_an_action_outside_its_space(bad):
    env = Scripted([[0, 0]] * 4)
    wrapper = JointKLDivergenceWrapper(env)
    wrapper.reset()
    before = wrapper.kl_state_dict()
    with pytest.raises((ValueError, TypeError), match=r"^action "):
        wrapper.step(bad)
    assert env.actions == []
    assert wrapper.kl_state_dict() == before


def test_an_observation_that_fails_as_an_array_is_refused_like_any_other():
    class Hostile:
        def __array__(self, *args, **kwargs):
            raise Boom("no array")

    wrapper = JointKLDivergenceWrapper(Scripted([[0, 0], Hostile(), [0, 0]]))
    wrapper.reset()
    wrapper.step(0)
    with pytest.raises(TypeError, match="observation has values of type Hostile"):
        wrapper.step(0)


# Wrapping in the middle of a run --------------------------------------------------------------


def test_wrapped_in_mid_episode():
    """The wrapper has not seen what the first action answers, so that makes no pair."""
    inner = Walk()
    inner.reset(seed=4)
    inner.step(1)
    wrapper = JointKLDivergenceWrapper(inner, window=None)
    observation, _, _, _, info = wrapper.step(1)
    assert values(info) == (0.0,) * 7
    assert counted(wrapper) == 0
    wrapper.step(2)
    assert wrapper.snapshot()["counts"] == {str(observation): {"2": 1}}


def test_the_first_action_after_wrapping_is_not_even_looked_at():
    inner = Scripted([[0, 0]] * 4, BOX, spaces.Box(-1, 1, (1,)))
    inner.reset()
    wrapper = JointKLDivergenceWrapper(inner)
    wrapper.step(np.array([NAN]))
    assert counted(wrapper) == 0


def test_a_step_past_the_end_is_a_pair_if_the_environment_takes_it():
    class Endless(Walk):
        def __init__(self):
            super().__init__(length=1)

    wrapper = JointKLDivergenceWrapper(Endless(), window=None)
    wrapper.reset(seed=2)
    for _ in range(5):
        wrapper.step(1)
    assert counted(wrapper) == 5


def test_two_resets_in_a_row_make_no_pair():
    wrapper = make_walk()
    for seed in range(4):
        observation, _ = wrapper.reset(seed=seed)
    wrapper.step(2)
    assert wrapper.snapshot()["counts"] == {str(observation): {"2": 1}}


def test_a_reset_in_mid_episode_drops_no_pair_and_adds_none():
    wrapper, bare = make_walk(window=6, min_window=1), Walk()
    pairs = []
    for length in (1, 3, 2, 7, 5):
        wrapper.reset(seed=length)
        pairs += pairs_of(bare, [2, 1, 0, 0, 2, 1, 1][:length], seed=length)
        for action in [2, 1, 0, 0, 2, 1, 1][:length]:
            *_, info = wrapper.step(action)
    twin = twin_of(bare, window=6, min_window=1)
    for pair in pairs:
        expected = twin.update(*pair)
    assert counted(wrapper) == len(pairs) == 18
    assert info["kl_divergence"] == pytest.approx(expected["kl_divergence"], abs=1e-12)


def test_a_wrapper_around_a_copied_environment_shares_nothing_with_the_first():
    env = Walk()
    first = JointKLDivergenceWrapper(env, window=6)
    play(first, random_actions(env.action_space, 9))
    second = JointKLDivergenceWrapper(copy.deepcopy(env), window=6)
    play(second, [0] * 5)
    assert (counted(first), counted(second)) == (9, 5)
