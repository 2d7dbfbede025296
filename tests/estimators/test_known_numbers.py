"""Numbers worked out by hand or reported by users of other trainers, whose mistakes stay made."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from kl_proteus import kl_divergence, kl_from_logprobs, kl_penalties

INF = math.inf
NAN = math.nan


def close(expected, rel=1e-12):
    return pytest.approx(expected, rel=rel, abs=1e-14)


def log_softmax(logits, temperature=1.0):
    scaled = np.asarray(logits, np.float64) / temperature
    return scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))


# Three-way categorical ------------------------------------------------------------------------

POLICY = np.array([0.6, 0.3, 0.1])
REFERENCE = np.array([0.3, 0.3, 0.4])
SAMPLER = np.array([0.5, 0.2, 0.3])


def expectation(estimator, weights):
    values = kl_from_logprobs(
        np.log(POLICY), np.log(REFERENCE), estimator=estimator, reduction="none"
    )
    return float(weights @ values)


def test_expectations_under_the_policy():
    assert kl_divergence(POLICY, REFERENCE) == close(0.277258872223978)
    assert expectation("k1", POLICY) == close(0.277258872223978)
    assert expectation("k3", POLICY) == close(0.277258872223978)
    assert expectation("k2", POLICY) == close(0.240226506959101)
    assert kl_divergence(REFERENCE, POLICY) == close(0.346573590279973)


def test_expectations_under_another_sampler_need_the_ratio():
    assert expectation("k1", SAMPLER) == close(-0.0693147180559945)
    assert expectation("k3", SAMPLER) == close(0.580685281944005)
    ratio = POLICY / SAMPLER
    assert expectation("k1", SAMPLER * ratio) == close(0.277258872223978)
    assert expectation("k3", SAMPLER * ratio) == close(0.277258872223978)


# Single tokens --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "reference", "estimator", "value"),
    [
        (-6.0, -2.0, "k3", 49.598150033144236),
        (-12.30, -12.33, "k1", 0.03),
        (-12.34, -12.35, "k1", 0.01),
        (-12.34, -12.35, "k3", math.fsum([math.expm1(-0.01), 0.01])),
        (0.0, 5e-5, "k3", 1.2500208335937526e-9),
        (-1e-9, 0.0, "k3", 5.000000001666667e-19),
        (0.0, -1e-9, "k3", 4.999999998333333e-19),
    ],
)
def test_one_token(policy, reference, estimator, value):
    # 1e-9: what the difference of two log-probabilities of 12 has lost before we see it.
    rel = 1e-12 if max(abs(policy), abs(reference)) < 10 else 1e-9
    assert kl_from_logprobs([policy], [reference], estimator=estimator) == pytest.approx(value, rel)


def test_float32_log_probabilities_never_give_a_negative_k3():
    policy = np.array([-1.00005, -2.5, -12.34], np.float32)
    reference = np.array([-1.0, -2.5, -12.35], np.float32)
    values = kl_from_logprobs(policy, reference, estimator="k3", reduction="none")
    x = reference.astype(np.float64) - policy.astype(np.float64)
    assert values == pytest.approx(x**2 / 2 + x**3 / 6 + x**4 / 24, rel=1e-9)
    assert (values >= 0).all()


def test_the_kind_that_was_asked_for_is_reported():
    policy, reference = [-2.3, -0.1], [-0.5, -0.9]
    got = {k: kl_from_logprobs(policy, reference, estimator=k) for k in ("k1", "abs", "k2", "k3")}
    assert got == close({"k1": -0.5, "abs": 1.3, "k2": 0.97, "k3": 1.74948821427}, rel=1e-11)


# Masks ----------------------------------------------------------------------------------------


def test_infinity_under_the_mask_is_not_there():
    policy, reference = [-1.0, -2.0, -INF], [-1.5, -1.0, -3.0]
    mean = kl_from_logprobs(policy, reference, [1, 1, 0], estimator="k3")
    assert mean == close(0.412406244085839)
    total = kl_from_logprobs(
        [policy], [reference], [[1, 1, 0]], estimator="k3", reduction="sequence_sum"
    )
    assert total == close(0.824812488171679)
    with pytest.raises(ValueError, match=r"policy\[2\] is -inf"):
        kl_from_logprobs(policy, reference, [1, 1, 1], estimator="k3")


def test_both_impossible_is_no_measurement_of_zero():
    with pytest.raises(ValueError, match=r"policy\[0\]\[1\] is -inf"):
        kl_from_logprobs([[-1.0, -INF]], [[-1.0, -INF]])
    value, counts = kl_from_logprobs(
        [[-1.0, -INF]], [[-1.5, -INF]], on_nonfinite="exclude", return_counts=True
    )
    assert (value, counts) == (0.5, (1, 1, 1))


def test_a_sequence_without_tokens_is_left_out_of_the_means():
    kl, zero, mask = [[0.2, 0.2], [7.0, 9.0]], [[0.0, 0.0]] * 2, [[1, 1], [0, 0]]
    for reduction, expected in [
        ("sequence_mean", 0.2),
        ("token_mean", 0.2),
        ("sequence_sum", 0.4),
    ]:
        value, counts = kl_from_logprobs(kl, zero, mask, reduction=reduction, return_counts=True)
        assert value == close(expected)
        assert counts == (2, 0, 1)
    assert list(kl_from_logprobs(kl, zero, mask, reduction="per_sequence")) == close([0.2, 0.0])


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean", "sequence_sum"])
@pytest.mark.parametrize(
    ("empty", "mask"),
    [
        ([], None),
        ([[]], None),
        ([[], []], None),
        (np.empty((0, 3)), None),
        (np.empty((3, 0)), None),
        ([5.0], [0]),
        (np.full((2, 3), NAN), np.zeros((2, 3), bool)),
    ],
)
def test_nothing_at_all_is_zero_and_says_so(empty, mask, reduction):
    value, counts = kl_from_logprobs(empty, empty, mask, reduction=reduction, return_counts=True)
    assert (value, counts) == (0.0, (0, 0, 0))


def test_nothing_is_one_sequence_or_none():
    for empty in ([], np.empty(0)):
        assert list(kl_from_logprobs(empty, empty, reduction="per_sequence")) == [0.0]
    empty = np.empty((0, 3))
    assert kl_from_logprobs(empty, empty, reduction="per_sequence").shape == (0,)
    assert kl_from_logprobs(empty, empty, reduction="none").shape == (0, 3)


def test_ranks_without_tokens_do_not_halve_the_mean():
    shards = [[[1.0]], [[]], [[1.0]], [[]]]
    parts = [kl_from_logprobs(s, [[0.0] * len(s[0])], return_counts=True) for s in shards]
    kept = sum(counts.kept for _, counts in parts)
    assert sum(value * counts.kept for value, counts in parts) / kept == 1.0


@pytest.mark.parametrize(
    ("parts", "mean"),
    [([(1.0, 10), (0.2, 30)], 0.4), ([(0.10, 100), (0.20, 50), (0.05, 10)], 0.128125)],
)
def test_micro_batches_are_weighed_by_their_tokens(parts, mean):
    shards = [kl_from_logprobs([kl] * n, [0.0] * n, return_counts=True) for kl, n in parts]
    kept = sum(counts.kept for _, counts in shards)
    assert sum(value * counts.kept for value, counts in shards) / kept == close(mean)
    whole = [kl for kl, n in parts for _ in range(n)]
    assert kl_from_logprobs(whole, [0.0] * len(whole)) == close(mean)


def test_padding_is_not_averaged_over():
    kl, mask = [0.4, 0.2, 9.0, 9.0], [1, 1, 0, 0]
    assert kl_from_logprobs(kl, [0.0] * 4, mask) == close(0.3)


def test_padding_is_not_summed():
    policy, reference = [[-1, -2, -0.7, -0.7]], [[-1.5, -1.8, -2.7, -2.2]]
    got = kl_from_logprobs(policy, reference, [[1, 1, 0, 0]], reduction="sequence_sum")
    assert got == close(0.3)


def test_a_sentinel_at_padding_does_not_enter():
    surprise = kl_from_logprobs(
        [[0.0] * 8], [[-1.0, -2.0, *[1.0] * 6]], [[1, 1, *[0] * 6]], reduction="sequence_sum"
    )
    assert surprise == close(3.0)


def test_a_missing_score_is_left_out_and_never_invented():
    value, counts = kl_from_logprobs(
        [-0.5, -0.25], [NAN, -1.0], on_nonfinite="exclude", return_counts=True
    )
    assert (value, counts) == (0.75, (1, 1, 1))
    with pytest.raises(ValueError, match=r"reference\[0\] is NaN"):
        kl_from_logprobs([-0.5, -0.25], [NAN, -1.0])
    with pytest.raises(TypeError, match=r"reference\[0\] is of type NoneType"):
        kl_from_logprobs([-0.5, -0.25], [None, -1.0])
    # A sampler gives no score for the first token of a prompt; a mask says so.
    assert kl_from_logprobs([-0.5, -0.25], [None, -1.0], [False, True]) == 0.75


def test_the_mask_is_given_and_not_inferred_from_a_padding_token():
    # ids 5, 7, 2, 2, 2, where 2 is the end of the text and the padding: the first 2 counts.
    kl, mask = [0.1, 0.2, 0.9, 5.0, 5.0], [1, 1, 1, 0, 0]
    assert kl_from_logprobs(kl, [0.0] * 5, mask) == close(0.4)


# Temperature and alignment --------------------------------------------------------------------

LOGITS = (2.0, 1.0, 0.0)
OTHER = (1.5, 1.0, 0.5)


@pytest.mark.parametrize(
    ("policy", "reference", "kl"),
    [
        ((LOGITS, 0.7), (LOGITS, 0.7), 0.0),
        ((LOGITS, 1.0), (LOGITS, 1.0), 0.0),
        ((LOGITS, 0.7), (LOGITS, 1.0), 0.0303512878592913),
        ((LOGITS, 0.7), (OTHER, 0.7), 0.0923091240044565),
        ((LOGITS, 1.0), (OTHER, 1.0), 0.0602688974995747),
        ((LOGITS, 0.7), (OTHER, 1.0), 0.16635600779291),
    ],
)
def test_temperature_belongs_to_both_sides(policy, reference, kl):
    lp, lr = log_softmax(*policy), log_softmax(*reference)
    assert kl_divergence(np.exp(lp), np.exp(lr)) == close(kl)
    for estimator in ("k1", "k3"):
        values = kl_from_logprobs(lp, lr, estimator=estimator, reduction="none")
        assert float(np.exp(lp) @ values) == close(kl)


def test_mixed_temperatures_look_like_divergence():
    mixed = log_softmax(LOGITS, 0.7), log_softmax(LOGITS)
    k1 = kl_from_logprobs(*mixed, reduction="none")
    assert k1 == pytest.approx([0.147487562, -0.281083867, -0.709655295], abs=1e-9)
    nearly = kl_from_logprobs(log_softmax(LOGITS, 0.7 + 1e-7), log_softmax(LOGITS, 0.7))
    assert 0 < abs(nearly) < 1e-6


def test_log_probabilities_of_the_next_token():
    rows = log_softmax([(0, 1, 2), (2, 0, 1), (1, 2, 0)])
    ids = [2, 0, 1]
    aligned = rows[range(3), ids]
    shifted = rows[range(3), [0, 2, 0]]
    assert aligned == close([-0.4076059644443806] * 3)
    kl = kl_from_logprobs([aligned], [shifted], reduction="sequence_sum")
    assert kl == close(-1.2228178933331417 + 5.222817893333142)
    for longer in (np.append(aligned, 0.0), aligned[:2]):
        with pytest.raises(ValueError, match="tokens"):
            kl_from_logprobs(aligned, longer)


# Penalties ------------------------------------------------------------------------------------


class Controller:
    value = 0.5


@pytest.mark.parametrize("coefficient", [0.5, np.float32(0.5), Controller()])
def test_penalties_of_the_example(coefficient):
    kl = (0.1, -0.2, 0.4)
    assert kl_penalties(kl, coefficient) == close([-0.05, 0.10, -0.20])
    assert kl_penalties(kl, coefficient, kind="to_go") == close([-0.15, -0.10, -0.20])


def test_the_output_of_a_tool_is_not_charged():
    rewards = kl_penalties([0.1, 5.0, 0.2], 1.0, [1, 0, 1], kind="to_go")
    assert rewards == close([-0.3, 0.0, -0.2])


def test_to_go_is_the_gradient_of_the_divergence_of_sequences():
    # Two tokens from two: the policy's second depends on its first. Parameters are the logits.
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=2), generator.normal(size=(2, 2))
    ref_first, ref_second = log_softmax(generator.normal(size=2)), log_softmax(np.eye(2))

    def log_probabilities(first, second):
        return log_softmax(first), log_softmax(second)

    def divergence(first, second):
        lf, ls = log_probabilities(first, second)
        joint = np.exp(lf)[:, None] * np.exp(ls)
        return float((joint * (lf[:, None] + ls - ref_first[:, None] - ref_second)).sum())

    lf, ls = log_probabilities(first, second)
    score_gradient = np.zeros(2)
    for a in range(2):
        for b in range(2):
            policy, reference = [lf[a], ls[a, b]], [ref_first[a], ref_second[a, b]]
            kl = kl_from_logprobs(policy, reference, reduction="none")
            charge = -kl_penalties(kl, 1.0, kind="to_go")[0]
            probability = math.exp(lf[a] + ls[a, b])
            score_gradient += probability * charge * (np.eye(2)[a] - np.exp(lf))
    step = 1e-6
    for i in range(2):
        change = np.eye(2)[i] * step
        slope = (divergence(first + change, second) - divergence(first - change, second)) / 2 / step
        assert score_gradient[i] == pytest.approx(slope, abs=1e-8)


# Divergences ----------------------------------------------------------------------------------

KNOWN = json.loads((Path(__file__).parent / "divergences.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", KNOWN["divergences"], ids=lambda case: f"{len(case['p'])} cells")
def test_divergence(case):
    assert kl_divergence(case["p"], case["q"]) == pytest.approx(case["kl"], rel=1e-12)


def test_divergence_without_support_is_infinite():
    case = KNOWN["divergence_zero_support"]
    assert kl_divergence(case["p"], case["q"]) == float(case["kl"]) == INF


def test_a_zero_of_p_is_no_trouble():
    p, q = [0.7, 0.3, 0.0], [0.5, 0.25, 0.25]
    assert kl_divergence(p, q) == close(0.290227032673035)
    assert kl_divergence(q, p) == INF


def test_one_step_down_the_divergence():
    pi, ref = np.array([0.5, 0.5]), np.array([0.8, 0.2])
    assert kl_divergence(pi, ref) == close(0.22314355131, rel=1e-10)
    log_ratio = np.log(pi / ref)
    gradient = pi * (log_ratio - pi @ log_ratio)
    down, up = (np.exp(log_softmax(np.log(pi) - s * 0.5 * gradient)) for s in (1, -1))
    assert kl_divergence(down, ref) == close(0.11900999894, rel=1e-10)
    assert kl_divergence(up, ref) == close(0.35686050842, rel=1e-10)
