"""Grey grids, exact contents and random projections, and which of them "auto" picks."""

import copy
import json
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from environments.scripted import Scripted, play
from kl_proteus import JointKLDivergenceWrapper, merge_snapshots
from kl_proteus.encoders import ArrayLeaf, ExactContent, GreyGrid, RandomProjection, choose, named
from kl_proteus.spaces import encoded_layout
from reference import encoders as twin

INF = np.inf
IMAGE = spaces.Box(0, 255, (40, 33, 3), np.uint8)
CODES = spaces.Box(0, 255, (7, 7, 3), np.uint8)
LONG = spaces.Box(-INF, INF, (12,), np.float64)


def wrapped(space, observations=None, **options):
    space = copy.deepcopy(space)
    space.seed(1)
    seen = [space.sample() for _ in range(9)] if observations is None else observations
    return JointKLDivergenceWrapper(Scripted(seen, space), window=None, **options)


def digits(space, value, encoder):
    return encoded_layout(space, encoder)[0].digits(value)


# Each against its twin ------------------------------------------------------------------------


@given(st.data())
def test_a_grey_grid(data):
    shape = data.draw(st.lists(st.integers(1, 6), min_size=2, max_size=4))
    dtype = data.draw(st.sampled_from(["uint8", "int16", "float32", "float64"]))
    longest = sorted(shape)[-2:]
    rows, columns = (data.draw(st.integers(1, longest[0])) for _ in range(2))
    values = st.integers(0, 255) if dtype != "float64" else st.floats(0, 255)
    image = data.draw(hnp.arrays(dtype, tuple(shape), elements=values))
    space = spaces.Box(0, 255, tuple(shape), dtype)
    encoder = GreyGrid(rows=rows, columns=columns, levels=16)
    expected = twin.grey_digits(space, image, rows, columns, 16)
    assert digits(space, image, encoder) == expected
    assert digits(space, image.tolist(), encoder) == expected
    assert digits(space, np.asfortranarray(image), encoder) == expected


BOUNDS = st.sampled_from([(-INF, INF), (0.0, INF), (-INF, 1.0), (-2.0, 3.0), (0.5, 0.5)])


@given(st.lists(BOUNDS, min_size=1, max_size=9), st.integers(0, 2**64 - 1), st.data())
def test_a_random_projection(bounds, seed, data):
    low, high = (np.array(side) for side in zip(*bounds, strict=True))
    space = spaces.Box(low, high, dtype=np.float64)
    element = st.floats(-10, 10) | st.sampled_from([INF, -INF, 1e300])
    value = data.draw(hnp.arrays(np.float64, len(bounds), elements=element))
    outputs = data.draw(st.integers(1, 64))
    encoder = RandomProjection(axes=outputs, width=0.25, seed=seed)
    expected = twin.projection_digits(space, value, outputs, seed, 32)
    assert digits(space, value, encoder) == expected


def test_a_projection_of_bytes():
    space = spaces.Box(0, 255, (128,), np.uint8)
    space.seed(1)
    for _ in range(5):
        value = space.sample()
        expected = twin.projection_digits(space, value, 4, 0, 40)
        assert digits(space, value, RandomProjection()) == expected


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)))
def test_an_exact_content(value):
    space = spaces.Box(0, 255, value.shape, np.uint8)
    expected = twin.exact_digits(value)
    for form in (value, value.tolist(), value.astype(np.float16), np.asfortranarray(value)):
        assert digits(space, form, ExactContent()) == expected


def test_digits_are_the_same_everywhere():
    ramp = np.arange(12) / 7 - 0.8
    assert digits(LONG, ramp, RandomProjection()) == [21, 20, 22, 23]
    image = np.arange(40 * 33 * 3).reshape(40, 33, 3) % 251
    grey = digits(IMAGE, image.astype(np.uint8), GreyGrid(rows=2, columns=2))
    assert grey == [16, 16, 16, 16]


# What they are for ----------------------------------------------------------------------------


def test_a_symbolic_grid_is_not_blind():
    grids = [np.full((7, 7, 3), code, np.uint8) for code in (1, 2, 1, 5, 2)]
    env = wrapped(CODES, grids)
    assert env.kl_encoder.startswith("observation: ExactContent() ")
    play(env, [0] * 4)
    assert env.get_kl_statistics()["cells"] == 3


def test_hundreds_of_scalars_meet_their_cells_again():
    rng = np.random.default_rng(1)
    space = spaces.Box(-INF, INF, (348,), np.float64)
    # Joints move together, and every sensor has some noise.
    seen = list(rng.normal(size=(400, 2)) @ rng.normal(size=(2, 348)) + rng.normal(size=348) / 9)
    plain, auto = wrapped(space, seen, encoder=None), wrapped(space, seen)
    for env in (plain, auto):
        play(env, [0] * 399)
    assert plain.get_kl_statistics()["cells"] == 399
    assert auto.get_kl_statistics()["cells"] < 200


# What "auto" picks ----------------------------------------------------------------------------

PICKS = [
    (spaces.Box(-INF, INF, (8,)), []),
    (spaces.Box(-INF, INF, (9,)), [RandomProjection(axes=4)]),
    (spaces.Box(0, 1, (5, 5)), [RandomProjection(axes=4)]),
    (spaces.Box(0, 255, (128,), np.uint8), [RandomProjection(axes=4)]),
    (spaces.Box(0, 13, (14,), np.int32), []),
    (spaces.Box(0, 255, (8, 8), np.uint8), [RandomProjection(axes=4)]),
    (spaces.Box(0, 5, (8, 8), np.uint8), []),
    (spaces.Box(0, 255, (9, 9), np.uint8), [ExactContent()]),
    (CODES, [ExactContent()]),
    (spaces.Box(0, 1, (60, 60), np.bool_), [ExactContent()]),
    (spaces.Box(0, 255, (31, 99, 3), np.uint8), [ExactContent()]),
    (spaces.Box(0, 255, (32, 32), np.uint8), [GreyGrid()]),
    (spaces.Box(0, 255, (4, 84, 84), np.uint8), [GreyGrid()]),
    (spaces.Box(0, 1, (84, 84), np.float32), [GreyGrid()]),
    (spaces.Box(0, 1, (0,)), []),
    (spaces.MultiDiscrete([14] * 104), []),
    (spaces.Text(5), []),
    (
        spaces.Dict(
            a=spaces.Box(-1, 1, (3,)), b=spaces.Box(-1, 1, (3,)), c=spaces.Box(-1, 1, (25,))
        ),
        [RandomProjection(axes=1), RandomProjection(axes=1), RandomProjection(axes=3)],
    ),
    (spaces.Tuple([spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (9,))]), [RandomProjection(axes=4)]),
]


@pytest.mark.parametrize(("space", "picked"), PICKS, ids=str)
def test_what_auto_picks(space, picked):
    _, name = encoded_layout(space, None)
    found = [] if name is None else [named(part.split(": ")[1][:-9]) for part in name.split("; ")]
    assert found == picked


def test_small_spaces_are_as_they_were():
    bounds = np.array([0, -INF], np.float32), np.array([1, INF], np.float32)
    space = spaces.Dict(a=spaces.Box(*bounds), b=spaces.Discrete(3), c=spaces.Text(4))
    auto, plain = wrapped(space), wrapped(space, encoder=None)
    assert play(auto, [0, 1] * 4) == play(plain, [0, 1] * 4)
    assert auto.snapshot() == plain.snapshot()
    assert auto.kl_encoder is None
    assert auto.kl_state_dict() == plain.kl_state_dict()


def test_bins_and_ranges_for_each_axis_are_for_axes():
    for options in ({"obs_bins": [4] * 12}, {"obs_range": (-1, 1)}, {"normalize_obs": False}):
        assert wrapped(LONG, **options).kl_encoder is None
    assert wrapped(IMAGE, obs_range=(0, 100)).kl_encoder.startswith("observation: GreyGrid(")


def test_an_image_next_to_other_things():
    space = spaces.Dict(view=IMAGE, state=spaces.Box(-1, 1, (2,)), goal=spaces.Text(9))
    env = wrapped(space)
    assert env.kl_encoder.startswith("observation['view']: GreyGrid(rows=8, columns=8, levels=32) ")
    play(env, [0] * 8)
    axes = [axis["name"] for axis in env.snapshot()["observation_axes"]]
    assert len(axes) == 64 + 2 + 1
    assert "observation['view'].grey[7, 7]" in axes
    assert choose([ArrayLeaf.of_space(IMAGE, "x")]) == {"x": GreyGrid()}


# Names, snapshots, specs ----------------------------------------------------------------------

EXPLICIT = [GreyGrid(rows=4, columns=3, levels=5), RandomProjection(axes=2, seed=7), ExactContent()]


@pytest.mark.parametrize("encoder", EXPLICIT, ids=repr)
def test_an_encoder_by_itself(encoder):
    by_object, by_text = wrapped(IMAGE, encoder=encoder), wrapped(IMAGE, encoder=repr(encoder))
    assert play(by_object, [0, 1] * 4) == play(by_text, [0, 1] * 4)
    assert by_object.snapshot() == by_text.snapshot()
    assert by_object.kl_encoder.startswith(f"observation: {encoder!r} ")


def test_a_name_alone_has_the_defaults():
    assert named("GreyGrid") == named(" GreyGrid( ) ") == GreyGrid()
    assert named("module:GreyGrid") is None
    assert named("auto") is None


def test_runs_that_are_encoded_differently_are_not_compared():
    snapshots = []
    for options in ({}, {"encoder": None}, {"encoder": RandomProjection(seed=1)}, {"obs_scale": 2}):
        env = wrapped(LONG, **options)
        play(env, [0, 1] * 4)
        snapshots.append(json.loads(json.dumps(env.snapshot())))
    for other, message in zip(
        snapshots[1:],
        ["has no encoder", r"RandomProjection\(axes=4, width=0.2, seed=1\)", "has the encoder"],
        strict=True,
    ):
        with pytest.raises(ValueError, match=f"the axes differ.*{message}"):
            merge_snapshots(snapshots[0], other)
        with pytest.raises(ValueError, match="the axes differ: the environment has the encoder"):
            wrapped(LONG, reference=other)
    same = wrapped(LONG, reference=snapshots[0], min_window=1)
    assert play(same, [0, 1] * 4)[-1]["kl_divergence"] == 0.0


@pytest.mark.parametrize("space", [IMAGE, CODES, LONG], ids=str)
def test_copies_states_and_specs_go_on_as_they_were(space):
    env = wrapped(space)
    play(env, [0, 1, 1])
    twins = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    restored = wrapped(space)
    restored.load_kl_state_dict(json.loads(json.dumps(env.kl_state_dict())))
    expected = env.kl_state_dict()
    assert all(twin.kl_state_dict() == expected for twin in [*twins, restored])


def test_a_spec_holds_the_text():
    env = JointKLDivergenceWrapper(gym.make("BipedalWalker-v3"), encoder=RandomProjection(axes=2))
    text = env.spec.to_json()
    assert "RandomProjection(axes=2, width=0.2, seed=0)" in text
    again = gym.make(gym.envs.registration.EnvSpec.from_json(text))
    assert again.get_wrapper_attr("kl_encoder") == env.kl_encoder
    again.close()
    env.close()


def test_a_value_outside_its_range_is_flow():
    space = spaces.Box(-1, 1, (12,), np.float64)
    outside = np.zeros(12)
    outside[3] = 2.0
    env = wrapped(space, [np.zeros(12), outside, np.zeros(12), outside, np.zeros(12)])
    play(env, [0] * 4)
    assert env.get_kl_statistics()["flow"] == 0.5


# Bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "value", "error", "message"),
    [
        (LONG, np.full(12, np.nan), ValueError, r"observation\[0\] is NaN"),
        (LONG, np.zeros(11), ValueError, r"observation has shape \(11,\); expected \(12,\)"),
        (LONG, "text", TypeError, "observation"),
        (IMAGE, np.zeros((40, 33), np.uint8), ValueError, r"observation has shape \(40, 33\)"),
        (IMAGE, np.full((40, 33, 3), np.nan), ValueError, r"observation\[0, 0, 0\] is NaN"),
        (IMAGE, np.full((40, 33, 3), INF), None, None),
        (CODES, np.zeros((7, 7)), ValueError, r"observation has shape \(7, 7\)"),
        (CODES, np.full((7, 7, 3), np.nan), ValueError, "observation is NaN"),
        (CODES, np.zeros((7, 7, 3), complex), TypeError, "observation has values of type complex"),
    ],
)
def test_a_faulty_observation_stops_the_step_that_acts(space, value, error, message):
    env = wrapped(space, [space.sample(), value, space.sample(), space.sample()])
    env.reset()
    env.step(0)
    if error is None:
        env.step(0)
        assert env.get_kl_statistics()["steps"] == 2
        return
    with pytest.raises(error, match=message):
        env.step(0)
    assert env.get_kl_statistics()["steps"] == 1


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: GreyGrid(rows=0), ValueError, "GreyGrid rows must be from 1"),
        (lambda: GreyGrid(levels=2.5), TypeError, "GreyGrid levels must be an integer, got 2.5"),
        (lambda: RandomProjection(axes=65), ValueError, "axes must be from 1 to 64, got 65"),
        (lambda: RandomProjection(seed=-1), ValueError, "seed must be from 0"),
        (lambda: RandomProjection(width=0), ValueError, "width must be from 1e-6 to 8, got 0"),
        (lambda: RandomProjection(width="1"), TypeError, "width must be a number"),
        (lambda: named("GreyGrid(4)"), ValueError, "keyword arguments only"),
        (lambda: named("GreyGrid(rows=f())"), ValueError, "literal keyword arguments"),
        (lambda: named("GreyGrid(rows=4"), ValueError, "encoder must be like GreyGrid"),
        (lambda: named("GreyGrid(**{})"), ValueError, "keyword arguments only"),
        (lambda: named("GreyGrid(depth=4)"), TypeError, "depth"),
        (lambda: wrapped(LONG, encoder=GreyGrid()), ValueError, r"GreyGrid\(.*takes no array"),
        (lambda: wrapped(spaces.Text(4), encoder=ExactContent()), ValueError, "takes no array"),
        (lambda: wrapped(LONG, encoder=ExactContent()), ValueError, "takes no array"),
        (lambda: wrapped(LONG, obs_bins=[4], encoder=RandomProjection()), ValueError, "one number"),
        (lambda: wrapped(LONG, encoder=GreyGrid), TypeError, None),
        (lambda: wrapped(LONG, encoder="Nothing"), ValueError, '"module:function"'),
    ],
)
def test_bad_arguments(make, error, message):
    if message is None:
        # A class is a function of the user; it fails when it is called with an observation.
        env = make()
        env.reset()
        with pytest.raises((TypeError, ValueError)):
            env.step(0)
        return
    with pytest.raises(error, match=message):
        make()


def test_a_damaged_layout_is_refused():
    layout, _ = encoded_layout(LONG, None)
    saved = json.loads(layout.to_json())
    for damage in ({"shape": [11]}, {"axes": []}, {"shape": [2**63, 2**63]}):
        damaged = copy.deepcopy(saved)
        damaged["leaves"][0].update(damage)
        with pytest.raises(ValueError, match="the encoder of observation is for another leaf"):
            type(layout).from_json(json.dumps(damaged))
