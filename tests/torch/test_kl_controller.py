"""The drop-in controller with a model: its goldens, its two alignments, and what it refuses."""

import json
import logging
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

import kl_proteus
from kl_proteus import AdaptiveKLController, KLConfig, KLControllerBase, KLStats
from kl_proteus.torch import KLController, ReferenceModel, create_kl_controller, token_logprobs

ROOT = Path(__file__).parents[2]


def golden():
    """The golden file: beside the checkout where it lies there, else the copy in the tests."""
    name = "kl_controller_torch.json"
    beside = ROOT.parent / "shared" / "golden" / name
    path = beside if beside.exists() else ROOT / "tests" / "golden" / name
    return json.loads(path.read_text(encoding="utf-8"))["cases"]


GOLDEN = golden()


class Stub(torch.nn.Module):
    """A model that returns the logits it was given, and knows nothing else."""

    def __init__(self, logits):
        super().__init__()
        self.given = logits
        self.calls = 0

    def forward(self, input_ids, attention_mask):
        self.calls += 1
        return SimpleNamespace(logits=self.given)


def near(expected):
    return pytest.approx(expected, rel=1e-6, abs=0)


def made(case, dtype=torch.float64, **options):
    """A controller with the stub of a golden case, and the arguments of its calls."""
    controller = KLController(KLConfig("stub", **(case["config"] | options)), load_model=False)
    controller.ref_model = Stub(torch.tensor(case["reference_logits"], dtype=dtype))
    return (
        controller,
        torch.tensor(case["policy_logprobs"], dtype=dtype),
        torch.tensor(case["tokens"]),
        torch.tensor(case["attention_mask"]),
    )


# Goldens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", GOLDEN)
def test_divergence(case, dtype):
    controller, *arguments = made(case, dtype)
    kl = controller.compute_kl(*arguments)
    assert kl.dtype == dtype
    assert kl.tolist() == near(case["kl"])
    assert controller.get_stats() == KLStats()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", GOLDEN)
def test_reference_logprobs(case, dtype):
    controller, _, tokens, mask = made(case, dtype)
    values = controller.compute_reference_logprobs(tokens, mask)
    assert values.dtype == torch.float32
    compared = mask.bool() & (mask.cumsum(1) > 1)
    expected = torch.tensor(case["reference_logprobs"], dtype=torch.float64)
    assert values[compared].tolist() == near(expected[compared].tolist())
    assert not values[~compared].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", GOLDEN)
def test_calls_in_their_order(case, dtype):
    controller, *arguments = made(case, dtype)
    for call in case["calls"]:
        penalty, second = getattr(controller, call["call"])(*arguments)
        assert penalty.tolist() == near(call["penalty"])
        if call["call"] == "get_penalty":
            assert isinstance(second, float)
            assert second == near(call["mean_kl"])
        else:
            assert vars(second) == near(call["stats"])
            assert set(second.to_dict()) == {
                "kl/mean", "kl/max", "kl/min", "kl/std", "kl/coeff",
                "kl/adaptation_count", "kl/samples_processed",
            }  # fmt: skip
            assert controller.kl_coeff == near(call["kl_coeff"])


def test_every_golden_has_the_calls_that_are_tested():
    assert len(GOLDEN) == 3
    for case in GOLDEN:
        names = [call["call"] for call in case["calls"]]
        assert names == ["get_penalty", "get_penalty", "get_batch_penalty"]


# Alignment and masks ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN[:2])
def test_three_ways_to_pass_the_same(case):
    controller, policy, tokens, mask = made(case)
    expected = controller.compute_kl(policy, tokens, mask)
    shifted = torch.cat([torch.full_like(policy[:, :1], 7.0), policy[:, :-1]], dim=1)
    for other, alignment in ((policy[:, :-1], "next"), (shifted, "token")):
        kl = controller.compute_kl(other, tokens, mask, alignment=alignment)
        assert torch.equal(kl, expected)
    assert not torch.equal(controller.compute_kl(policy, tokens, mask, alignment="token"), expected)


def test_what_is_masked_changes_nothing():
    controller, policy, tokens, mask = made(GOLDEN[0])
    expected = controller.compute_kl(policy, tokens, mask)
    for poison in (math.nan, math.inf, -math.inf):
        other = policy.clone()
        other[1, 2:] = poison
        other[:, -1] = poison
        other.requires_grad_()
        ids = tokens.clone()
        ids[1, 3:] = -100
        kl = controller.compute_kl(other, ids, mask.bool())
        assert torch.equal(kl, expected)
        kl.sum().backward()
        assert other.grad.isfinite().all()
        assert not other.grad[1, 2:].any()


def test_no_mask_is_a_mask_of_ones():
    controller, policy, tokens, mask = made(GOLDEN[0])
    ones = torch.ones_like(mask)
    assert torch.equal(
        controller.compute_kl(policy, tokens), controller.compute_kl(policy, tokens, ones)
    )
    assert torch.equal(
        controller.compute_reference_logprobs(tokens),
        controller.compute_reference_logprobs(tokens, ones),
    )


def test_rows_without_tokens_are_no_measurement():
    controller, policy, tokens, mask = made(GOLDEN[1])
    alone = made(GOLDEN[1])[0]
    mask[1] = 0
    kl = controller.compute_kl(policy, tokens, mask)
    assert kl[1] == 0.0
    penalty, stats = controller.get_batch_penalty(policy, tokens, mask)
    assert penalty[1] == 0.0
    assert stats.samples_processed == 2
    assert stats.mean_kl == near(float(kl[[0, 2]].mean()))
    assert stats.min_kl == near(float(kl[[0, 2]].min()))

    before = alone.save_state()
    penalty, mean = alone.get_penalty(policy, tokens, torch.zeros_like(mask))
    assert (penalty.tolist(), mean) == ([0.0] * 3, 0.0)
    assert alone.get_batch_penalty(policy[:0], tokens[:0], mask[:0])[1].mean_kl == 0.0
    assert alone.save_state() == before


def test_options_of_the_config():
    _, policy, tokens, mask = made(GOLDEN[1])
    counted = mask[:, 1:].bool()
    lp = policy[:, :-1]
    logits = torch.tensor(GOLDEN[1]["reference_logits"], dtype=torch.float64)
    ref = logits.log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None]).squeeze(-1)
    k3 = torch.where(counted, torch.expm1(ref - lp) - (ref - lp), 0.0)
    controller = made(GOLDEN[1], estimator="k3", reduction="sequence_sum")[0]
    assert controller.compute_kl(policy, tokens, mask).tolist() == near(k3.sum(1).tolist())
    warm = made(GOLDEN[1])[0]
    warm.config.temperature = 0.7
    cold = (logits / 0.7).log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None]).squeeze(-1)
    expected = torch.where(counted, lp - cold, 0.0).sum(1) / counted.sum(1)
    assert warm.compute_kl(policy, tokens, mask).tolist() == near(expected.tolist())


def test_values_that_are_not_finite():
    controller, policy, tokens, mask = made(GOLDEN[1])
    policy[1, 2] = -math.inf
    before = controller.save_state()
    for call in (controller.compute_kl, controller.get_penalty, controller.get_batch_penalty):
        with pytest.raises(ValueError, match=r"\[1\]\[2\] is -inf"):
            call(policy, tokens, mask)
    assert controller.save_state() == before

    controller = made(GOLDEN[1], on_nonfinite="exclude")[0]
    fewer = mask.clone()
    fewer[1, 3] = 0
    assert torch.equal(
        controller.compute_kl(policy, tokens, mask), controller.compute_kl(policy, tokens, fewer)
    )
    policy[1] = math.nan
    _, stats = controller.get_batch_penalty(policy, tokens, mask)
    assert stats.samples_processed == 2


def test_a_controller_of_ones_own_gets_the_mean_and_the_number_of_rows():
    seen = []

    class Own:
        value, unit = 0.5, "nats/token"

        def update(self, current, n_steps=1):
            seen.append((current, n_steps))
            return self.value

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    controller, policy, tokens, mask = made(GOLDEN[1], controller=Own())
    penalty, mean = controller.get_penalty(policy, tokens, mask)
    assert seen == [(mean, 3)]
    assert penalty.tolist() == near([0.5 * kl for kl in GOLDEN[1]["kl"]])


def test_the_state_and_the_methods_on_lists_are_those_of_the_base():
    controller, policy, tokens, mask = made(GOLDEN[1])
    assert isinstance(controller, KLControllerBase)
    controller.get_penalty(policy, tokens, mask)
    state = json.loads(json.dumps(controller.save_state()))
    resumed = made(GOLDEN[1])[0]
    resumed.load_state(state)
    for _ in range(2):
        ours = controller.get_penalty(policy, tokens, mask)
        theirs = resumed.get_penalty(policy, tokens, mask)
        assert torch.equal(ours[0], theirs[0])
    assert controller.save_state() == resumed.save_state()
    base = KLControllerBase(KLConfig("stub"))
    other = KLController("stub", load_model=False)
    lists = [[-1.0, -2.0], []], [[-3.0, -9.0], []]
    assert other.get_batch_penalty_from_logprobs(*lists) == base.get_batch_penalty_from_logprobs(
        *lists
    )
    assert other.get_penalty_from_logprobs([], []) == (0.0, 0.0)
    assert other.save_state() == base.save_state()


def test_an_adaptation_is_logged(caplog):
    controller, *arguments = made(GOLDEN[1])
    with caplog.at_level(logging.DEBUG, "kl_proteus.kl_controller"):
        controller.get_penalty(*arguments)
        assert "KL coefficient" not in caplog.text
        controller.get_penalty(*arguments)
    assert "KL coefficient 0.1 -> 0.15 (target 0.5)" in caplog.text


# Real models -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    """The directory of the trained byte model, without a tokenizer."""
    path = tmp_path_factory.mktemp("reference")
    trained.save_pretrained(path)
    return str(path)


def batch(text_bytes):
    """Three rows of bytes, one left-padded and one right-padded."""
    tokens = text_bytes[: 3 * 12].view(3, 12).clone()
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0
    mask[2, 9:] = 0
    return tokens, mask


def test_a_model_is_loaded_by_its_name(folder, trained, policy, text_bytes, caplog):
    tokens, mask = batch(text_bytes)
    controller = KLController(Path(folder))
    assert not controller.ref_model.training
    assert not any(parameter.requires_grad for parameter in controller.ref_model.parameters())
    assert controller.ref_model.dtype == torch.float32
    assert controller.tokenizer is None
    assert "has no tokenizer" in caplog.text
    with torch.no_grad():
        expected = token_logprobs(trained, tokens, mask)
        ours = token_logprobs(policy, tokens, mask)
    assert torch.allclose(
        controller.compute_reference_logprobs(tokens, mask), expected.logprobs, atol=1e-6
    )
    kl = controller.compute_kl(ours, tokens, mask, alignment="token")
    difference = torch.where(expected.mask, ours.logprobs - expected.logprobs, 0.0)
    assert torch.allclose(kl, difference.sum(1) / expected.mask.sum(1), atol=1e-5)
    assert (kl != 0).all()
    controller.config.temperature = 0.5
    with torch.no_grad():
        cold = token_logprobs(trained, tokens, mask, temperature=0.5)
    assert torch.allclose(
        controller.compute_reference_logprobs(tokens, mask), cold.logprobs, atol=1e-6
    )


def test_a_tokenizer_is_loaded_with_the_model(folder, tmp_path):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model = AutoModelForCausalLM.from_pretrained(folder)
    model.save_pretrained(tmp_path)
    letters = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    PreTrainedTokenizerFast(tokenizer_object=letters, unk_token="?").save_pretrained(tmp_path)
    assert KLController(str(tmp_path)).tokenizer("a")["input_ids"] == [0]


def test_a_policy_that_is_the_reference_has_no_divergence(trained, text_bytes):
    tokens, mask = batch(text_bytes)
    controller = KLController("reference", load_model=False)
    controller.ref_model = trained
    ours = token_logprobs(trained, tokens, mask)
    assert not controller.compute_kl(ours, tokens, mask, alignment="token").any()


def test_the_first_token_of_a_padded_row_has_no_context(trained, text_bytes):
    """What a policy says of it depends on its padding, so it does not count."""
    tokens, mask = batch(text_bytes)
    controller = KLController("reference", load_model=False)
    controller.ref_model = trained
    ours = token_logprobs(trained, tokens, mask).logprobs.clone()
    ours[1, 4] = -50.0
    assert not controller.compute_kl(ours, tokens, mask, alignment="token").any()


def test_a_model_that_trains_meanwhile_is_refused(policy, text_bytes):
    tokens, mask = batch(text_bytes)
    controller = KLController("reference", load_model=False)
    controller.ref_model = policy
    controller.compute_reference_logprobs(tokens, mask)
    with torch.no_grad():
        next(policy.parameters()).add_(1.0)
    with pytest.raises(RuntimeError, match="changed"):
        controller.compute_reference_logprobs(tokens, mask)
    controller.ref_model = policy
    controller.compute_reference_logprobs(tokens, mask)


def test_adapters_are_off_in_the_reference(trained, text_bytes):
    import copy

    tokens, mask = batch(text_bytes)
    config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    adapted = get_peft_model(copy.deepcopy(trained), config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    controller = KLController("reference", load_model=False)
    controller.ref_model = adapted
    expected = token_logprobs(trained, tokens, mask).logprobs
    assert torch.allclose(controller.compute_reference_logprobs(tokens, mask), expected, atol=1e-6)


def test_a_reference_model_is_used_as_it_is(policy, text_bytes):
    tokens, mask = batch(text_bytes)
    reference = ReferenceModel.snapshot(policy, temperature=0.7)
    controller = KLController(KLConfig("snapshot", temperature=0.7), load_model=False)
    controller.ref_model = reference
    assert controller.ref_model is reference
    expected = reference.token_logprobs(tokens, mask)
    assert torch.equal(controller.compute_reference_logprobs(tokens, mask), expected.logprobs)
    other = KLController("snapshot", load_model=False)
    other.ref_model = reference
    with pytest.raises(ValueError, match="temperature"):
        other.compute_reference_logprobs(tokens, mask)


def test_the_model_is_left_as_it_was(policy, text_bytes):
    tokens, mask = batch(text_bytes)
    policy.train()
    controller = KLController("reference", load_model=False)
    controller.ref_model = policy
    values = controller.compute_reference_logprobs(tokens, mask)
    assert not values.requires_grad
    assert policy.training
    assert all(parameter.requires_grad for parameter in policy.parameters())


def test_half_precision_is_for_accelerators(folder):
    assert KLController(KLConfig(folder, device="cpu")).ref_model.dtype == torch.float32
    with pytest.raises((RuntimeError, ValueError), match="nowhere"):
        KLController(KLConfig(folder, device="nowhere"))


# Construction and refusals ---------------------------------------------------------------------


def test_it_can_be_had_from_the_package_too():
    assert kl_proteus.KLController is KLController
    assert kl_proteus.create_kl_controller is create_kl_controller


def test_the_factory(folder):
    controller = create_kl_controller(folder, 0.2, 1.5, False)
    assert isinstance(controller, KLController)
    assert controller.ref_model is not None
    config = controller.config
    assert (config.kl_coeff, config.kl_target, config.adaptive) == (0.2, 1.5, False)
    assert type(create_kl_controller(folder, load_model=False)) is KLControllerBase


def test_without_a_model():
    controller = KLController(KLConfig("reference"), load_model=False)
    assert controller.ref_model is None
    assert controller.tokenizer is None
    tokens = torch.ones((1, 3), dtype=torch.long)
    with pytest.raises(RuntimeError, match="load_reference_model"):
        controller.compute_reference_logprobs(tokens)
    for call in (controller.compute_kl, controller.get_penalty, controller.get_batch_penalty):
        with pytest.raises(RuntimeError, match="no reference model"):
            call(torch.zeros((1, 3)), tokens)
    controller.tokenizer = "anything"
    controller.ref_model = Stub(torch.zeros((1, 3, 5)))
    assert controller.compute_kl(torch.zeros((1, 3)), tokens).item() == near(math.log(5))
    controller.ref_model = None
    with pytest.raises(RuntimeError, match="no reference model"):
        controller.compute_reference_logprobs(tokens)


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises((OSError, ValueError)):
        KLController(str(tmp_path / "nothing"))


def test_code_of_a_model_does_not_run_unasked(folder, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "unheard_of", "auto_map": {"AutoConfig": "evil.Config"}})
    )
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')\n")
    with pytest.raises(ValueError, match="trust_remote_code"):
        KLController(str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((3,), TypeError, "config must be a KLConfig"),
        (("stub", "no"), TypeError, "load_model must be True or False"),
        (("stub", False, None), TypeError, "positional"),
    ],
)
def test_bad_arguments_of_the_constructor(arguments, error, match):
    with pytest.raises(error, match=match):
        KLController(*arguments)
    with pytest.raises(TypeError, match="all_ranks"):
        KLController("stub", False, all_ranks=1)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("temperature", 0.0, ValueError),
        ("temperature", math.nan, ValueError),
        ("temperature", "1", TypeError),
        ("trust_remote_code", 1, TypeError),
    ],
)
def test_bad_fields_of_the_config(field, value, error):
    with pytest.raises(error, match=field):
        KLConfig("stub", **{field: value})


def test_bad_models():
    controller = KLController("stub", load_model=False)
    with pytest.raises(TypeError, match="ref_model must be a model or None, got 'gpt2'"):
        controller.ref_model = "gpt2"
    tokens = torch.ones((2, 3), dtype=torch.long)
    for logits in (torch.zeros(2, 2, 5), torch.zeros(2, 3), None):
        controller.ref_model = Stub(logits)
        with pytest.raises(ValueError, match="ref_model must return logits of shape"):
            controller.compute_reference_logprobs(tokens)
    controller.ref_model = Stub(torch.zeros(2, 3, 1))
    with pytest.raises(ValueError, match="tokens must be from 0 to 0"):
        controller.compute_reference_logprobs(tokens)


LP = torch.zeros((2, 3))
IDS = torch.ones((2, 3), dtype=torch.long)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ((LP.tolist(), IDS), {}, TypeError, "policy_logprobs must be a tensor of floats, got list"),
        ((LP.long(), IDS), {}, TypeError, "int64"),
        ((LP[:1], IDS), {}, ValueError, r"\(2, 3\) or \(2, 2\), got \(1, 3\)"),
        ((LP[:, 1:], IDS), {"alignment": "token"}, ValueError, r"\(2, 3\), got \(2, 2\)"),
        ((LP, IDS), {"alignment": "guess"}, ValueError, "'next' or 'token', got 'guess'"),
        ((LP, IDS.float()), {}, TypeError, "tokens must be a tensor of token ids"),
        ((LP, IDS[0]), {}, ValueError, r"tokens must have the shape \(batch, tokens\)"),
        ((LP, IDS, IDS[:, 1:]), {}, ValueError, "attention_mask must have the shape"),
        ((LP, IDS, 2 * IDS), {}, ValueError, "attention_mask must hold bools, 0 or 1"),
        ((LP, -IDS), {}, ValueError, "tokens must be from 0 to 4"),
    ],
)
def test_bad_arguments_of_the_calls(arguments, options, error, match):
    controller = KLController("stub", load_model=False)
    controller.ref_model = Stub(torch.zeros((2, 3, 5)))
    before = controller.save_state()
    for call in (controller.compute_kl, controller.get_penalty, controller.get_batch_penalty):
        with pytest.raises(error, match=match):
            call(*arguments, **options)
    assert controller.save_state() == before


def test_log_probabilities_that_were_made_otherwise(trained, text_bytes):
    tokens, mask = batch(text_bytes)
    controller = KLController("reference", load_model=False)
    controller.ref_model = trained
    with pytest.raises(ValueError, match="alignment='token', got 'next'"):
        controller.compute_kl(token_logprobs(trained, tokens, mask), tokens, mask)
    warm = token_logprobs(trained, tokens, mask, temperature=0.7, alignment="next")
    with pytest.raises(ValueError, match=r"temperature of the reference, 1, got 0\.7"):
        controller.compute_kl(warm, tokens, mask)
    few = token_logprobs(trained, tokens, mask, vocab_size=200, alignment="next")
    with pytest.raises(ValueError, match="over the ids of the reference, 256, got 200"):
        controller.compute_kl(few, tokens, mask)
    controller.ref_model = ReferenceModel(trained, vocab_size=200)
    assert controller.compute_kl(few, tokens, mask).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("options", "change", "match"),
    [
        ({"estimator": "k3"}, -100.0, r"row 0 is too large for torch\.float32"),
        ({"kl_coeff": 1e30, "kl_coeff_max": 1e30}, -1e10, "finite penalties"),
    ],
)
def test_a_penalty_that_float32_cannot_hold_changes_nothing(options, change, match):
    controller, policy, tokens, mask = made(GOLDEN[1], torch.float32, **options)
    before = controller.save_state()
    with pytest.raises(ValueError, match=match):
        controller.get_penalty(policy + change, tokens, mask)
    assert controller.save_state() == before
    wide, *_ = made(GOLDEN[1], **options)
    assert wide.get_penalty((policy + change).double(), tokens, mask)[0].isfinite().all()


def test_a_penalty_that_is_too_large_changes_nothing():
    controller, policy, tokens, mask = made(GOLDEN[1], kl_coeff=1e300, kl_coeff_max=1e300)
    before = controller.save_state()
    with pytest.raises(ValueError, match="finite penalties"):
        controller.get_penalty(policy * 1e10, tokens, mask)
    assert controller.save_state() == before


def test_a_rule_that_refuses_the_batch_changes_nothing():
    rule = AdaptiveKLController(0.1, 0.5, 0.5)
    controller, policy, tokens, mask = made(GOLDEN[1], controller=rule)
    before = controller.save_state()
    with pytest.raises(ValueError, match="horizon"):
        controller.get_penalty(policy, tokens, mask)
    assert controller.save_state() == before
