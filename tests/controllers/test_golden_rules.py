"""Every value of the published traces, bit for bit, and the wanted answer of each edge case."""

import math

import pytest

from controllers.conftest import golden_file
from kl_proteus import AdaptiveKLController, PIDKLController, PPOPenaltyController

GOLDEN = golden_file("controllers.json")
PROPORTIONAL = ["ziegler_trl_init0.2_target6_h10000", "verl_init0.001_target0.1_h10000"]
EDGES = {case["name"]: case for case in GOLDEN["edge_cases"]}


def proportional(name):
    """The controller of a trace."""
    parameters = GOLDEN[name]["params"]
    return AdaptiveKLController(
        parameters["init"], parameters["target"], parameters["horizon"], clip=parameters["clip"]
    )


@pytest.mark.parametrize("name", PROPORTIONAL)
def test_proportional_trace(name):
    controller = proportional(name)
    for step in GOLDEN[name]["steps"]:
        assert controller.value == step["beta_used"]
        after = controller.update(step["kl"], step["n_steps"])
        assert after == step["beta_after"] == float.fromhex(step["beta_after_hex"])
        change = controller.last_change
        assert change["error"] == step["error"]
        assert 1 + change["error"] * step["n_steps"] / controller.horizon == step["mult"]


def test_band_trace():
    trace = GOLDEN["ppo_paper_init1_target0.01"]
    parameters = trace["params"]
    band, factor = parameters["band"], parameters["factor"]
    default = PPOPenaltyController(parameters["init"], parameters["target"])
    spelled = PPOPenaltyController(
        parameters["init"],
        parameters["target"],
        high=band,
        low=1 / band,
        increase_factor=factor,
        decrease_factor=1 / factor,
    )
    for controller in (default, spelled):
        for step in trace["steps"]:
            assert controller.value == step["beta_used"]
            after = controller.update(step["kl"], step["n_steps"])
            assert after == step["beta_after"] == float.fromhex(step["beta_after_hex"])
            assert controller.last_change["action"] == step["action"]


def test_saved_in_the_middle_of_a_trace():
    case = GOLDEN["resume_case"]
    steps = GOLDEN[case["trace"]]["steps"]
    first = proportional(case["trace"])
    for step in steps[: case["save_after_step"] + 1]:
        first.update(step["kl"], step["n_steps"])
    assert first.value == case["beta_saved"]
    resumed, lost = proportional(case["trace"]), proportional(case["trace"])
    resumed.load_state_dict(first.state_dict())
    for step in steps[case["save_after_step"] + 1 :]:
        resumed.update(step["kl"], step["n_steps"])
        lost.update(step["kl"], step["n_steps"])
    assert resumed.value == case["beta_final_continuous"]
    assert lost.value == case["beta_final_if_state_lost"]


def test_the_linear_rule_is_not_additive():
    note = GOLDEN["not_additive_note"]
    once, twice = (AdaptiveKLController(0.2, 6.0, 10000) for _ in range(2))
    assert once.update(12.0, 512) == note["one_update_512"]
    twice.update(12.0, 256)
    assert twice.update(12.0, 256) == note["two_updates_256"]


def test_the_proportional_rule_multiplies_before_it_divides():
    # Here the order of the operations shows in the last bit.
    error = 5.4 / 6.0 - 1.0
    expected = 0.2 * (1.0 + (error * 677) / 10000)
    assert expected != 0.2 * (1.0 + error * (677 / 10000))
    assert expected != 0.2 * (1.0 + (error / 10000) * 677)
    assert AdaptiveKLController(0.2, 6.0, 10000).update(5.4, 677) == expected


def edge(name):
    """A controller of an edge case, and its input."""
    values = EDGES[name]["input"]
    controller = AdaptiveKLController(values["beta"], values["target"], values["horizon"])
    return controller, values


@pytest.mark.parametrize("name", ["negative_multiplier", "nan_kl", "inf_kl"])
def test_edge_cases_that_update_refuses(name):
    controller, values = edge(name)
    before = controller.state_dict()
    with pytest.raises(ValueError, match="n_steps" if name == "negative_multiplier" else "current"):
        controller.update(float(values["kl"]), values["n_steps"])
    assert controller.value == values["beta"]
    assert controller.state_dict() == before


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("second_step_runs_away", "init_kl_coef"),
        ("zero_is_absorbing", "init_kl_coef"),
        ("target_zero", "target"),
        ("horizon_zero", "horizon"),
        ("negative_target", "target"),
    ],
)
def test_edge_cases_that_construction_refuses(name, argument):
    with pytest.raises(ValueError, match=argument):
        edge(name)


@pytest.mark.parametrize("name", ["negative_kl", "zero_n_steps", "unit_mistake"])
def test_edge_cases_with_the_published_answer(name):
    controller, values = edge(name)
    after = controller.update(values["kl"], values["n_steps"])
    assert after == pytest.approx(EDGES[name]["published_rule"], rel=1e-15)


def test_the_unit_says_what_a_number_means():
    _, values = edge("unit_mistake")
    controller = AdaptiveKLController(
        values["beta"], values["target"], values["horizon"], unit="nats/sequence"
    )
    assert controller.unit == "nats/sequence"
    assert controller.update(0.06 * 100, values["n_steps"]) == values["beta"]
    assert AdaptiveKLController(0.2, 6.0, 10000).unit == "nats/token"


@pytest.mark.parametrize(
    ("name", "end"), [("underflow_drift", "min_value"), ("overflow_drift", "max_value")]
)
def test_edge_cases_that_end_at_a_bound(name, end):
    controller, values = edge(name)
    for _ in range(values["repeats"]):
        assert math.isfinite(controller.update(values["kl"], values["n_steps"]))
    assert controller.value == getattr(controller, end)
    assert controller.last_change["bounded"]
    assert controller.last_change["action"] == "hold"
    # And it comes back.
    controller.update(values["target"] * (2 if end == "min_value" else 0), values["n_steps"])
    assert controller.value != getattr(controller, end)


def test_the_exponential_form_takes_what_the_linear_one_refuses():
    case = EDGES["negative_multiplier"]
    values = case["input"]
    controller = PIDKLController(
        values["beta"], values["target"], values["horizon"], kp=1.0, ki=0.0, kd=0.0
    )
    after = controller.update(values["kl"], values["n_steps"])
    assert after == pytest.approx(case["exp_form"], rel=1e-12)


def test_every_edge_case_is_tested():
    tested = {
        "negative_multiplier",
        "second_step_runs_away",
        "zero_is_absorbing",
        "underflow_drift",
        "overflow_drift",
        "nan_kl",
        "inf_kl",
        "negative_kl",
        "zero_n_steps",
        "target_zero",
        "horizon_zero",
        "negative_target",
        "unit_mistake",
    }
    assert set(EDGES) == tested
