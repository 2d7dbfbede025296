"""What Gymnasium expects of a wrapper of vector environments."""

import copy
import functools
import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import VectorEnv

from environments.scripted import Scripted
from kl_proteus import (
    JointKLDivergenceWrapper,
    VectorJointKLDivergenceWrapper,
    merge_snapshots,
)
from vector.harness import (
    AUTORESET_MODES,
    INFO_KEYS,
    SMALL,
    assert_same_runs,
    batches,
    factories,
    run,
    vector_of,
    wrap,
)


class Native(VectorEnv):
    """Places on a line, without NumPy's help or sub-environments; says nothing of its mode."""

    def __init__(self, num_envs=2, metadata=None, kind=np.float32):
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(0.0, 1.0, (2,), kind)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(
            self.single_observation_space, num_envs
        )
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        if metadata is not None:
            self.metadata = metadata
        self.info = {"kept": 1}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.given = options
        self.places = np.zeros((self.num_envs, 2), self.single_observation_space.dtype)
        return self.places, self.info

    def step(self, actions):
        # The very array that was returned before.
        self.places += 0.03 * (1 + np.arange(self.num_envs)[:, None]) * np.asarray(actions)[:, None]
        ends = np.zeros(self.num_envs, bool)
        return self.places, np.ones(self.num_envs, np.float32), ends, ends.copy(), self.info


class Both(Native, gym.Env):
    """As the objects of EnvPool are: of both kinds at once."""


# V1: any vector environment ------------------------------------------------------------------


def test_a_native_environment():
    env = VectorJointKLDivergenceWrapper(CartPoleVectorEnv(5), **SMALL)
    env.reset(seed=1)
    values = [env.step(action)[4]["kl_divergence"] for action in batches(env, 60)]
    assert np.isfinite(values).all()
    assert np.any(values)


@pytest.mark.parametrize("mode", ["sync", "async", "vector_entry_point"])
def test_every_environment_that_make_vec_makes(mode):
    env = wrap(gym.make_vec("CartPole-v1", 2, vectorization_mode=mode))
    env.reset(seed=1)
    assert env.step(np.array([0, 1]))[4]["_kl_policy"].all()
    env.close()
    env.close()


def test_what_is_both_is_a_vector_environment():
    env = Both(metadata={"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP})
    wrap(env)
    with pytest.raises(TypeError, match="use VectorJointKLDivergenceWrapper"):
        JointKLDivergenceWrapper(env)


def test_a_single_environment_is_refused():
    with pytest.raises(TypeError, match="VectorEnv"):
        VectorJointKLDivergenceWrapper(gym.make("CartPole-v1"))


def test_make_vec_wraps_single_environments():
    wrapper = functools.partial(JointKLDivergenceWrapper, **SMALL)
    env = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync", wrappers=[wrapper])
    env.reset(seed=1)
    assert env.step(np.array([0, 1]))[4]["_kl_policy"].all()
    env.close()


# V2: the autoreset mode -------------------------------------------------------------------------


def test_a_missing_mode_is_the_next_step_with_a_warning():
    with pytest.warns(UserWarning, match="autoreset_mode"):
        env = wrap(Native())
    env.reset()
    assert env.step(np.array([1, 1]))[4]["_kl_divergence"].all()


@pytest.mark.parametrize("mode", ["NextStep", None, 1])
def test_a_mode_that_is_no_mode_is_refused(mode):
    with pytest.raises(TypeError, match="must be an AutoresetMode"):
        wrap(Native(metadata={"autoreset_mode": mode}))


def test_a_known_mode_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrap(Native(metadata={"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}))


# V3: what infos hold ----------------------------------------------------------------------------


def test_infos_gain_fresh_arrays_in_a_copy():
    env = wrap(Native(metadata={"autoreset_mode": gym.vector.AutoresetMode.DISABLED}))
    env.reset()
    before, after = (env.step(np.array([1, 0]))[4] for _ in range(2))
    assert env.env.info == {"kept": 1}
    assert before["kept"] == 1
    arrays = [info[p + key] for info in (before, after) for key in INFO_KEYS for p in ("", "_")]
    for i, array in enumerate(arrays):
        assert array.shape == (2,)
        assert array.flags.writeable
        assert array.dtype == (np.bool_ if i % 2 else np.float64)
        assert not any(np.shares_memory(array, other) for other in arrays[:i])


@pytest.mark.parametrize("mode", AUTORESET_MODES)
def test_a_value_is_in_its_mask_and_nowhere_else(mode):
    env = wrap(vector_of(factories("cartpole"), mode))
    for result in run(env, batches(env, 60), mode):
        if len(result) == 2:
            assert not any("kl_" in key for key in result[1])
            continue
        *_, done, infos = result
        if mode == "SAME_STEP":
            np.testing.assert_array_equal(infos["_kl_divergence"], ~done)
            if done.any():
                final = infos["final_info"]
                np.testing.assert_array_equal(final["_kl_divergence"], done)
                assert not final["kl_divergence_mean"][~done].any()
        if mode == "DISABLED":
            assert infos["_kl_divergence"].all()
        assert not infos["kl_divergence"][~infos["_kl_divergence"]].any()


# V5: partial resets -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sync", "async"])
def test_options_are_as_they_were_and_serve_again(how):
    env = wrap(vector_of(factories("walk"), "DISABLED", how))
    env.reset(seed=1)
    mask = np.array([True, False, True])
    options = {"reset_mask": mask, "else": 1}
    for _ in range(2):
        env.reset(options=options)
        assert options.keys() == {"reset_mask", "else"}
        assert options["reset_mask"] is mask
        np.testing.assert_array_equal(mask, [True, False, True])
    env.close()


def test_other_options_are_handed_on_as_they_are():
    env = wrap(Native(metadata={"autoreset_mode": gym.vector.AutoresetMode.DISABLED}))
    options = {"anything": []}
    env.reset(options=options)
    assert env.env.given is options


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        ([True, False, True], TypeError, "got list"),
        (np.array([1, 0, 1]), TypeError, "got dtype int64"),
        (np.array([True, False]), ValueError, r"shape \(3,\), got \(2,\)"),
        (np.zeros(3, bool), ValueError, "False everywhere"),
    ],
)
def test_a_mask_that_is_none_is_refused(mask, error, message):
    env = wrap(vector_of(factories("walk"), "DISABLED"))
    env.reset(seed=1)
    state = env.kl_state_dict()
    with pytest.raises(error, match=message):
        env.reset(options={"reset_mask": mask})
    assert env.kl_state_dict() == state


def test_only_the_rows_of_the_mask_wait_for_another_observation():
    env = wrap(vector_of(factories("cartpole"), "DISABLED"))
    env.reset(seed=1)
    for action in batches(env, 3):
        env.step(action)
    before = [one["observed"] for one in env.kl_state_dict()["trackers"]]
    observations, _ = env.reset(seed=8, options={"reset_mask": np.array([False, True, False])})
    after = [one["observed"] for one in env.kl_state_dict()["trackers"]]
    layout = env._tracker.observation
    assert after[1]["cell"]["key"] == str(layout.key(observations[1])) != before[1]["cell"]["key"]
    assert (after[0], after[2]) == (before[0], before[2])


def test_info_on_reset_reports_the_rows_of_the_mask():
    env = wrap(vector_of(factories("walk"), "DISABLED"), info_on_reset=True)
    _, infos = env.reset(seed=1)
    assert infos["_kl_divergence"].all()
    for action in batches(env, 3):
        reports = env.step(action)[4]
    mask = np.array([False, True, True])
    _, infos = env.reset(options={"reset_mask": mask})
    for key in INFO_KEYS:
        np.testing.assert_array_equal(infos["_" + key], mask)
        np.testing.assert_array_equal(infos[key], np.where(mask, reports[key], 0.0))


# V6: accessors of its own ------------------------------------------------------------------------


def test_accessors():
    env = wrap(vector_of(factories("walk"), "SAME_STEP"))
    run(env, batches(env, 50), "SAME_STEP")
    assert [one["steps"] for one in env.get_kl_statistics()] == [50, 50, 50]
    parts = [env.snapshot(index=row) for row in range(3)]
    assert env.snapshot() == merge_snapshots(*parts)
    assert [len(one) for one in env.kl_history] == [SMALL["history_size"]] * 3
    env.reset_kl()
    assert [one["steps"] for one in env.get_kl_statistics()] == [0, 0, 0]
    assert env.kl_history == [[], [], []]


@pytest.mark.parametrize(("index", "error"), [(3, ValueError), (-1, ValueError), ("0", TypeError)])
def test_a_snapshot_of_no_sub_environment_is_refused(index, error):
    with pytest.raises(error, match="index must be"):
        wrap(vector_of(factories("walk"), "SAME_STEP")).snapshot(index=index)
    with pytest.raises(ValueError, match="which must be"):
        wrap(vector_of(factories("walk"), "SAME_STEP")).snapshot("newest")


def test_two_wrappers_need_two_prefixes():
    env = wrap(vector_of(factories("walk"), "SAME_STEP"))
    with pytest.raises(ValueError, match="give this one another prefix"):
        wrap(env)
    both = wrap(env, info_prefix="long/", window=30)
    both.reset(seed=1)
    infos = both.step(np.zeros(3, int))[4]
    assert {p + key for p in ("", "long/") for key in INFO_KEYS} <= infos.keys()
    singles = vector_of(factories("walk", SMALL), "SAME_STEP")
    with pytest.raises(ValueError, match="give this one another prefix"):
        wrap(singles)


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("mode", AUTORESET_MODES)
@pytest.mark.parametrize("method", ["state", "pickle", "deepcopy"])
def test_a_copy_continues_bit_for_bit(method, mode, pooled):
    env = wrap(vector_of(factories("walk"), mode), pooled=pooled)
    actions = batches(env, 60)
    run(env, actions[:27], mode)
    if method == "state":
        other = wrap(copy.deepcopy(env.env), pooled=pooled)
        other.load_kl_state_dict(env.kl_state_dict())
    elif method == "pickle":
        other = pickle.loads(pickle.dumps(env))
    else:
        other = copy.deepcopy(env)
    assert other.kl_state_dict() == env.kl_state_dict()
    results = [run(one, actions[27:], mode, seed=None) for one in (env, other)]
    assert_same_runs(results[0], results[1])
    assert other.kl_state_dict() == env.kl_state_dict()


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"window": 13}, "it was saved with"),
        ({"pooled": True}, "3 separate rows, and this tracker has 3 pooled rows"),
        ({"obs_bins": 3}, "axes differ"),
    ],
)
def test_a_state_of_other_arguments_is_refused(others, message):
    env = wrap(vector_of(factories("cartpole"), "SAME_STEP"))
    run(env, batches(env, 20), "SAME_STEP")
    other = wrap(vector_of(factories("cartpole"), "SAME_STEP"), **others)
    other.reset(seed=1)
    before = other.kl_state_dict()
    with pytest.raises(ValueError, match=message):
        other.load_kl_state_dict(env.kl_state_dict())
    assert other.kl_state_dict() == before
    fewer = wrap(vector_of(factories("cartpole", lengths=(4, 5)), "SAME_STEP"))
    with pytest.raises(ValueError, match="3 separate rows, and this tracker has 2 separate rows"):
        fewer.load_kl_state_dict(env.kl_state_dict())


def test_a_state_with_rows_missing_is_refused():
    env = wrap(vector_of(factories("walk"), "SAME_STEP"))
    run(env, batches(env, 20), "SAME_STEP")
    state = env.kl_state_dict()
    for key, value in [("trackers", []), ("ended", [False]), ("observed", [None]), ("rows", 2)]:
        with pytest.raises(ValueError, match="the state cannot be read"):
            env.load_kl_state_dict(state | {key: value})
    assert env.kl_state_dict() == state


# V7: arrays of every kind -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        np.asfortranarray,
        lambda array: np.repeat(array, 2, axis=1)[:, ::2],
        lambda array: array.astype(">f8"),
        lambda array: array.astype(np.longdouble),
        lambda array: array[::-1][::-1],
        np.ndarray.tolist,
    ],
    ids=["fortran", "strided", "big-endian", "long-double", "reversed", "list"],
)
def test_batches_of_every_memory_layout(change):
    env = Native(4, {"autoreset_mode": gym.vector.AutoresetMode.DISABLED}, np.float64)
    plain = wrap(Native(4, {"autoreset_mode": gym.vector.AutoresetMode.DISABLED}, np.float64))
    changed = wrap(env)
    step, reset = env.step, env.reset
    env.reset = lambda **given: (change(reset(**given)[0]), {})
    env.step = lambda actions: (change(step(actions)[0]), *step(np.zeros(4))[1:])
    for one in (plain, changed):
        one.reset()
        for action in batches(one, 30):
            one.step(action)
    assert changed.snapshot() == plain.snapshot()
    assert plain.snapshot()["counts"]


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i4", "?"])
def test_integers_of_every_width(dtype):
    box = spaces.Box(0, 1, (3,), np.int64)
    rows = [np.array([0, 1, 1], dtype), np.array([1, 0, 1], dtype), np.array([0, 0, 0], dtype)]
    makes = [functools.partial(Scripted, rows, box)] * 2
    env = wrap(gym.vector.SyncVectorEnv(makes))
    single = JointKLDivergenceWrapper(Scripted(rows, box), **SMALL)
    env.reset()
    single.reset()
    env._tracker.observe(np.array([rows[0], rows[1]]))
    env.step(np.array([0, 1]))
    keys = {str(single._tracker.observation.key(row)) for row in rows[:2]}
    assert env.snapshot()["counts"].keys() == keys
