"""What Stable-Baselines3 gets: the twin of the vector wrapper for its VecEnvs, and a callback."""

import functools
import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from kl_proteus import JointKLDivergenceWrapper, VectorJointKLDivergenceWrapper
from kl_proteus.tracking import INFO_KEYS

pytest.importorskip("stable_baselines3")

from stable_baselines3 import A2C, DQN
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from kl_proteus.sb3 import KLDriftCallback, VecKLDivergenceWrapper

SMALL = {"window": 12, "min_window": 3, "history_size": 9}
LENGTHS = (4, 7, 5)


class Nested(gym.Env):
    """A walk that is seen as a dict."""

    def __init__(self, length):
        self.observation_space = spaces.Dict(
            place=spaces.Box(-3.0, 3.0, (2, 2), np.float32), lamp=spaces.Discrete(3)
        )
        self.action_space = spaces.MultiDiscrete([2, 3])
        self.length = length
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.seen(0), {}

    def step(self, action):
        self.steps += 1
        return self.seen(int(action[0])), 1.0, False, self.steps == self.length, {}

    def seen(self, shift):
        place = self.np_random.normal(size=(2, 2)).astype(np.float32) + shift
        return {"place": place, "lamp": self.steps % 3}


def cartpole(length):
    return gym.make("CartPole-v1", max_episode_steps=length)


def pendulum(length):
    return gym.make("Pendulum-v1", max_episode_steps=length)


def wrapped(make, length, **settings):
    return JointKLDivergenceWrapper(make(length), **settings)


def factories(make, settings=None):
    if settings is None:
        return [functools.partial(make, length) for length in LENGTHS]
    return [functools.partial(wrapped, make, length, **settings) for length in LENGTHS]


def run(envs, steps=80):
    """The results of seeded random steps."""
    envs.seed(3)
    envs.action_space.seed(5)
    results = [envs.reset()]
    for _ in range(steps):
        actions = np.stack([envs.action_space.sample() for _ in range(envs.num_envs)])
        results.append(envs.step(actions))
    return results


def same(ours, theirs):
    np.testing.assert_equal(ours, theirs)


def encoded(observation):
    """An encoder."""
    return np.round(np.asarray(observation, np.float64).ravel() * 2)


@pytest.mark.parametrize("make", [cartpole, pendulum, Nested])
def test_every_report_is_that_of_a_single_wrapper(make):
    ours = VecKLDivergenceWrapper(DummyVecEnv(factories(make)), **SMALL)
    singles = DummyVecEnv(factories(make, SMALL))
    results = run(ours)
    same(results, run(singles))
    assert any(info["kl_divergence"] for step in results[1:] for info in step[3])
    assert any(step[2].any() for step in results[1:])
    assert ours.get_kl_statistics() == singles.env_method("get_kl_statistics")
    assert ours.kl_history == singles.get_attr("kl_history")
    for row, snapshot in enumerate(singles.env_method("snapshot")):
        assert ours.snapshot(index=row) == snapshot
    assert ours.kl_state_dict()["trackers"] == singles.env_method("kl_state_dict")


@pytest.mark.parametrize(
    "settings",
    [
        {"info_prefix": "a/"},
        {"encoder": encoded},
        {"lag": 5},
        {"window": None},
        {"drift_detector": {"false_alarm_every": 20, "window": 2, "calibration_windows": 3}},
    ],
    ids=["prefix", "encoder", "lag", "everything", "detector"],
)
def test_arguments_mean_what_they_mean_to_a_single_wrapper(settings):
    settings = SMALL | settings
    ours = VecKLDivergenceWrapper(DummyVecEnv(factories(cartpole)), **settings)
    same(run(ours), run(DummyVecEnv(factories(cartpole, settings))))


def test_processes_give_what_one_process_gives():
    makes = factories(cartpole)[:2]
    with_processes = VecKLDivergenceWrapper(SubprocVecEnv(makes, "spawn"), **SMALL)
    try:
        results = run(with_processes, 30)
    finally:
        with_processes.close()
    same(results, run(VecKLDivergenceWrapper(DummyVecEnv(makes), **SMALL), 30))


def test_pooled_rows_are_those_of_the_gymnasium_wrapper():
    ours = VecKLDivergenceWrapper(DummyVecEnv(factories(pendulum)), pooled=True, **SMALL)
    theirs = VectorJointKLDivergenceWrapper(
        gym.vector.SyncVectorEnv(
            factories(pendulum), autoreset_mode=gym.vector.AutoresetMode.SAME_STEP
        ),
        pooled=True,
        **SMALL,
    )
    ours.seed(3)
    observations, _ = theirs.reset(seed=3)
    np.testing.assert_array_equal(ours.reset(), observations)
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.uniform(-2, 2, (3, 1)).astype(np.float32)
        _, _, _, infos = ours.step(actions)
        expected = theirs.step(actions)[-1]
        for key in INFO_KEYS:
            assert [info[key] for info in infos] == expected[key].tolist()
    assert ours.get_kl_statistics() == theirs.get_kl_statistics()
    assert infos[0]["kl_divergence"] > 0


def test_the_step_that_ends_an_episode_reports_like_any_other():
    envs = VecKLDivergenceWrapper(DummyVecEnv(factories(cartpole)), **SMALL)
    for _, _, dones, infos in run(envs)[1:]:
        for done, info in zip(dones, infos, strict=True):
            assert ("terminal_observation" in info) == done
            assert set(INFO_KEYS) <= info.keys()
            assert all(type(info[key]) is float for key in INFO_KEYS)
            assert json.loads(json.dumps({key: info[key] for key in INFO_KEYS}))


class Keeps(DummyVecEnv):
    """Remembers the infos that it has given away."""

    def step_wait(self):
        self.given = super().step_wait()
        return self.given


def test_all_else_passes_through():
    inner = Keeps(factories(cartpole))
    envs = VecKLDivergenceWrapper(inner, **SMALL)
    observations, rewards, dones, infos = run(envs, 5)[-1]
    assert observations is inner.given[0]
    assert rewards is inner.given[1]
    assert dones is inner.given[2]
    for ours, theirs in zip(infos, inner.given[3], strict=True):
        assert not set(INFO_KEYS) & theirs.keys()
        assert ours.keys() - theirs.keys() == set(INFO_KEYS)


def test_a_bad_action_moves_and_counts_nothing():
    envs = VecKLDivergenceWrapper(DummyVecEnv(factories(pendulum)), **SMALL)
    run(envs, 10)
    before = envs.kl_state_dict()
    places = [state.copy() for state in envs.get_attr("state")]
    with pytest.raises(ValueError, match="sub-environment 1"):
        envs.step(np.array([[0.0], [np.nan], [0.0]], np.float32))
    assert envs.kl_state_dict() == before
    np.testing.assert_array_equal(places, envs.get_attr("state"))
    envs.step(np.zeros((3, 1), np.float32))
    assert envs.get_kl_statistics()[1]["steps"] == 11


def test_a_state_continues_bit_for_bit():
    envs = VecKLDivergenceWrapper(DummyVecEnv(factories(cartpole)), **SMALL)
    run(envs, 20)
    other = VecKLDivergenceWrapper(DummyVecEnv(factories(cartpole)), **SMALL)
    other.load_kl_state_dict(json.loads(json.dumps(envs.kl_state_dict())))
    same(run(envs, 20), run(other, 20))
    envs.reset_kl()
    assert envs.get_kl_statistics()[0]["steps"] == 0


def test_refusals():
    envs = DummyVecEnv(factories(cartpole))
    with pytest.raises(TypeError, match="venv must be a VecEnv of Stable-Baselines3, got TimeLim"):
        VecKLDivergenceWrapper(cartpole(4))
    with pytest.raises(ValueError, match="info_prefix='' already"):
        VecKLDivergenceWrapper(VecNormalize(VecKLDivergenceWrapper(envs)))
    with pytest.raises(ValueError, match="info_prefix='' already"):
        VecKLDivergenceWrapper(DummyVecEnv(factories(cartpole, SMALL)))
    twice = VecKLDivergenceWrapper(VecKLDivergenceWrapper(envs), info_prefix="b/")
    assert {"kl_policy", "b/kl_policy"} <= run(twice, 1)[-1][3][0].keys()
    with pytest.raises(TypeError, match="pooled must be True or False"):
        VecKLDivergenceWrapper(envs, pooled=1)


# The callback ------------------------------------------------------------------------------------


class Dumps(KVWriter):
    def __init__(self):
        self.rows = []

    def write(self, key_values, key_excluded, step=0):
        self.rows.append(dict(key_values))

    def close(self):
        pass


def a2c(envs):
    model = A2C("MlpPolicy", envs, n_steps=10, seed=0, device="cpu", policy_kwargs={"net_arch": []})
    dumps = Dumps()
    model.set_logger(Logger(None, [dumps]))
    return model, dumps.rows


class Infos(KLDriftCallback):
    """Keeps what it has seen."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.seen = []

    def _on_step(self):
        self.seen.append(self.locals["infos"])
        return super()._on_step()


NAMES = {
    "kl/divergence",
    "kl/divergence_mean",
    "kl/divergence_std",
    "kl/observation",
    "kl/policy",
    "kl/noise_floor",
    "kl/excess",
}


def logged(row):
    return {name for name in row if name.startswith("kl/")}


def test_each_dump_holds_the_means_since_the_last():
    model, rows = a2c(VecKLDivergenceWrapper(DummyVecEnv(factories(cartpole)), **SMALL))
    callback = Infos()
    model.learn(90, callback=callback, log_interval=1)
    assert len(rows) == 3
    assert len(callback.seen) == 30
    for i, row in enumerate(rows):
        assert logged(row) == NAMES
        for name in NAMES:
            key = "kl_" + name.removeprefix("kl/")
            values = [info[key] for infos in callback.seen[10 * i : 10 * i + 10] for info in infos]
            assert row[name] == pytest.approx(np.mean(values), rel=1e-12, abs=1e-15)
            assert type(row[name]) is float
    assert rows[-1]["kl/divergence"] > 0


def test_rows_that_do_not_report_are_left_out():
    makes = [*factories(cartpole, SMALL | {"info_prefix": "a/"})[:2], *factories(cartpole)[2:]]
    model, rows = a2c(DummyVecEnv(makes))
    callback = Infos("a/")
    model.learn(30, callback=callback, log_interval=1)
    values = [info["a/kl_policy"] for infos in callback.seen for info in infos[:2]]
    assert rows[-1]["kl/a/policy"] == pytest.approx(np.mean(values), rel=1e-12)
    assert logged(rows[-1]) == {name.replace("kl/", "kl/a/") for name in NAMES}


def test_it_goes_with_replay_buffers():
    envs = DummyVecEnv(factories(cartpole, SMALL)[:1])
    model = DQN("MlpPolicy", envs, seed=0, device="cpu", buffer_size=200, learning_starts=20)
    dumps = Dumps()
    model.set_logger(Logger(None, [dumps]))
    model.learn(60, callback=KLDriftCallback(), log_interval=4)
    assert logged(dumps.rows[-1]) == NAMES


class Turns(gym.Env):
    """What is seen jumps after some steps, whatever the policy does."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen(), {}

    def step(self, action):
        self.steps += 1
        return self.seen(), 1.0, False, self.steps % 50 == 0, {}

    def seen(self):
        low = -0.9 if self.steps < TURN else 0.5
        return self.np_random.uniform(low, low + 0.4, 1).astype(np.float32)


DETECTOR = {"false_alarm_every": 500, "window": 50, "calibration_windows": 10}
TURN = 1000


def watched():
    return JointKLDivergenceWrapper(Turns(), drift_detector=DETECTOR, **SMALL)


def test_alarms_are_counted():
    envs = DummyVecEnv([watched])
    model, rows = a2c(envs)
    callback = KLDriftCallback()
    model.learn(TURN + 200, callback=callback, log_interval=1)
    assert {frozenset(logged(row)) for row in rows} == {frozenset(NAMES | {"kl/alarms"})}
    counts = [row["kl/alarms"] for row in rows]
    assert counts == sorted(counts)
    assert counts[0] == 0 < counts[-1] == callback.alarms
    [detector] = envs.get_attr("drift_detector")
    assert callback.alarms == len(detector.alarms)
    model.learn(20, callback=callback)
    assert callback.alarms < counts[-1]


@pytest.mark.parametrize("pooled", [False, True])
def test_alarms_of_all_environments_at_once(pooled):
    heard = []
    envs = VecKLDivergenceWrapper(
        DummyVecEnv([Turns] * 2),
        pooled=pooled,
        drift_detector=DETECTOR | {"on_alarm": heard.append},
        **SMALL,
    )
    model, rows = a2c(VecNormalize(envs, norm_obs=False))
    callback = KLDriftCallback()
    model.learn(2 * TURN + 200, callback=callback, log_interval=1)
    detectors = [envs.drift_detector] if pooled else envs.drift_detector
    assert len(detectors) == (1 if pooled else 2)
    assert all(detector.alarms for detector in detectors)
    count = sum(len(detector.alarms) for detector in detectors)
    assert count == len(heard) == callback.alarms
    assert rows[-1]["kl/alarms"] == count


def test_a_training_can_end_at_the_first_alarm(capsys):
    model, _ = a2c(DummyVecEnv([watched]))
    callback = KLDriftCallback(stop_on_alarm=True, verbose=1)
    model.learn(3000, callback=callback)
    assert callback.alarms == 1
    assert TURN <= model.num_timesteps < TURN + 200
    assert f"has drifted (step {model.num_timesteps})" in capsys.readouterr().out


def test_a_training_without_reports_is_refused_at_its_first_step():
    model, _ = a2c(DummyVecEnv(factories(cartpole)))
    with pytest.raises(ValueError, match="no environment reports 'kl_divergence': wrap each"):
        model.learn(30, callback=KLDriftCallback())
    model, _ = a2c(DummyVecEnv(factories(cartpole, SMALL)))
    with pytest.raises(ValueError, match="no environment reports 'a/kl_divergence'"):
        model.learn(30, callback=KLDriftCallback("a/"))
    with pytest.raises(ValueError, match="no environment reports 'kl_alarm'"):
        model.learn(30, callback=KLDriftCallback(stop_on_alarm=True))


def test_arguments_of_the_callback():
    with pytest.raises(TypeError, match="info_prefix must be a string"):
        KLDriftCallback(3)
    with pytest.raises(ValueError, match="info_prefix must not start with an underscore"):
        KLDriftCallback("_a")
    with pytest.raises(TypeError, match="stop_on_alarm must be True or False"):
        KLDriftCallback(stop_on_alarm="yes")
