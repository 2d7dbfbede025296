"""Loading a policy of the user, and what counts as an action of a space."""

import numpy as np
import pytest
from gymnasium import spaces

from kl_proteus.cli.failures import CommandError
from kl_proteus.cli.policies import load, member, random_policy

BINARY = spaces.Discrete(2)

SOURCE = """
class Pusher:
    def __init__(self):
        self.direction = 1

    def __call__(self, observation):
        return self.direction

    def act(self, observation):
        return 0

class Silent:
    pass

class Demanding:
    def __init__(self, model):
        pass

def act(observation):
    return observation

pusher = Pusher()
number = 3
"""


@pytest.fixture
def load_from(module, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    name = module(SOURCE)
    return lambda attribute: load(f"{name}:{attribute}", BINARY)


@pytest.mark.parametrize(
    ("attribute", "action"), [("act", 0), ("Pusher", 1), ("pusher", 1), ("pusher.act", 0)]
)
def test_functions_classes_instances_and_methods(load_from, attribute, action):
    assert load_from(attribute)(0) == action


@pytest.mark.parametrize(
    ("attribute", "reason"),
    [
        ("missing", "has no attribute 'missing'"),
        ("number", "must name a callable"),
        ("Silent", "must be a callable, got an instance of Silent, which has no __call__"),
        ("Demanding", "missing 1 required positional argument: 'model'"),
    ],
)
def test_what_is_no_policy(load_from, attribute, reason):
    with pytest.raises(CommandError, match=attribute) as caught:
        load_from(attribute)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "import no_such_library_anywhere\n",
            "ModuleNotFoundError: No module named 'no_such_library_anywhere' (",
        ),
        ("def act(:\n", "SyntaxError: "),
        ("print(undefined)\n", "NameError: name 'undefined' is not defined ("),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 ("),
        ("raise ValueError\n", "ValueError ("),
    ],
)
def test_modules_that_cannot_be_imported(module, monkeypatch, tmp_path, source, reason):
    monkeypatch.syspath_prepend(tmp_path)
    name = module(source)
    with pytest.raises(CommandError) as caught:
        load(f"{name}:act", BINARY)
    message = str(caught.value)
    assert message.startswith(f"the policy {name}:act cannot be loaded: {reason}")
    assert "\n" not in message
    assert f"({name}.py, line " in message


def test_a_missing_module():
    with pytest.raises(CommandError, match="cannot be loaded: No module named 'no_such_module'"):
        load("no_such_module:act", BINARY)


def test_an_action_outside_the_space_names_policy_space_and_action(load_from):
    act = load_from("act")
    with pytest.raises(CommandError) as caught:
        act(np.array([1.5, 2.5]))
    message = str(caught.value)
    assert "act returned an action outside the action space: expected Discrete(2)" in message
    assert message.endswith("got array([1.5, 2.5]) (ndarray of shape (2,))")
    with pytest.raises(CommandError, match=r"got None \(NoneType\)"):
        act(None)


def test_long_actions_are_cut(load_from):
    with pytest.raises(CommandError) as caught:
        load_from("act")("x" * 10_000)
    assert len(str(caught.value)) < 250


class Scalar:
    """A scalar as other libraries have them."""

    shape = ()

    def __index__(self):
        return 1


BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)
PIXELS = spaces.Box(0, 255, (2,), np.uint8)
MULTI = spaces.MultiDiscrete([3, 4])
BITS = spaces.MultiBinary(2)
NESTED = spaces.Dict({"a": BINARY, "b": spaces.Tuple((BOX, BINARY))})


@pytest.mark.parametrize(
    ("space", "action", "expected"),
    [
        (BINARY, 1, 1),
        (BINARY, np.int64(1), 1),
        (BINARY, np.uint64(1), 1),
        (BINARY, np.array(1), 1),
        (BINARY, True, 1),
        (BINARY, Scalar(), 1),
        (spaces.Discrete(3, start=-1), -1, -1),
        (BOX, [0.5, 1], np.float32([0.5, 1.0])),
        (BOX, np.float64([0.5, 2.0]), np.float32([0.5, 2.0])),
        (PIXELS, [0.0, 255.0], np.uint8([0, 255])),
        (MULTI, np.uint64([2, 3]), np.int64([2, 3])),
        (BITS, [True, False], np.int8([1, 0])),
    ],
)
def test_members(space, action, expected):
    found = member(space, action)
    assert space.contains(found)
    assert np.array_equal(found, expected)


def test_nested_members():
    found = member(NESTED, {"b": [[0, 1], np.array(1)], "a": 0})
    assert NESTED.contains(found)


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (BINARY, 2),
        (BINARY, -1),
        (BINARY, 1.0),
        (BINARY, "1"),
        (BINARY, None),
        (BINARY, np.array([1])),
        (BOX, [0.5]),
        (BOX, 0.5),
        (BOX, [0.5, 2.1]),
        (BOX, [0.5, np.nan]),
        (BOX, [0.5, np.inf]),
        (BOX, [[0.5], [0.5, 1.0]]),
        (BOX, ["a", "b"]),
        (BOX, [1j, 0]),
        (BOX, None),
        (PIXELS, [0.5, 3]),
        (PIXELS, [256, 0]),
        (PIXELS, [-1, 0]),
        (PIXELS, [np.nan, 0]),
        (MULTI, [2.5, 0]),
        (MULTI, [3, 0]),
        (BITS, [2, 0]),
        (NESTED, {"a": 0}),
        (NESTED, {"a": 0, "b": (np.zeros(2), 0), "c": 0}),
        (NESTED, {"a": 0, "b": (np.zeros(2),)}),
        (NESTED, {"a": 0, "b": (np.zeros(2), 2)}),
        (NESTED, [0, 0]),
    ],
)
def test_no_members(space, action):
    with pytest.raises(ValueError):  # noqa: PT011
        member(space, action)


def test_random_actions_lie_in_the_space_and_follow_the_seed():
    space = spaces.Dict({"a": spaces.Discrete(5), "b": BOX})
    first, again, other = (
        [str(random_policy(space, seed)(None)) for _ in range(3)] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert space.contains(random_policy(space, None)(None))
