"""Every compiled rule equals its slow twin after every update."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.rules import RULES, cases


@pytest.mark.parametrize("rule", RULES)
@given(data=st.data())
def test_a_rule_is_its_twin(rule, data):
    case = data.draw(cases(rule))
    controller, slow = case.pair()
    for current, n_steps in case.feed:
        value = controller.update(current, n_steps)
        assert type(value) is float
        assert value == controller.value
        expected = slow.update(current, n_steps)
        if case.exact:
            assert value == expected
        else:
            assert value == pytest.approx(expected, rel=1e-9, abs=0)


@pytest.mark.parametrize("rule", RULES)
@given(data=st.data())
def test_what_is_said_of_a_change_is_what_happened(rule, data):
    case = data.draw(cases(rule))
    controller = case.make()
    assert controller.last_change is None
    for current, n_steps in case.feed:
        before, said = controller.value, controller.last_change
        controller.update(current, n_steps)
        change = controller.last_change
        if n_steps == 0 or current == []:
            assert (controller.value, change) == (before, said)
            continue
        assert (change["before"], change["after"]) == (before, controller.value)
        assert (change["n_steps"], change["unit"]) == (n_steps, controller.unit)
        assert change["target"] == controller.target
        moved = (controller.value > before) - (controller.value < before)
        assert change["action"] == {1: "up", 0: "hold", -1: "down"}[moved]
        if change["target"] is not None:
            assert change["ratio"] == change["measured"] / change["target"]
        side = change["reason"].split("_")[0]
        if rule in ("adaptive", "ppo_penalty", "threshold"):
            assert moved in {"above": (0, 1), "below": (0, -1)}.get(side, (0,))
        if change["bounded"]:
            assert controller.value in (controller.min_value, controller.max_value)


@pytest.mark.parametrize("rule", ["adaptive", "ppo_penalty", "threshold", "pid"])
@given(data=st.data())
def test_a_larger_divergence_never_gives_a_smaller_coefficient(rule, data):
    case = data.draw(cases(rule))
    first, second = case.make(), case.make()
    for current, n_steps in case.feed:
        first.update(current, n_steps)
        second.update(current, n_steps)
    low, high = sorted(data.draw(st.tuples(st.floats(-1, 50), st.floats(-1, 50))))
    n_steps = data.draw(st.integers(1, 9))
    assert first.update(low, n_steps) <= second.update(high, n_steps)
