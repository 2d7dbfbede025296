"""A user's encoder: what it may be, what it may return, and when its faults are seen."""

import numpy as np
import pytest
from gymnasium import spaces

from environments.named_encoders import Coarse, halves, parity
from environments.scripted import INFO_KEYS, Scripted, Walk, make_walk, play, shown
from kl_proteus import JointKLDivergenceWrapper

HERE = "environments.named_encoders"


def encoded(encoder, observations, space=None, **settings):
    """A wrapper around an environment of any observations."""
    env = Scripted(observations, spaces.Text(9) if space is None else space)
    return JointKLDivergenceWrapper(env, encoder=encoder, **({"window": None} | settings))


def counts_of(encoder, observations, **settings):
    """The counts after each observation but the last was answered with action 0."""
    wrapper = encoded(encoder, observations, **settings)
    play(wrapper, [0] * (len(observations) - 1))
    return {key: row["0"] for key, row in wrapper.snapshot()["counts"].items()}


def test_integers_are_the_digits_of_the_cell():
    assert counts_of(lambda text: [len(text)], ["a", "abc", "b", ""]) == {"1": 2, "3": 1}
    # Two digits of 32 bits each, whatever the number of bins.
    expected = {str(2**32 * 7 + 4_000_000_000): 1}
    assert counts_of(lambda _: np.array([7, 4_000_000_000]), "ab", obs_bins=3) == expected


def test_floats_are_unbounded_axes():
    def places(text):
        return np.array([float(text)])

    found = counts_of(places, ["-inf", "-1", "0", "1", "inf", ""], obs_bins=10)
    assert found == {"1": 1, "3": 1, "6": 1, "8": 1, "10": 1}
    assert counts_of(places, ["9", ""], obs_bins=[10]) == {"10": 1}
    assert counts_of(places, ["9", ""], obs_bins=10, obs_scale=9.0) == {"8": 1}


def test_bins_per_axis_of_the_result():
    found = counts_of(lambda _: np.array([0.0, 0.0]), "ab", obs_bins=np.array([2, 4]))
    assert found == {str(2 * 6 + 3): 1}


@pytest.mark.parametrize(
    "result",
    [
        [1, 0],
        (1, 0),
        [True, False],
        np.array([1, 0], np.int8),
        np.array([1, 0], ">u4"),
        np.array([1, 9, 0])[::2],
        np.array([True, False]),
    ],
    ids=repr,
)
def test_forms_of_integers(result):
    assert counts_of(lambda _: result, "ab") == {str(2**32): 1}


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "g", ">f4"])
def test_forms_of_floats(dtype):
    assert counts_of(lambda _: np.array([1.0, 0.0]).astype(dtype), "ab") == {str(8 * 12 + 6): 1}


def test_an_empty_result_is_one_cell():
    assert counts_of(lambda _: np.zeros(0, int), "abc") == {"0": 2}


@pytest.mark.parametrize(
    "encoder",
    [parity, f"{HERE}:parity", Coarse(2), Coarse().by_three, f"{HERE}:Coarse.by_three", halves],
    ids=shown,
)
def test_what_an_encoder_may_be(encoder):
    wrapper = make_walk(encoder=encoder, window=None)
    for info in play(wrapper, [0, 1, 2] * 9):
        assert set(INFO_KEYS) <= info.keys()
    assert wrapper.get_kl_statistics()["steps"] == 27


@pytest.mark.parametrize(
    ("encoder", "name"),
    [
        (parity, f"{HERE}:parity"),
        (f"{HERE}:parity", f"{HERE}:parity"),
        (Coarse(2), f"{HERE}:Coarse"),
        (Coarse.by_three, f"{HERE}:Coarse.by_three"),
    ],
    ids=shown,
)
def test_a_snapshot_names_the_encoder(encoder, name):
    assert make_walk(encoder=encoder).snapshot()["encoder"] == name
    assert make_walk().snapshot()["encoder"] is None


def test_lambdas_are_told_apart_by_what_they_do():
    names = [make_walk(encoder=f).snapshot()["encoder"] for f in (lambda _: [0], lambda _: [1])]
    again = make_walk(encoder=lambda _: [0]).snapshot()["encoder"]
    assert names[0] == again != names[1]
    assert names[0].startswith(f"{__name__}:")


def test_any_observation_space_will_do():
    for space in (
        spaces.Text(9),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.OneOf([spaces.Discrete(2)]),
        spaces.Box(0, 255, (84, 84, 3), np.uint8),
        spaces.Dict(image=spaces.Box(0, 255, (84, 84), np.uint8)),
    ):
        assert counts_of(lambda _: [1], "abc", space=space) == {"1": 2}


def test_the_action_is_binned_as_ever():
    env = Scripted("abc", spaces.Text(9), spaces.Text(9))
    wrapper = JointKLDivergenceWrapper(env, encoder=lambda _: [1], window=None)
    play(wrapper, ["x", "y"])
    assert len(wrapper.snapshot()["counts"]["1"]) == 2


def test_it_sees_each_observation_once_as_it_is():
    seen = []

    def encoder(observation):
        seen.append(observation)
        return [0]

    observations = [object() for _ in range(4)]
    wrapper = encoded(encoder, observations)
    play(wrapper, [0, 1, 0])
    # Three steps end the episode, and `play` resets.
    assert [id(o) for o in seen] == [id(o) for o in [*observations, observations[0]]]


def test_a_result_that_is_used_again_is_read_in_time():
    result = np.zeros(1, int)

    def encoder(text):
        result[0] = len(text)
        return result

    assert counts_of(encoder, ["a", "bb", "ccc", ""]) == {"1": 1, "2": 1, "3": 1}


def test_a_frozen_encoder_is_not_the_users_list():
    bins = [10]
    wrapper = encoded(lambda _: np.array([0.0]), "ab", obs_bins=bins)
    bins[0] = 2
    play(wrapper, [0])
    assert list(wrapper.snapshot()["counts"]) == ["6"]


# Faults ---------------------------------------------------------------------------------------


class Boom(Exception):
    """What an encoder raises."""


def fails(text):
    if text == "bad":
        raise Boom("bad text")
    return [len(text)]


FAULTS = {
    "raises": (fails, Boom, "bad text"),
    "scalar": (lambda t: 1 if t == "bad" else [1], ValueError, r"encoder .* got shape \(\)"),
    "rank 2": (
        lambda t: [[1]] if t == "bad" else [1],
        ValueError,
        r"encoder .* got shape \(1, 1\)",
    ),
    "text": (lambda t: ["a"] if t == "bad" else [1], ValueError, "encoder must .*dtype <U1"),
    "complex": (lambda t: [1j] if t == "bad" else [1], ValueError, "encoder must .*complex128"),
    "objects": (lambda t: [None] if t == "bad" else [1], ValueError, "encoder must .*object"),
    "ragged": (lambda t: [[1], [1, 2]] if t == "bad" else [1], ValueError, "inhomogeneous"),
    "nothing": (lambda t: None if t == "bad" else [1], ValueError, "encoder must return a 1-D"),
    "NaN": (
        lambda t: [float("nan")] if t == "bad" else [1.0],
        ValueError,
        r"encoder\(observation\)\[0\] is NaN",
    ),
    "another length": (
        lambda t: [1, 2] if t == "bad" else [1],
        ValueError,
        r"encoder\(observation\) has shape \(2,\); expected \(1,\)",
    ),
    "negative digit": (
        lambda t: [-1] if t == "bad" else [1],
        ValueError,
        r"encoder\(observation\)\[0\] is -1, outside the space; expected an integer from 0",
    ),
    "digit beyond 32 bits": (lambda t: [2**32 if t == "bad" else 1], ValueError, "is 4294967296"),
    "fraction after digits": (
        lambda t: [0.5] if t == "bad" else [1],
        ValueError,
        r"encoder\(observation\)\[0\] is 0.5; expected a whole number",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_raised_by_the_step_that_would_count_it(fault):
    encoder, error, message = FAULTS[fault]
    wrapper = encoded(encoder, ["a", "bad", "b", "c"])
    wrapper.reset()
    wrapper.step(0)
    before = wrapper.kl_state_dict()
    for _ in range(2):
        with pytest.raises(error, match=message):
            wrapper.step(0)
    assert wrapper.env.actions == [0]
    assert wrapper.get_kl_statistics()["steps"] == 1
    assert wrapper.kl_state_dict()["drift"] == before["drift"]
    wrapper.reset()
    wrapper.step(0)
    assert wrapper.get_kl_statistics()["steps"] == 2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_terminal_observation_does_no_harm(fault):
    encoder, *_ = FAULTS[fault]
    wrapper = encoded(encoder, ["a", "b", "bad"])
    play(wrapper, [0, 1] * 5)
    assert wrapper.get_kl_statistics()["steps"] == 10


@pytest.mark.parametrize(
    "fault", sorted(FAULTS.keys() - {"fraction after digits", "another length"})
)
def test_a_fault_in_the_first_observation(fault):
    encoder, error, message = FAULTS[fault]
    wrapper = encoded(encoder, ["bad", "a", "b"])
    wrapper.reset()
    with pytest.raises(error, match=message):
        wrapper.step(0)
    assert wrapper.get_kl_statistics()["steps"] == 0


def test_a_fault_after_a_reset_leaves_no_older_observation_waiting():
    wrapper = encoded(fails, ["a", "b"])
    wrapper.reset()
    assert wrapper.kl_state_dict()["observed"] is not None
    wrapper.env.observations[0] = "bad"
    wrapper.reset()
    assert wrapper.kl_state_dict()["observed"] is None


def test_a_loaded_state_knows_nothing_of_a_fault():
    wrapper = encoded(fails, ["a", "bad", "b", "c"])
    wrapper.reset()
    state = wrapper.kl_state_dict()
    wrapper.step(0)
    wrapper.load_kl_state_dict(state)
    wrapper.step(0)
    assert wrapper.get_kl_statistics()["steps"] == 1


def test_integers_are_values_of_float_axes():
    assert counts_of(lambda t: [0.0] if t == "a" else [1], "ab a"[:3]) == {"6": 1, "8": 1}


def test_bins_that_do_not_fit_the_result():
    wrapper = encoded(lambda _: np.array([0.0, 1.0]), "abc", obs_bins=[3, 4, 5])
    with pytest.raises(ValueError, match=r"obs_bins must be one number or one per axis \(2 here\)"):
        wrapper.reset()
    assert wrapper.get_kl_statistics()["steps"] == 0


@pytest.mark.parametrize(
    ("encoder", "error", "message"),
    [
        ("parity", ValueError, """encoder must be a "module:function" string, got 'parity'"""),
        (":parity", ValueError, 'encoder must be a "module:function" string'),
        ("", ValueError, 'encoder must be a "module:function" string'),
        (f"{HERE}:", ValueError, 'encoder must be a "module:function" string'),
        ("no_such_module:f", ValueError, "encoder must name a module, got 'no_such_module:f'"),
        (f"{HERE}:nothing", ValueError, "encoder must name a function"),
        (f"{HERE}:Coarse.nothing", ValueError, "encoder must name a function"),
        (f"{HERE}:NUMBER", TypeError, "encoder must name a callable"),
        (3, TypeError, 'encoder must be a callable or a "module:function" string, got 3'),
        (b"a:b", TypeError, "encoder must be a callable or a .* got b'a:b'"),
    ],
    ids=str,
)
def test_what_an_encoder_may_not_be(encoder, error, message):
    with pytest.raises(error, match=message):
        make_walk(encoder=encoder)


@pytest.mark.parametrize("option", [{"obs_range": (0, 1)}, {"normalize_obs": False}], ids=str)
def test_options_that_an_encoder_overrides_are_refused(option):
    (name,) = option
    with pytest.raises(ValueError, match=name):
        make_walk(encoder=parity, **option)


def test_a_reference_of_another_encoder_is_refused():
    recorded = make_walk(encoder=parity)
    play(recorded, [0, 1])
    with pytest.raises(ValueError, match=f"no encoder.*{HERE}:parity"):
        make_walk(reference=recorded.snapshot())
    with pytest.raises(ValueError, match=f"{HERE}:halves.*{HERE}:parity"):
        make_walk(encoder=halves, reference=recorded.snapshot())
    assert make_walk(encoder=f"{HERE}:parity", reference=recorded.snapshot())


def test_a_reference_on_other_encoded_axes_is_refused_at_the_first_observation():
    code = [0, 0]

    def encoder(_):
        return code

    recorded = encoded(encoder, "abc")
    play(recorded, [0])
    code.pop()
    wrapper = encoded(encoder, "abc", reference=recorded.snapshot())
    with pytest.raises(ValueError, match=r"1 observation axes.*2"):
        wrapper.reset()


def test_drift_of_encoded_observations_is_that_of_the_codes():
    plain = JointKLDivergenceWrapper(Walk(states=3), window=8, min_window=2)
    coded = JointKLDivergenceWrapper(
        Walk(states=3), window=8, min_window=2, encoder=lambda state: [state]
    )
    assert play(plain, [0, 1, 2] * 9) == play(coded, [0, 1, 2] * 9)
