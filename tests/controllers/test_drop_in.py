"""The drop-in controller: its goldens, its options, and the faults that it does not have."""

import copy
import json
import logging
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kl_proteus
from controllers.conftest import golden_file
from kl_proteus import (
    AdaptiveKLController,
    FixedKLController,
    KLConfig,
    KLControllerBase,
    KLStats,
    ThresholdKLController,
    compute_kl_divergence,
    create_kl_controller,
    estimate_kl_from_samples,
)

GOLDEN = golden_file("kl_controller.json")
EDGES = {case["case"]: case for case in GOLDEN["edge_cases"]}


def near(expected):
    """Equal up to a relative 1e-12."""
    return pytest.approx(expected, rel=1e-12, abs=0)


def made(config):
    """A controller of a golden config."""
    return KLControllerBase(KLConfig("reference", **config))


def assert_stats(stats, expected, rows):
    """The fields and the row of statistics."""
    assert vars(stats) == near(expected)
    assert stats.to_dict() == rows


def drifting(length, level=1.0):
    """Log-probabilities of a policy, and of a reference `level` nats a token below."""
    return [-1.0] * length, [-1.0 - level] * length


# Goldens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("trace", GOLDEN["single_sample_traces"])
def test_single_sample_trace(trace):
    controller = made(trace["config"])
    for step in trace["steps"]:
        arguments = step["policy_logprobs"], step["reference_logprobs"]
        assert controller.compute_kl_from_logprobs(*arguments) == near(step["kl"])
        penalty, kl = controller.get_penalty_from_logprobs(*arguments)
        assert (penalty, kl) == (near(step["penalty"]), near(step["kl"]))
        assert controller.kl_coeff == near(step["kl_coeff"])
        assert controller.get_stats().adaptation_count == step["adaptation_count"]
    assert_stats(controller.get_stats(), trace["stats"], trace["stats_dict"])
    assert controller.save_state() == {key: near(value) for key, value in trace["state"].items()}


@pytest.mark.parametrize("trace", GOLDEN["batch_traces"])
def test_batch_trace(trace):
    controller = made(trace["config"])
    for step in trace["steps"]:
        penalties, stats = controller.get_batch_penalty_from_logprobs(
            step["policy_logprobs"], step["reference_logprobs"]
        )
        assert penalties == near(step["penalties"])
        assert_stats(stats, step["stats"], step["stats_dict"])
        assert controller.kl_coeff == near(step["kl_coeff"])
    assert controller.save_state() == {key: near(value) for key, value in trace["state"].items()}


@pytest.mark.parametrize("trace", GOLDEN["single_sample_traces"])
def test_arrays_do_as_well_as_lists(trace):
    controller = made(trace["config"])
    for step in trace["steps"]:
        penalty, _ = controller.get_penalty_from_logprobs(
            np.array(step["policy_logprobs"]), tuple(step["reference_logprobs"])
        )
        assert penalty == near(step["penalty"])


@pytest.mark.parametrize("case", ["empty sequences", "negative sum is clamped to zero"])
def test_edge_cases_with_a_value(case):
    values = EDGES[case]
    kl = made({}).compute_kl_from_logprobs(values["policy_logprobs"], values["reference_logprobs"])
    assert kl == values["kl"]


def test_lengths_that_differ_are_refused():
    values = EDGES["length mismatch"]
    controller = made({})
    for call in (controller.compute_kl_from_logprobs, controller.get_penalty_from_logprobs):
        with pytest.raises(ValueError, match="reference"):
            call(values["policy_logprobs"], values["reference_logprobs"])
    assert controller.get_stats() == KLStats()


def test_an_empty_batch():
    values = EDGES["empty batch"]
    penalties, stats = made({}).get_batch_penalty_from_logprobs([], [])
    assert penalties == values["penalties"]
    assert vars(stats) == values["stats"]


@pytest.mark.parametrize("case", GOLDEN["divergences"])
def test_divergence(case):
    assert compute_kl_divergence(case["p"], case["q"]) == near(case["kl"])


def test_an_outcome_that_the_reference_excludes_costs_infinitely_much():
    case = GOLDEN["divergence_zero_support"]
    assert compute_kl_divergence(case["p"], case["q"]) == float(case["true_value"]) == math.inf


class CodePoints:
    """The tokenizer of the goldens."""

    def encode(self, text):
        return [ord(letter) for letter in text]


@pytest.mark.parametrize("case", GOLDEN["sample_frequency_estimates"])
def test_estimate_from_samples(case):
    texts = case["policy_samples"], case["reference_samples"]
    assert estimate_kl_from_samples(*texts, CodePoints()) == near(case["kl"])
    assert estimate_kl_from_samples(*texts, CodePoints().encode) == near(case["kl"])


def test_every_edge_case_is_tested():
    assert set(EDGES) == {
        "empty sequences",
        "negative sum is clamped to zero",
        "length mismatch",
        "empty batch",
    }


def test_the_fields_keep_their_order_and_defaults():
    config = KLConfig("m", 0.1, 3.0, True, 0.01, 1.0, 10, 1.5, 0.8, "auto", True)
    assert config == KLConfig("m")
    assert list(vars(config))[:11] == [
        "reference_model_name",
        "kl_coeff",
        "kl_target",
        "adaptive",
        "kl_coeff_min",
        "kl_coeff_max",
        "adaptation_window",
        "increase_factor",
        "decrease_factor",
        "device",
        "use_bf16",
    ]
    assert vars(KLStats()) == {
        "mean_kl": 0.0,
        "max_kl": 0.0,
        "min_kl": 0.0,
        "std_kl": 0.0,
        "current_coeff": 0.1,
        "adaptation_count": 0,
        "samples_processed": 0,
    }


# Saved and resumed -----------------------------------------------------------------------------


def feed(controller, levels):
    """The coefficient after each value."""
    values = []
    for level in levels:
        controller.get_penalty_from_logprobs(*drifting(2, level))
        values.append(controller.kl_coeff)
    return values


@given(
    st.sampled_from([1, 2, 10, 99, 100, 101, 150]),
    st.lists(st.sampled_from([0.1, 0.5, 3.0, 4.6, 9.0]), max_size=320),
    st.data(),
)
def test_a_resumed_run_is_the_run(window, levels, data):
    config = KLConfig("m", kl_coeff_min=1e-6, kl_coeff_max=1e6, adaptation_window=window)
    straight = KLControllerBase(config)
    values = feed(straight, levels)
    stop = data.draw(st.integers(0, len(levels)))
    first, second = KLControllerBase(config), KLControllerBase(config)
    feed(first, levels[:stop])
    state = json.loads(json.dumps(first.save_state(), allow_nan=False))
    assert len(state["recent_history"]) == min(stop, max(100, window))
    second.load_state(state)
    copies = [second, pickle.loads(pickle.dumps(first)), copy.deepcopy(first)]
    for resumed in copies:
        assert feed(resumed, levels[stop:]) == values[stop:]
        assert resumed.save_state() == straight.save_state()


def test_a_long_window_survives_a_resume():
    # With 100 saved values of a window of 150 the resumed run would not adapt for 50 steps.
    config = KLConfig("m", adaptation_window=150)
    first, second = KLControllerBase(config), KLControllerBase(config)
    feed(first, [9.0] * 149)
    second.load_state(first.save_state())
    assert feed(second, [9.0]) == [pytest.approx(0.15)]


def test_the_history_is_bounded():
    controller = made({})
    feed(controller, [float(i % 7) for i in range(1000)])
    state = controller.save_state()
    assert state["recent_history"] == [float(i % 7) for i in range(900, 1000)]
    assert state["samples_processed"] == 1000


def test_missing_keys_are_those_of_a_new_controller():
    controller = made({"kl_coeff": 0.3})
    feed(controller, [9.0] * 12)
    controller.load_state({})
    assert controller.save_state() == made({"kl_coeff": 0.3}).save_state()
    controller.load_state({"kl_coeff": 0.2, "a key of another program": 1})
    assert controller.kl_coeff == 0.2


def test_a_state_that_another_list_came_with_is_copied():
    controller = made({})
    history = [9.0] * 9
    controller.load_state({"recent_history": history})
    feed(controller, [9.0])
    assert history == [9.0] * 9
    assert controller.kl_coeff == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("kl_coeff", math.nan, ValueError),
        ("kl_coeff", -0.1, ValueError),
        ("kl_coeff", "0.1", TypeError),
        ("adaptation_count", -1, ValueError),
        ("adaptation_count", 1.5, TypeError),
        ("samples_processed", True, TypeError),
        ("recent_history", [1.0, math.nan], ValueError),
        ("recent_history", [1.0, "x"], TypeError),
        ("recent_history", "abc", TypeError),
        ("recent_history", 3.0, TypeError),
        ("controller", {"version": 1}, ValueError),
    ],
)
def test_a_state_that_is_none_is_refused_and_changes_nothing(key, value, error):
    controller = made({})
    feed(controller, [9.0] * 12)
    before = controller.save_state()
    with pytest.raises(error, match=key):
        controller.load_state(before | {"kl_coeff": 0.7} | {key: value})
    assert controller.save_state() == before


def test_what_is_no_state_at_all_is_refused():
    with pytest.raises(TypeError, match="state"):
        made({}).load_state([("kl_coeff", 0.1)])


# The coefficient and the config ----------------------------------------------------------------


def test_a_coefficient_outside_the_bounds_stays_until_the_first_adaptation():
    controller = made({"kl_coeff": 5.0, "adaptation_window": 3})
    assert feed(controller, [3.0, 3.0]) == [5.0, 5.0]
    assert feed(controller, [3.0]) == [1.0]
    assert controller.get_stats().adaptation_count == 1
    controller.kl_coeff = 7.0
    assert controller.kl_coeff == 7.0
    assert feed(controller, [3.0]) == [1.0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, "x", None, True])
def test_a_coefficient_that_is_none_cannot_be_set(value):
    controller = made({})
    with pytest.raises((TypeError, ValueError), match="kl_coeff"):
        controller.kl_coeff = value
    assert controller.kl_coeff == 0.1


def test_a_coefficient_of_zero_is_legal_and_leaves_no_penalty():
    controller = made({"kl_coeff": 0.0, "adaptive": False})
    assert controller.get_penalty_from_logprobs(*drifting(3)) == (0.0, 1.0)


def test_setting_the_coefficient_keeps_the_window():
    controller = made({})
    feed(controller, [9.0] * 9)
    controller.kl_coeff = 0.4
    assert feed(controller, [9.0]) == [pytest.approx(0.6)]


def test_a_field_of_the_config_acts_from_the_next_call_on():
    controller = made({})
    feed(controller, [2.0] * 20)
    assert controller.kl_coeff == 0.1
    controller.config.kl_target = 1.0
    assert feed(controller, [2.0]) == [pytest.approx(0.15)]
    controller.config.adaptive = False
    assert feed(controller, [9.0] * 5) == [pytest.approx(0.15)] * 5
    controller.config.adaptive = True
    # The values of the pause are in the window too.
    assert feed(controller, [0.0]) == [pytest.approx(0.225)]
    controller.config = KLConfig("other", kl_target=100.0)
    assert feed(controller, [9.0]) == [pytest.approx(0.18)]


def test_a_bad_field_is_refused_at_the_next_call_and_changes_nothing():
    controller = made({})
    feed(controller, [2.0] * 20)
    before = controller.save_state()
    controller.config.kl_target = -1.0
    with pytest.raises(ValueError, match="kl_target"):
        controller.get_penalty_from_logprobs(*drifting(2))
    assert controller.save_state() == before


def test_a_reset_forgets_the_values_and_nothing_else():
    controller = made({})
    feed(controller, [9.0] * 12)
    coefficient = controller.kl_coeff
    controller.reset_history()
    assert controller.save_state() == {
        "kl_coeff": coefficient,
        "adaptation_count": 3,
        "samples_processed": 12,
        "recent_history": [],
    }
    assert feed(controller, [9.0] * 9) == [coefficient] * 9
    assert feed(controller, [9.0]) == [pytest.approx(coefficient * 1.5)]


def test_an_adaptation_is_logged_at_debug_level(caplog):
    controller = made({"adaptation_window": 1})
    with caplog.at_level(logging.DEBUG, logger="kl_proteus"):
        feed(controller, [9.0, 3.0])
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]
    assert "0.15" in caplog.text


# Options ---------------------------------------------------------------------------------------


def test_estimators_and_reductions_are_one_argument_away():
    # l = 2 and -1: k1 0.5, abs 1.5, k2 1.25; sums over the tokens are twice that.
    logprobs = [-1.0, -2.0], [-3.0, -1.0]
    answers = {"k1": 0.5, "abs": 1.5, "k2": 1.25}
    answers["k3"] = (math.expm1(-2.0) + 2.0 + math.expm1(1.0) - 1.0) / 2
    for estimator, answer in answers.items():
        mean = made({"estimator": estimator}).compute_kl_from_logprobs(*logprobs)
        total = made({"estimator": estimator, "reduction": "sequence_sum"})
        assert mean == near(answer)
        assert total.compute_kl_from_logprobs(*logprobs) == near(2 * answer)


def test_the_clamp_can_be_lifted():
    logprobs = [-3.0, -2.0], [-1.0, -1.0]
    assert made({"clamp": False}).compute_kl_from_logprobs(*logprobs) == -1.5
    controller = made({"clamp": False})
    assert controller.get_penalty_from_logprobs(*logprobs) == near((-0.15, -1.5))


def test_another_controller_takes_over():
    rule = AdaptiveKLController(0.2, 6.0, 100, unit="nats/sequence")
    twin = AdaptiveKLController(0.2, 6.0, 100, unit="nats/sequence")
    controller = made({"controller": rule, "reduction": "sequence_sum"})
    assert controller.kl_coeff == 0.2
    policy, reference = drifting(4, 2.0)
    penalties, stats = controller.get_batch_penalty_from_logprobs(
        [policy, policy[:2]], [reference, reference[:2]]
    )
    assert penalties == near([1.6, 0.8])
    assert controller.kl_coeff == stats.current_coeff == rule.value == twin.update(6.0, 2)
    with pytest.raises(AttributeError, match="kl_coeff"):
        controller.kl_coeff = 0.1


def test_the_state_of_another_controller_is_saved_too():
    def fresh():
        return made({"controller": ThresholdKLController(0.1, 1.0, window=3)})

    first, second = fresh(), fresh()
    feed(first, [9.0] * 5)
    second.load_state(json.loads(json.dumps(first.save_state())))
    assert second.save_state() == first.save_state()
    assert feed(second, [9.0]) == feed(first, [9.0])
    before = second.save_state()
    other = {"controller": FixedKLController(0.1).state_dict(), "samples_processed": 99}
    with pytest.raises(ValueError, match="state"):
        second.load_state(other)
    assert second.save_state() == before


def test_a_refusal_of_the_controller_changes_nothing():
    controller = made({"controller": AdaptiveKLController(0.1, 1.0, 1)})
    policy, reference = drifting(3)
    before = controller.save_state()
    with pytest.raises(ValueError, match="n_steps"):
        controller.get_batch_penalty_from_logprobs([policy] * 5, [reference] * 5)
    assert controller.save_state() == before


class Mine:
    """A controller of one's own, which goes through the given values."""

    unit = "nats/token"

    def __init__(self, *values):
        self.values = list(values)
        self.place = 0

    @property
    def value(self):
        return self.values[self.place]

    def update(self, current, n_steps=1):
        self.place += 1
        return self.value

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def test_a_controller_of_ones_own_gets_one_mean_a_batch():
    # The default rule takes each sequence into its window.
    own = made({"controller": ThresholdKLController(0.1, 1.0, window=2)})
    default = made({"adaptation_window": 2, "kl_target": 1.0})
    batch = [[-1.0], [-1.0]], [[-5.0], [-9.0]]
    for controller in (own, default):
        controller.get_batch_penalty_from_logprobs(*batch)
    assert own.config.controller.state_dict()["memory"]["window"] == [6.0]
    assert (own.kl_coeff, default.kl_coeff) == (0.1, near(0.15))


@pytest.mark.parametrize("missing", ["state_dict", "load_state_dict"])
def test_a_controller_that_cannot_be_saved_is_refused(missing):
    class Forgetful(Mine):
        pass

    setattr(Forgetful, missing, None)
    with pytest.raises(TypeError, match=r"state_dict\(\)"):
        made({"controller": Forgetful(0.1)})


BAD_VALUES = [
    (math.nan, ValueError),
    (math.inf, ValueError),
    (-0.1, ValueError),
    ("0.1", TypeError),
    (None, TypeError),
    (True, TypeError),
]


@pytest.mark.parametrize(("bad", "error"), BAD_VALUES)
def test_a_controller_that_goes_astray_changes_nothing(bad, error):
    with pytest.raises(error, match=r"controller\.value"):
        made({"controller": Mine(bad)})
    controller = made({"controller": Mine(0.1, 0.2, bad)})
    assert controller.get_penalty_from_logprobs(*drifting(3)) == near((0.2, 1.0))
    before = controller.save_state()
    for call in (
        lambda: controller.get_penalty_from_logprobs(*drifting(3)),
        lambda: controller.get_batch_penalty_from_logprobs(*([x] for x in drifting(3))),
        lambda: controller.load_state(before | {"controller": {"place": 2}}),
    ):
        with pytest.raises(error, match=r"controller\.value"):
            call()
        assert controller.save_state() == before
    # Astray by another hand.
    controller.config.controller.place = 2
    with pytest.raises(error, match=r"controller\.value"):
        controller.get_stats()


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_penalty_that_overflows_is_refused_and_changes_nothing(adaptive):
    controller = made({"kl_coeff": 2.0, "adaptive": adaptive})
    before = controller.save_state()
    policy, reference = [0.0], [-1.7e308]
    for call in (
        lambda: controller.get_penalty_from_logprobs(policy, reference),
        lambda: controller.get_batch_penalty_from_logprobs([policy], [reference]),
    ):
        with pytest.raises(ValueError, match="finite penalties"):
            call()
        assert controller.save_state() == before


@pytest.mark.parametrize(
    "rule",
    [
        {"kl_coeff": 0.9, "kl_coeff_max": 1e3, "adaptation_window": 1},
        {"controller": AdaptiveKLController(0.9, 1.0, 1)},
        {"controller": Mine(0.9, 1.5)},
    ],
)
def test_an_adaptation_that_makes_a_penalty_overflow_is_undone(rule):
    controller = made(rule)
    before = controller.save_state()
    with pytest.raises(ValueError, match="finite penalties"):
        controller.get_penalty_from_logprobs([0.0], [-1.7e308])
    assert controller.save_state() == before
    # And nothing is left behind in the rule.
    assert math.isfinite(controller.get_penalty_from_logprobs(*drifting(3))[0])
    assert controller.save_state()["recent_history"] == [1.0]


def test_a_state_without_that_of_the_controller_is_refused():
    controller = made({"controller": AdaptiveKLController(0.2, 6.0, 100)})
    start = controller.save_state()
    feed(controller, [9.0] * 3)
    before = controller.save_state()
    for state in (made({}).save_state(), {"samples_processed": 3}, before | {"controller": None}):
        with pytest.raises(ValueError, match="controller"):
            controller.load_state(state)
        assert controller.save_state() == before
    controller.load_state({})
    assert controller.save_state() == start | {"kl_coeff": 0.2}


def test_an_empty_state_takes_a_later_controller_back_to_where_it_was_given():
    controller = made({})
    rule = AdaptiveKLController(0.2, 6.0, 100)
    rule.update(9.0, 3)
    given = rule.state_dict()
    controller.config.controller = rule
    feed(controller, [9.0] * 3)
    assert rule.state_dict() != given
    controller.load_state({})
    assert rule.state_dict() == given


def test_a_refusal_after_the_controller_would_have_loaded_leaves_it_alone():
    controller = made({"controller": AdaptiveKLController(0.2, 6.0, 100)})
    start = controller.save_state()
    feed(controller, [9.0] * 3)
    before = controller.config.controller.state_dict()
    controller.config.kl_target = -1.0
    with pytest.raises(ValueError, match="kl_target"):
        controller.load_state(start)
    assert controller.config.controller.state_dict() == before


@pytest.mark.parametrize(
    "rows", [[[-1.0, -2.0]], ([-1.0], [-2.0]), np.zeros((1, 3)), [np.zeros(2), np.zeros(3)]]
)
def test_several_sequences_are_no_sequence(rows):
    controller = made({})
    for call in (controller.compute_kl_from_logprobs, controller.get_penalty_from_logprobs):
        with pytest.raises(ValueError, match="one sequence"):
            call(rows, rows)
    with pytest.raises(ValueError, match=r"sequence 0 .*one sequence"):
        controller.get_batch_penalty_from_logprobs([rows], [rows])
    assert controller.get_stats() == KLStats()


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("reference_model_name", 3, TypeError),
        ("kl_coeff", -0.1, ValueError),
        ("kl_coeff", math.nan, ValueError),
        ("kl_target", 0.0, ValueError),
        ("kl_target", math.inf, ValueError),
        ("adaptive", 1, TypeError),
        ("kl_coeff_min", 0.0, ValueError),
        ("kl_coeff_min", 2.0, ValueError),
        ("kl_coeff_max", "1", TypeError),
        ("adaptation_window", 0, ValueError),
        ("adaptation_window", 10.0, TypeError),
        ("increase_factor", 0.9, ValueError),
        ("decrease_factor", 1.1, ValueError),
        ("decrease_factor", 0.0, ValueError),
        ("device", None, TypeError),
        ("use_bf16", "yes", TypeError),
        ("estimator", "k4", ValueError),
        ("reduction", "token_mean", ValueError),
        ("reduction", None, TypeError),
        ("clamp", 0, TypeError),
        ("on_nonfinite", "ignore", ValueError),
        ("controller", object(), TypeError),
        ("controller", FixedKLController(0.1, unit="nats/sequence"), ValueError),
    ],
)
def test_a_bad_setting_is_refused_with_its_name(field, value, error):
    settings = {"reference_model_name": "m", field: value}
    with pytest.raises(error, match=field):
        KLConfig(**settings)


def test_a_name_is_no_config():
    with pytest.raises(TypeError, match="config"):
        KLControllerBase("gpt2")


# Bad and empty input ---------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused_with_its_place(bad):
    controller = made({})
    feed(controller, [9.0] * 12)
    before = controller.save_state()
    with pytest.raises(ValueError, match=r"policy.*1"):
        controller.get_penalty_from_logprobs([-1.0, bad], [-1.0, -1.0])
    with pytest.raises(ValueError, match=r"sequence 1 .*reference.*0"):
        controller.get_batch_penalty_from_logprobs([[-1.0], [-1.0]], [[-2.0], [bad]])
    assert controller.save_state() == before


def test_values_that_are_not_finite_can_be_left_out():
    controller = made({"on_nonfinite": "exclude"})
    penalty, kl = controller.get_penalty_from_logprobs([-1.0, math.nan], [-2.0, -1.0])
    assert (penalty, kl) == near((0.1, 1.0))
    penalties, stats = controller.get_batch_penalty_from_logprobs(
        [[math.nan], [-1.0]], [[-1.0], [-4.0]]
    )
    assert penalties == near([0.0, 0.3])
    assert stats.mean_kl == 3.0
    assert stats.samples_processed == 2


def test_a_sequence_without_tokens_is_no_measurement():
    controller = made({"adaptation_window": 2})
    assert controller.get_penalty_from_logprobs([], []) == (0.0, 0.0)
    penalties, stats = controller.get_batch_penalty_from_logprobs([[], [-1.0]], [[], [-2.0]])
    assert penalties == near([0.0, 0.1])
    assert (stats.mean_kl, stats.samples_processed) == (1.0, 1)
    penalties, stats = controller.get_batch_penalty_from_logprobs([[], []], [[], []])
    assert penalties == [0.0, 0.0]
    assert controller.save_state()["recent_history"] == [1.0]
    assert controller.kl_coeff == 0.1


def test_batches_of_different_length_are_refused():
    controller = made({})
    with pytest.raises(ValueError, match="reference_logprobs_batch has 1 sequences"):
        controller.get_batch_penalty_from_logprobs([[-1.0], [-1.0]], [[-1.0]])
    with pytest.raises(TypeError, match="sequences"):
        controller.get_batch_penalty_from_logprobs(3, [[-1.0]])
    with pytest.raises(TypeError, match="sequence 0"):
        controller.get_batch_penalty_from_logprobs([["a"]], [["b"]])
    assert controller.get_stats() == KLStats()


def test_statistics_of_huge_values_are_numbers():
    controller = made({})
    controller.load_state({"recent_history": [1e300, -1e300, 1e300]})
    assert all(math.isfinite(value) for value in controller.get_stats().to_dict().values())


@pytest.mark.parametrize(
    ("p", "q", "error", "match"),
    [
        ([0.5, 0.5], [1.0], ValueError, "reference_probs has 1"),
        ([0.5, -0.5], [0.5, 0.5], ValueError, r"policy_probs\[1\]"),
        ([0.5, 0.5], [0.5, math.nan], ValueError, r"reference_probs\[1\]"),
        ([math.inf, 0.0], [0.5, 0.5], ValueError, r"policy_probs\[0\]"),
        ([3, 4], [5, 6], ValueError, "policy_probs must sum"),
        ([[0.5, 0.5]], [[0.5, 0.5]], ValueError, "one dimension"),
        (["a"], ["b"], TypeError, "policy_probs"),
        (None, [1.0], TypeError, "policy_probs"),
    ],
)
def test_what_is_no_distribution_is_refused(p, q, error, match):
    with pytest.raises(error, match=match):
        compute_kl_divergence(p, q)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.data())
def test_a_divergence_is_its_sum(weights, data):
    other = data.draw(st.lists(st.floats(0, 1), min_size=len(weights), max_size=len(weights)))
    p, q = ([x / (sum(w) or 1.0) for x in w] for w in (weights, other))
    kl = compute_kl_divergence(p, q)
    if any(x > 0 == y for x, y in zip(p, q, strict=True)):
        assert kl == math.inf
    else:
        terms = [x * (math.log(x) - math.log(y)) for x, y in zip(p, q, strict=True) if x]
        assert kl == pytest.approx(max(0.0, math.fsum(terms)), rel=1e-9, abs=1e-15)


def test_divergences_of_extreme_probabilities():
    assert compute_kl_divergence([], []) == 0.0
    assert compute_kl_divergence([1.0], [5e-324]) == near(-math.log(5e-324))
    assert compute_kl_divergence(np.float32([0.5, 0.5]), (0.5, 0.5)) == 0.0


def test_estimates_of_odd_samples():
    assert estimate_kl_from_samples([], [], CodePoints()) == 0.0
    assert estimate_kl_from_samples(["a"], [], CodePoints()) >= 0.0
    with pytest.raises(TypeError, match="tokenizer"):
        estimate_kl_from_samples(["a"], ["b"], 3)
    with pytest.raises(TypeError, match=r"policy_samples\[1\]"):
        estimate_kl_from_samples(["a", 3], ["b"], CodePoints())
    with pytest.raises(TypeError, match="reference_samples"):
        estimate_kl_from_samples(["a"], "b", CodePoints())


# Without torch ---------------------------------------------------------------------------------


@pytest.fixture
def no_torch(monkeypatch):
    """An installation where kl_proteus.torch cannot be imported."""
    import sys

    monkeypatch.setitem(sys.modules, "kl_proteus.torch", None)
    monkeypatch.delitem(vars(kl_proteus), "KLController", raising=False)


@pytest.mark.usefixtures("no_torch")
def test_the_controller_with_a_model_names_the_extra():
    for module in (kl_proteus, kl_proteus.kl_controller):
        with pytest.raises(ImportError, match=r"pip install 'kl-proteus\[torch\]'"):
            _ = module.KLController
    with pytest.raises(AttributeError):
        _ = kl_proteus.kl_controller.NoSuchName


@pytest.mark.usefixtures("no_torch")
def test_without_torch_the_factory_warns_and_returns_the_base(caplog):
    controller = create_kl_controller("gpt2", 0.2, 2.0, False)
    assert type(controller) is KLControllerBase
    assert controller.config == KLConfig("gpt2", 0.2, 2.0, False)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "kl-proteus[torch]" in caplog.text


def test_without_a_model_the_factory_returns_the_base(caplog):
    controller = create_kl_controller("gpt2", load_model=False)
    assert type(controller) is KLControllerBase
    assert not caplog.records


def test_with_torch_the_factory_returns_the_controller_with_a_model(monkeypatch):
    import sys
    from types import SimpleNamespace

    module = SimpleNamespace(KLController=lambda config: ("loaded", config))
    monkeypatch.setitem(sys.modules, "kl_proteus.torch", module)
    assert create_kl_controller("gpt2") == ("loaded", KLConfig("gpt2"))
