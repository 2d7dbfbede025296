"""Task descriptions: every name is checked against the environment that it describes."""

import copy
import dataclasses
import math
import pickle
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces, wrappers

from kl_proteus.llm.tasks.registry import Quantity, Task, task_for


def describe(env_id, **kwargs):
    """The environment and its task, with the environment at hand."""
    env = gym.make(env_id, **kwargs)
    return env, task_for(env_id, env.observation_space, env.action_space, env=env)


def registered(env_id):
    """The task of an environment of which only the id and the spaces are at hand."""
    env = gym.make(env_id)
    return task_for(env_id, env.observation_space, env.action_space)


def newest(prefix):
    """The registered id with the highest version: Taxi-v3 or Taxi-v4, by the Gymnasium at hand."""
    found = [i for i in gym.registry if i.rpartition("-v")[0] == prefix]
    return max(found, key=lambda i: int(i.rpartition("-v")[2]))


def names(task):
    return [value.name for value in task.observation_values]


# --- classic control ---------------------------------------------------------------------------


def test_cart_pole_is_described_with_units():
    _, task = describe("CartPole-v1")
    assert task.name == "CartPole"
    assert task.action_names == ("LEFT", "RIGHT")
    assert task.observation_values == (
        Quantity("cart position", "m"),
        Quantity("cart velocity", "m/s"),
        Quantity("pole angle", "rad"),
        Quantity("pole angular velocity", "rad/s"),
    )
    assert str(task.observation_values[0]) == "cart position (m)"


def test_cart_pole_names_are_in_the_order_of_the_state():
    env, task = describe("CartPole-v1")
    env.reset(seed=1)
    left, *_ = env.step(task.action_names.index("LEFT"))
    env.reset(seed=1)
    right, *_ = env.step(task.action_names.index("RIGHT"))
    velocity = names(task).index("cart velocity")
    assert left[velocity] < 0 < right[velocity]
    # The pole stays behind: it falls to the side that the cart comes from.
    turn = names(task).index("pole angular velocity")
    assert right[turn] < 0 < left[turn]


def test_cart_pole_ends_where_the_description_says():
    env, task = describe("CartPole-v1")
    unwrapped = env.unwrapped
    assert f"{unwrapped.theta_threshold_radians:.4g} rad (12 degrees)" in task.description
    assert f"more than {unwrapped.x_threshold} m" in task.description
    assert f"for {unwrapped.tau} s" in task.description
    assert "after 500 steps" in task.description
    assert "The reward is 1 for every step" in task.description


def test_the_other_reward_of_cart_pole_is_described():
    _, task = describe("CartPole-v1", sutton_barto_reward=True)
    assert "0 for every step, but -1" in task.description


def test_the_time_limit_is_that_of_the_environment():
    env = gym.make("CartPole-v1")
    short = task_for("CartPole-v0", env.observation_space, env.action_space)
    assert "after 200 steps" in short.description
    assert "after 77 steps" in describe("CartPole-v1", max_episode_steps=77)[1].description
    limited = wrappers.TimeLimit(gym.make("CartPole-v1", max_episode_steps=-1), 33)
    task = task_for("CartPole-v1", limited.observation_space, limited.action_space, env=limited)
    assert "after 33 steps" in task.description
    # Nothing is registered for an id without a version, so nothing is known.
    task = task_for("CartPole", env.observation_space, env.action_space)
    assert "steps" not in task.description.partition("episode ends")[2].partition(".")[0]


@pytest.mark.parametrize(
    ("env_id", "kind"),
    [("MountainCar-v0", "discrete"), ("MountainCarContinuous-v0", "continuous")],
)
def test_mountain_car_is_described(env_id, kind):
    env, task = describe(env_id)
    assert names(task) == ["position", "velocity"]
    assert task.observation_values[1].unit == "m/step"
    assert f"at least {env.unwrapped.goal_position}." not in task.description
    assert f"position is at least {env.unwrapped.goal_position}," in task.description
    assert f"after {env.spec.max_episode_steps} steps" in task.description
    actions = (
        [task.action_names.index(name) for name in ("LEFT", "COAST", "RIGHT")]
        if kind == "discrete"
        else [np.array([force], dtype=np.float32) for force in (-1, 0, 1)]
    )
    velocities = []
    for action in actions:
        env.reset(seed=0)
        velocities.append(env.step(action)[0][1])
    assert velocities[0] < velocities[1] < velocities[2]


def test_a_goal_velocity_is_described():
    _, task = describe("MountainCar-v0", goal_velocity=0.05)
    assert "at least 0.5 and the velocity at least 0.05" in task.description


def test_pendulum_is_described():
    env, task = describe("Pendulum-v1")
    env.reset(seed=0)
    env.unwrapped.state = np.array([0.3, 0.0])
    observation, reward, *_ = env.step(np.array([1.5], dtype=np.float32))
    angle, speed = env.unwrapped.state
    assert names(task) == ["cosine of the angle", "sine of the angle", "angular velocity"]
    assert observation.tolist() == pytest.approx([math.cos(angle), math.sin(angle), speed])
    # The reward of the description, with the state before the step.
    assert reward == pytest.approx(-(0.3**2 + 0.1 * 0.0**2 + 0.001 * 1.5**2))
    assert task.action_values == (Quantity("torque", "N m"),)
    assert "The episode ends after 200 steps." in task.description


def test_acrobot_is_described():
    env, task = describe("Acrobot-v1")
    env.reset(seed=0)
    assert [float(name.split()[1]) for name in task.action_names] == env.unwrapped.AVAIL_TORQUE
    observation, *_ = env.step(2)
    first, second, speed, other_speed = env.unwrapped.state
    expected = {
        "cosine of angle 1": math.cos(first),
        "sine of angle 1": math.sin(first),
        "cosine of angle 2": math.cos(second),
        "sine of angle 2": math.sin(second),
        "angular velocity 1": speed,
        "angular velocity 2": other_speed,
    }
    assert names(task) == list(expected)
    assert observation.tolist() == pytest.approx(list(expected.values()), abs=1e-6)


# --- toy text ----------------------------------------------------------------------------------


def test_taxi_states_are_decoded_as_the_environment_does():
    env, task = describe(newest("Taxi"))
    places = ["red", "green", "yellow", "blue", "in the taxi"]
    for state in range(500):
        row, column, passenger, destination = env.unwrapped.decode(state)
        assert task.observation_formatter(state) == (
            f"taxi row={row}, taxi column={column}, passenger={places[passenger]}, "
            f"destination={places[destination]}"
        )


def test_taxi_places_are_those_of_the_environment():
    env, task = describe(newest("Taxi"))
    for name, (row, column) in zip(
        ["red", "green", "yellow", "blue"], env.unwrapped.locs, strict=True
    ):
        assert f"{name} (row {row}, column {column})" in task.description
    walls = [b"".join(line).decode() for line in env.unwrapped.desc.tolist()[1:-1]]
    assert task.description.endswith("\n".join(walls))


def test_taxi_actions_move_as_their_names_say():
    env, task = describe(newest("Taxi"))
    unwrapped = env.unwrapped
    start = unwrapped.encode(2, 2, 0, 1)
    moves = {}
    for name in ("SOUTH", "NORTH", "EAST", "WEST"):
        (_, state, _, _), *_ = unwrapped.P[start][task.action_names.index(name)]
        row, column, *_ = unwrapped.decode(state)
        moves[name] = (row - 2, column - 2)
    assert moves == {"SOUTH": (1, 0), "NORTH": (-1, 0), "EAST": (0, 1), "WEST": (0, -1)}
    at_red = unwrapped.encode(0, 0, 0, 1)
    (_, state, reward, _), *_ = unwrapped.P[at_red][task.action_names.index("PICKUP")]
    _, _, place, _ = unwrapped.decode(state)
    assert place == 4
    assert reward == -1
    delivered = unwrapped.encode(0, 4, 4, 1)
    (_, _, reward, ended), *_ = unwrapped.P[delivered][task.action_names.index("DROPOFF")]
    assert (reward, ended) == (20, True)


@pytest.mark.parametrize(
    ("kwargs", "shape"),
    [
        ({}, (4, 4)),
        ({"map_name": "8x8"}, (8, 8)),
        ({"desc": ["SFF", "FHF"]}, (2, 3)),
        ({"desc": ["SFHFFFFF", "FFFFFFFG"]}, (2, 8)),  # as many states as the 4x4 map
        ({"desc": None, "map_name": None}, (8, 8)),
    ],
)
def test_frozen_lake_states_are_rows_and_columns(kwargs, shape):
    env, task = describe("FrozenLake-v1", is_slippery=False, **kwargs)
    unwrapped = env.unwrapped
    assert (unwrapped.nrow, unwrapped.ncol) == shape
    rows = [b"".join(line).decode() for line in unwrapped.desc.tolist()]
    assert task.description.endswith("\n".join(rows))
    assert f"{shape[0]} rows and {shape[1]} columns" in task.description
    for state in range(shape[0] * shape[1]):
        row, column = np.unravel_index(state, shape)
        assert task.observation_formatter(state) == f"row={row}, column={column}"


def test_frozen_lake_actions_move_as_their_names_say():
    env, task = describe("FrozenLake-v1", desc=["SFF", "FFF", "FFF"], is_slippery=False)
    ends = {}
    for name in task.action_names:
        ((_, state, _, _),) = env.unwrapped.P[4][task.action_names.index(name)]
        ends[name] = task.observation_formatter(state)
    assert ends == {
        "LEFT": "row=1, column=0",
        "DOWN": "row=2, column=1",
        "RIGHT": "row=1, column=2",
        "UP": "row=0, column=1",
    }


def test_frozen_lake_without_the_environment_uses_what_is_registered():
    four, eight = registered("FrozenLake-v1"), registered("FrozenLake8x8-v1")
    assert four.observation_formatter(15) == "row=3, column=3"
    assert four.description.endswith("SFFF\nFHFH\nFFFH\nHFFG")
    assert eight.observation_formatter(17) == "row=2, column=1"
    assert "after 200 steps" in eight.description


def test_frozen_lake_of_unknown_map_is_square_or_a_number():
    moves = spaces.Discrete(4)
    square = task_for("FrozenLake-v1", spaces.Discrete(25), moves)
    assert square.observation_formatter(7) == "row=1, column=2"
    assert "Map" not in square.description
    other = task_for("FrozenLake-v1", spaces.Discrete(15), moves)
    assert other.observation_formatter is None
    assert names(other) == ["observation"]
    assert other.action_names == ("LEFT", "DOWN", "RIGHT", "UP")


def test_a_large_lake_is_described_without_its_map():
    desc = ["S" + "F" * 29] + ["F" * 30] * 28 + ["F" * 29 + "G"]
    _, task = describe("FrozenLake-v1", desc=desc)
    assert "Map" not in task.description
    assert task.observation_formatter(899) == "row=29, column=29"


def test_slipperiness_and_rewards_are_those_of_the_environment():
    env, task = describe("FrozenLake-v1")
    chances = [p for p, *_ in env.unwrapped.P[0][1]]
    assert chances == pytest.approx([1 / 3] * 3)
    assert "probability 0.3333, and to each side of it with probability 0.3333" in task.description
    assert "1 for the goal, 0 for a hole and 0 for any other step" in task.description
    assert "slippery" not in describe("FrozenLake-v1", is_slippery=False)[1].description


@pytest.mark.skipif(
    "success_rate" not in gym.make("FrozenLake-v1").unwrapped.__init__.__code__.co_varnames,
    reason="this Gymnasium has fixed chances and rewards",
)
def test_chosen_chances_and_rewards_are_described():
    _, task = describe("FrozenLake-v1", success_rate=0.8, reward_schedule=(10, -5, -0.1))
    assert "probability 0.8, and to each side of it with probability 0.1" in task.description
    assert "10 for the goal, -5 for a hole and -0.1 for any other step" in task.description


def test_cliff_walking_is_described():
    env, task = describe(newest("CliffWalking"))
    shape = env.unwrapped.shape
    assert shape == (4, 12)
    for state in range(48):
        row, column = np.unravel_index(state, shape)
        assert task.observation_formatter(state) == f"row={row}, column={column}"
    ends = {}
    for action, name in enumerate(task.action_names):
        ((_, state, _, _),) = env.unwrapped.P[14][action]  # row 1, column 2
        ends[name] = task.observation_formatter(int(state))
    assert ends == {
        "UP": "row=0, column=2",
        "RIGHT": "row=1, column=3",
        "DOWN": "row=2, column=2",
        "LEFT": "row=1, column=1",
    }
    assert "slippery" not in task.description
    # There is no time limit to describe.
    assert env.spec.max_episode_steps is None
    assert "The episode ends when you reach the goal." in task.description


def test_slippery_cliff_walking_is_described():
    task = task_for("CliffWalkingSlippery-v1", spaces.Discrete(48), spaces.Discrete(4))
    assert "slippery" in task.description


def test_blackjack_is_described():
    env, task = describe("Blackjack-v1")
    assert task.action_names == ("STICK", "HIT")
    assert task.observation_formatter((14, 1, 0)) == (
        "your sum=14, dealer's card=ace, usable ace=no"
    )
    assert task.observation_formatter((21, np.int64(10), 1)) == (
        "your sum=21, dealer's card=10, usable ace=yes"
    )
    assert env.spec.kwargs["sab"] is True
    assert "beat every other hand" in task.description
    env.reset(seed=0)
    assert env.step(task.action_names.index("STICK"))[2] is True  # sticking ends the episode
    assert "1.5" in describe("Blackjack-v1", sab=False, natural=True)[1].description
    plain = describe("Blackjack-v1", sab=False, natural=False)[1].description
    assert plain.endswith("0 for a draw or a step that ends nothing.")


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", newest("Taxi"), newest("CliffWalking")])
@pytest.mark.parametrize("state", [np.int64(3), np.int32(3), np.array(3), np.array([3]), 3])
def test_states_come_in_any_kind_of_integer(env_id, state):
    formatter = registered(env_id).observation_formatter
    assert formatter(state) == formatter(3)


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", newest("Taxi"), newest("CliffWalking")])
@pytest.mark.parametrize("state", [-1, 500])
def test_states_that_do_not_exist_are_refused(env_id, state):
    with pytest.raises(ValueError, match="observation must be an integer from 0 to"):
        registered(env_id).observation_formatter(state)


def test_states_that_are_no_integers_are_refused():
    with pytest.raises(TypeError, match="observation must be one integer"):
        registered("FrozenLake-v1").observation_formatter(1.5)
    with pytest.raises(ValueError, match="observation must have 3 items"):
        registered("Blackjack-v1").observation_formatter((1, 2))


# --- Box2D -------------------------------------------------------------------------------------


def test_lunar_lander_names_say_what_the_environment_does():
    pytest.importorskip("Box2D")
    env, task = describe("LunarLander-v3")
    env.reset(seed=0)
    positions = [leg.position[0] - env.unwrapped.lander.position[0] for leg in env.unwrapped.legs]
    assert positions[0] > 0 > positions[1]  # what is created first is on the right
    assert names(task)[6:] == ["right leg contact", "left leg contact"]
    after = {}
    for action, name in enumerate(task.action_names):
        env.reset(seed=3)
        for _ in range(15):
            observation, *_ = env.step(action)
        after[name] = dict(zip(names(task), observation.tolist(), strict=True))
    still = after["NOTHING"]
    assert after["LEFT ENGINE"]["x velocity"] < still["x velocity"]
    assert after["RIGHT ENGINE"]["x velocity"] > still["x velocity"]
    # Counter-clockwise is positive.
    assert after["LEFT ENGINE"]["angle"] > still["angle"] > after["RIGHT ENGINE"]["angle"]
    assert after["MAIN ENGINE"]["y velocity"] > still["y velocity"]


def test_continuous_lunar_lander_throttles_are_in_order():
    pytest.importorskip("Box2D")
    env, task = describe("LunarLanderContinuous-v3")
    assert task.action_names == ()
    assert [value.name for value in task.action_values] == [
        "main engine throttle",
        "side engine throttle",
    ]

    def last(action):
        env.reset(seed=3)
        for _ in range(15):
            observation, *_ = env.step(np.array(action, dtype=np.float32))
        return dict(zip(names(task), observation.tolist(), strict=True))

    still = last([0, 0.4])
    assert last([0.5, 0])["y velocity"] > still["y velocity"]
    assert last([0, -1])["x velocity"] < still["x velocity"] < last([0, 1])["x velocity"]


def test_wind_is_described():
    pytest.importorskip("Box2D")
    assert "Wind" in describe("LunarLander-v3", enable_wind=True)[1].description
    assert "Wind" not in describe("LunarLander-v3")[1].description


def test_bipedal_walker_names_are_in_the_order_of_the_state():
    pytest.importorskip("Box2D")
    env, task = describe("BipedalWalker-v3")
    env.reset(seed=0)
    observation, *_ = env.step(np.array([1, -1, 0.5, 0.2], dtype=np.float32))
    seen = dict(zip(names(task), observation.tolist(), strict=True))
    walker = env.unwrapped
    joints = ["hip 1", "knee 1", "hip 2", "knee 2"]
    assert [value.name for value in task.action_values] == joints
    for name, joint in zip(joints, walker.joints, strict=True):
        shown = f"{name} angle" if name.startswith("hip") else f"{name} angle plus 1"
        assert seen[shown] == pytest.approx(joint.angle + name.startswith("knee"), abs=1e-6)
        assert math.copysign(1, seen[f"{name} speed"]) == math.copysign(1, joint.speed)
    assert seen["hull angle"] == pytest.approx(walker.hull.angle, abs=1e-6)
    assert seen["lidar 9"] == pytest.approx(walker.lidar[9].fraction, abs=1e-6)
    assert "slightly uneven" in task.description
    assert "stumps" in registered("BipedalWalkerHardcore-v3").description


@pytest.mark.parametrize(("index", "name"), [(0, "hip 1"), (1, "knee 1"), (3, "knee 2")])
def test_positive_torque_raises_the_angle_of_the_joint(index, name):
    pytest.importorskip("Box2D")
    env, _ = describe("BipedalWalker-v3")
    angles = []
    for torque in (-1, 1):
        env.reset(seed=1)
        action = np.zeros(4, dtype=np.float32)
        action[index] = torque
        for _ in range(3):
            env.step(action)
        angles.append(env.unwrapped.joints[index].angle)
    assert angles[0] < angles[1], name


# --- which environments are known --------------------------------------------------------------


@pytest.mark.parametrize(
    "env_id",
    ["CartPole-v1", "CartPole", "CartPole-v9", "my_package:CartPole-v1", "lab/CartPole-v0"],
)
def test_ids_are_matched_without_namespace_and_version(env_id):
    env = gym.make("CartPole-v1")
    task = task_for(env_id, env.observation_space, env.action_space)
    assert (task.name, task.action_names) == ("CartPole", ("LEFT", "RIGHT"))


@pytest.mark.parametrize("env_id", ["cartpole-v1", "CartPoleSwingUp-v0", "a/b c\n-v1", "", None])
def test_other_ids_are_generic(env_id):
    env = gym.make("CartPole-v1")
    task = task_for(env_id, env.observation_space, env.action_space)
    assert task.name == ""
    assert task.action_names == ("action 0", "action 1")
    assert names(task) == [f"observation[{i}]" for i in range(4)]
    assert "\n" not in task.description


def test_the_id_of_the_environment_stands_in_for_a_missing_one():
    env = gym.make("CartPole-v1")
    assert task_for(None, env.observation_space, env.action_space, env=env).name == "CartPole"


def test_the_jax_versions_declare_no_bounds():
    free = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    assert names(task_for("phys2d/CartPole-v1", free, spaces.Discrete(2)))[0] == "cart position"
    assert names(task_for("CartPole-v1", free, spaces.Discrete(2)))[0] == "observation[0]"


@pytest.mark.parametrize(
    "wrap",
    [
        wrappers.NormalizeObservation,
        wrappers.TimeAwareObservation,
        lambda env: wrappers.FrameStackObservation(env, 2),
        lambda env: wrappers.RescaleObservation(env, -1, 1),
    ],
)
def test_changed_observations_have_generic_names(wrap):
    env = wrap(gym.make("MountainCar-v0"))
    task = task_for("MountainCar-v0", env.observation_space, env.action_space, env=env)
    assert all(name.startswith("observation") for name in names(task))
    # The task itself is still the same.
    assert task.action_names == ("LEFT", "COAST", "RIGHT")
    assert task.name == "MountainCar"


def test_changed_observations_under_a_foreign_namespace_are_another_environment():
    pixels = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    task = task_for("lab/CartPole-v1", pixels, spaces.Discrete(2))
    assert (task.name, task.action_names) == ("", ("action 0", "action 1"))


def test_changed_actions_make_the_task_generic():
    env = wrappers.RescaleAction(gym.make("Pendulum-v1"), -1, 1)
    task = task_for("Pendulum-v1", env.observation_space, env.action_space, env=env)
    assert task.name == ""
    assert [value.name for value in task.action_values] == ["action[0]"]
    three = task_for("CartPole-v1", gym.make("CartPole-v1").observation_space, spaces.Discrete(3))
    assert three.name == ""


def test_clipped_actions_keep_their_meaning():
    env = wrappers.ClipAction(gym.make("Pendulum-v1"))
    task = task_for("Pendulum-v1", env.observation_space, env.action_space, env=env)
    assert task.action_values == (Quantity("torque", "N m"),)


def test_one_hot_states_have_generic_names():
    env = wrappers.FlattenObservation(gym.make("FrozenLake-v1"))
    task = task_for("FrozenLake-v1", env.observation_space, env.action_space, env=env)
    assert task.observation_formatter is None
    assert names(task)[3] == "observation[3]"


# --- generic tasks -----------------------------------------------------------------------------


def test_generic_names_follow_the_space():
    observation_space = spaces.Dict(
        {
            "goal": spaces.Box(-1, 1, (2,)),
            "camera": spaces.Box(0, 255, (9, 9, 3), np.uint8),
            "robot": spaces.Dict(arm=spaces.MultiBinary(2), on=spaces.Discrete(2)),
            "pair": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, ())]),
        }
    )
    action_space = spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(2)])
    task = task_for("lab/Robot-v0", observation_space, action_space)
    assert names(task) == [
        "camera",
        "goal[0]",
        "goal[1]",
        "pair[0]",
        "pair[1]",
        "robot.arm[0]",
        "robot.arm[1]",
        "robot.on",
    ]
    assert [value.name for value in task.action_values] == [
        "action[0][0]",
        "action[0][1]",
        "action[1]",
    ]
    assert task.description.startswith("Act in the environment lab/Robot-v0: ")


def test_generic_discrete_actions_start_where_the_space_does():
    observation_space = spaces.Discrete(2)
    task = task_for(None, observation_space, spaces.Discrete(3, start=-1))
    assert task.action_names == ("action -1", "action 0", "action 1")
    assert task_for(None, observation_space, spaces.Discrete(10**6)).action_names == ()


# --- the object --------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", newest("Taxi"), "Blackjack-v1"])
def test_tasks_are_immutable_values(env_id):
    task = registered(env_id)
    assert isinstance(task, Task)
    assert pickle.loads(pickle.dumps(task)) == task
    assert copy.deepcopy(task) == task
    assert hash(registered(env_id)) == hash(task)
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.name = "other"


def test_wrong_arguments_are_named():
    box, two = spaces.Box(0, 1), spaces.Discrete(2)
    with pytest.raises(TypeError, match="env_id must be str or NoneType, got 3"):
        task_for(3, box, two)
    with pytest.raises(TypeError, match="observation_space must be Space, got None"):
        task_for("CartPole-v1", None, two)
    with pytest.raises(TypeError, match=r"action_space must be Space, got 2 \(int\)"):
        task_for("CartPole-v1", box, 2)
    with pytest.raises(TypeError, match="env must be Env or NoneType"):
        task_for("CartPole-v1", box, two, env="CartPole-v1")


def test_descriptions_import_no_renderer_and_no_framework():
    code = (
        "import sys, kl_proteus.llm.text.environment_text, kl_proteus.llm.tasks.registry\n"
        "heavy = {'torch', 'pygame', 'Box2D', 'jax', 'pandas'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
