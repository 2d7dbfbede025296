"""Where a reference comes from, and that it is frozen."""

import copy
import gc
import warnings

import pytest
import torch
from reference_models import batch, expected_logprobs, gpt2, llama, save, with_lora
from torch import nn

from kl_proteus.torch import ReferenceModel, full_kl, token_logprobs

IDS, MASK = batch()


def state(model):
    """Everything of a model that a reference must leave alone."""
    return {
        "training": [module.training for module in model.modules()],
        "trainable": [parameter.requires_grad for parameter in model.parameters()],
        "values": [tensor.clone() for tensor in model.state_dict().values()],
        "grads": [parameter.grad for parameter in model.parameters()],
        "adapters": [
            (module.active_adapters, module.disable_adapters)
            for module in model.modules()
            if hasattr(type(module), "disable_adapters")
        ],
    }


def assert_same_state(model, before):
    now = state(model)
    for name in ("training", "trainable", "grads", "adapters"):
        assert now[name] == before[name], name
    assert all(map(torch.equal, now["values"], before["values"]))


def assert_scores_like(reference, model):
    got = reference.token_logprobs(IDS, MASK)
    assert got.mask.any()
    assert (got.logprobs - expected_logprobs(model, IDS, MASK)).abs().max() < 2e-5
    assert not got.requires_grad
    return got


# A model of the caller --------------------------------------------------------------------------


def test_a_model_in_training_mode_is_scored_without_dropout_and_left_as_it_was():
    model = gpt2()
    model.transformer.h[0].eval()
    before = state(model)
    reference = ReferenceModel(model)
    one = reference.token_logprobs(IDS, MASK)
    two = reference.token_logprobs(IDS, MASK)
    assert torch.equal(one.logprobs, two.logprobs)
    assert_same_state(model, before)
    assert reference.model is model
    assert_scores_like(reference, copy.deepcopy(model).eval())


def test_training_flags_come_back_after_an_error():
    model = gpt2()
    before = state(model)
    reference = ReferenceModel(model)
    with pytest.raises(ValueError, match="tokens must be from 0 to 258"):
        reference.token_logprobs(IDS + 10_000)
    with reference.activate() as active:
        assert not any(module.training for module in active.modules())
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    with pytest.raises(KeyError), reference.activate():
        raise KeyError
    assert_same_state(model, before)


def test_the_functions_of_the_engine_take_it_and_give_no_gradient():
    model = llama()
    reference = ReferenceModel(model)
    got = token_logprobs(reference, IDS, MASK)
    assert torch.equal(got.logprobs, reference.token_logprobs(IDS, MASK).logprobs)
    assert not got.requires_grad


def test_autocast_does_not_reach_it():
    model = llama()
    reference = ReferenceModel(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = reference.token_logprobs(IDS, MASK)
        with reference.activate() as active:
            assert active(input_ids=IDS).logits.dtype == torch.float32
    assert torch.equal(got.logprobs, reference.token_logprobs(IDS, MASK).logprobs)


def test_wrappers_are_looked_into():
    model = llama()
    wrapped = nn.DataParallel(model)
    assert ReferenceModel(wrapped).model is model
    compiled = nn.Module()  # like what `torch.compile` returns, which takes seconds to import
    compiled._orig_mod = model
    assert ReferenceModel(compiled).model is model


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: m.model.layers[0].mlp.up_proj.weight.add_(1e-3), "up_proj"),
        (lambda m: m.lm_head.weight[3, 5].mul_(2), "lm_head"),
        (lambda m: m.model.norm.weight.data.copy_(m.model.norm.weight * 2), "norm"),
        (lambda m: setattr(m.model.norm.weight, "data", m.model.norm.weight * 2), "norm"),
        (lambda m: m.model.rotary_emb.inv_freq.mul_(2), "inv_freq"),
        (lambda m: m.double(), "dtype"),
        (lambda m: setattr(m, "lm_head", nn.Linear(32, 259, bias=True)), "lm_head"),
        (lambda m: m.set_attn_implementation("eager"), "attention implementation"),
    ],
)
def test_a_reference_that_has_changed_is_an_error(change, named):
    model = llama()
    reference = ReferenceModel(model)
    assert_scores_like(reference, model)
    with torch.no_grad():
        change(model)
    with pytest.raises(RuntimeError, match=f"has changed since it was made: .*{named}"):
        reference.token_logprobs(IDS, MASK)
    with pytest.raises(RuntimeError, match="snapshot"):
        _ = reference.fingerprint


def test_an_optimizer_step_is_seen_and_verify_turns_the_look_off():
    model = llama()
    strict, lax = ReferenceModel(model), ReferenceModel(model, verify=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    model(input_ids=IDS, labels=IDS).loss.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="changed"):
        strict.token_logprobs(IDS, MASK)
    assert_scores_like(lax, model)


def test_a_moved_model_has_not_changed():
    model = llama()
    reference = ReferenceModel(model)
    before = reference.token_logprobs(IDS, MASK)
    for parameter in model.parameters():  # what `.to(device)` does
        parameter.data = parameter.data.clone()
    assert torch.equal(reference.token_logprobs(IDS, MASK).logprobs, before.logprobs)


def test_frequencies_that_a_forward_pass_sets_anew_are_no_change():
    model = llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    reference = ReferenceModel(model)
    before = reference.fingerprint
    long = torch.randint(0, 259, (1, 300))
    reference.token_logprobs(long)
    assert reference.token_logprobs(long).mask.sum() == 299
    assert ReferenceModel(model).fingerprint == before


# A path -----------------------------------------------------------------------------------------


def test_a_path_loads_a_frozen_model(tmp_path):
    model = llama()
    save(tmp_path / "base", model, "none")
    for path in (tmp_path / "base", str(tmp_path / "base")):
        reference = ReferenceModel(path)
        assert not any(module.training for module in reference.model.modules())
        assert not any(p.requires_grad for p in reference.model.parameters())
        assert_scores_like(reference, model)
    assert reference.fingerprint == ReferenceModel(model).fingerprint
    half = ReferenceModel(tmp_path / "base", dtype=torch.bfloat16, device="cpu")
    assert half.model.lm_head.weight.dtype == torch.bfloat16
    assert half.token_logprobs(IDS, MASK).dtype == torch.float32
    eager = ReferenceModel(tmp_path / "base", attn_implementation="eager")
    assert eager.model.config._attn_implementation == "eager"


def test_two_models_of_one_config_object_do_not_share_its_attention(tmp_path):
    model = llama()
    save(tmp_path / "base", model, "none")
    options = {"config": model.config}
    sdpa = ReferenceModel(tmp_path / "base", model_kwargs=options)
    eager = ReferenceModel(tmp_path / "base", attn_implementation="eager", model_kwargs=options)
    assert model.config._attn_implementation == "sdpa"
    assert sdpa.model.config._attn_implementation == "sdpa"
    assert eager.model.config._attn_implementation == "eager"
    assert sdpa.fingerprint != eager.fingerprint
    difference = sdpa.token_logprobs(IDS, MASK).logprobs - eager.token_logprobs(IDS, MASK).logprobs
    assert difference.abs().max() < 5e-5


def test_remote_code_does_not_run_unless_asked(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"model_type": "mine", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": '
        '"code.M"}}'
    )
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ValueError, match="trust_remote_code"):
        ReferenceModel(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_directory_of_an_adapter_loads_the_base_model_with_it(tmp_path):
    save(tmp_path / "base", llama(), "none")
    with_lora(ReferenceModel.snapshot(llama()).model, "default")
    from transformers import AutoModelForCausalLM

    peft = with_lora(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), "default")
    peft.save_pretrained(tmp_path / "adapter")
    assert_scores_like(ReferenceModel(tmp_path / "adapter"), peft.eval())
    with pytest.raises(ValueError, match="adapter must be one of"):
        ReferenceModel(tmp_path / "base", adapter="ref")


# PEFT -------------------------------------------------------------------------------------------


def with_two_adapters(**options):
    model = with_lora(llama(), "default", "ref", **options)
    model.train()
    return model


@pytest.mark.parametrize("options", [{}, {"target_modules": ["q_proj", "lm_head"]}])
def test_adapters_are_off_and_back_on(options):
    policy = with_two_adapters(**options)
    before = state(policy)
    reference = ReferenceModel(policy)
    assert_scores_like(reference, llama())
    assert_same_state(policy, before)
    with pytest.raises(KeyError), reference.activate():
        raise KeyError
    assert_same_state(policy, before)


@pytest.mark.parametrize(
    "options",
    [{}, {"modules_to_save": ["lm_head"]}, {"target_modules": ["q_proj", "embed_tokens"]}],
)
def test_a_named_adapter_is_alone_and_the_active_one_comes_back(options):
    policy = with_two_adapters(**options)
    if "modules_to_save" in options:
        with torch.no_grad():
            policy.base_model.model.lm_head.modules_to_save["ref"].weight.mul_(2)
    before = state(policy)
    reference = ReferenceModel(policy, adapter="ref")
    alone = copy.deepcopy(policy).eval()
    alone.set_adapter("ref")
    got = assert_scores_like(reference, alone)
    assert_same_state(policy, before)
    base = ReferenceModel(policy).token_logprobs(IDS, MASK)
    assert (got.logprobs - base.logprobs).abs().max() > 0.01


def test_an_adapter_at_another_scale_is_another_model():
    policy = with_two_adapters()
    reference = ReferenceModel(policy, adapter="ref")
    for module in policy.modules():
        if hasattr(module, "set_scale"):
            module.set_scale("ref", 10.0)
    with pytest.raises(RuntimeError, match=r"q_proj uses its adapters at .*20\.0.*2\.0"):
        reference.token_logprobs(IDS, MASK)


def test_several_active_adapters_come_back():
    policy = with_two_adapters()
    policy.base_model.set_adapter(["default", "ref"])
    before = state(policy)
    assert_scores_like(ReferenceModel(policy), llama())
    assert_same_state(policy, before)
    with policy.disable_adapter():
        alone = ReferenceModel(policy, adapter="ref").token_logprobs(IDS, MASK)
        assert all(layer[1] for layer in state(policy)["adapters"])
    assert_same_state(policy, before)
    assert alone.logprobs.abs().sum() > 0


def test_training_the_policys_adapter_leaves_the_reference_alone():
    policy = with_two_adapters()
    off, named = ReferenceModel(policy), ReferenceModel(policy, adapter="ref")
    active = ReferenceModel(policy, adapter="default")
    before = [r.token_logprobs(IDS, MASK).logprobs for r in (off, named)]
    prints = [off.fingerprint, named.fingerprint, active.fingerprint]
    assert len(set(prints)) == 3
    optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=1e-2)
    policy(input_ids=IDS, labels=IDS).loss.backward()
    optimizer.step()
    after = [r.token_logprobs(IDS, MASK).logprobs for r in (off, named)]
    assert all(map(torch.equal, before, after))
    assert [off.fingerprint, named.fingerprint] == prints[:2]
    assert ReferenceModel(policy, adapter="default").fingerprint != prints[2]
    with pytest.raises(RuntimeError, match="lora"):
        active.token_logprobs(IDS, MASK)


def test_gradients_of_the_policy_survive_a_shared_reference():
    policy = with_two_adapters()
    reference = ReferenceModel(policy)
    ours = token_logprobs(policy, IDS, MASK)
    theirs = reference.token_logprobs(IDS, MASK)
    (ours.logprobs - theirs.logprobs).sum().backward()
    touched = [n for n, p in policy.named_parameters() if p.grad is not None]
    assert touched
    assert all("default" in name for name in touched)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_adapters_that_cannot_serve_are_refused():
    from peft import PromptTuningConfig, get_peft_model

    policy = with_two_adapters()
    with pytest.raises(ValueError, match=r"adapter must be one of \['default', 'ref'\], got 'x'"):
        ReferenceModel(policy, adapter="x")
    with pytest.raises(TypeError, match="adapter must be a str"):
        ReferenceModel(policy, adapter=["ref"])
    with pytest.raises(ValueError, match="adapter must be one of"):
        ReferenceModel(llama(), adapter="ref")
    policy.merge_adapter()
    before = state(policy)
    for adapter in (None, "ref"):
        with pytest.raises(ValueError, match="merged"):
            ReferenceModel(policy, adapter=adapter)
    assert_same_state(policy, before)
    prompts = get_peft_model(
        llama(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    )
    with pytest.raises(ValueError, match="virtual tokens"):
        ReferenceModel(prompts, adapter="default")
    with pytest.raises(ValueError, match="virtual tokens"):
        ReferenceModel.snapshot(prompts)
    assert_scores_like(ReferenceModel(prompts), llama())


# Copies of a policy -----------------------------------------------------------------------------


def test_a_snapshot_stays_while_the_policy_trains():
    policy = gpt2()
    reference = ReferenceModel.snapshot(policy)
    before = state(policy)
    frozen = copy.deepcopy(policy).eval()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.1)
    assert_scores_like(reference, frozen)
    assert not any(p.requires_grad for p in reference.model.parameters())
    assert state(policy)["trainable"] == before["trainable"]
    assert reference.model.config is not policy.config
    first = reference.fingerprint
    assert reference.update() == 1
    assert reference.fingerprint != first
    assert_scores_like(reference, copy.deepcopy(policy).eval())


def test_a_snapshot_of_adapters_has_them_on():
    policy = with_two_adapters()
    reference = ReferenceModel.snapshot(policy)
    frozen = copy.deepcopy(policy).eval()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.1)
    assert_scores_like(reference, frozen)


def test_an_average_moves_by_its_rate():
    policy = llama()
    start = {name: p.detach().clone() for name, p in policy.named_parameters()}
    reference = ReferenceModel.ema(policy, 0.25)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    for step in (1, 2):
        assert reference.update() == reference.version == step
    # 1 - 0.75^2 of the way.
    for name, parameter in reference.model.named_parameters():
        assert torch.allclose(parameter, start[name] + 0.4375, atol=1e-5), name
    assert_scores_like(reference, reference.model)


def test_an_average_in_bfloat16_does_not_stand_still():
    policy = llama().to(torch.bfloat16)
    with torch.no_grad():
        policy.model.norm.weight.fill_(1.0)
    reference = ReferenceModel.ema(policy, 1e-3)
    with torch.no_grad():
        policy.model.norm.weight.fill_(2.0)
    for _ in range(100):
        reference.update()
    expected = 2 - 0.999**100
    assert reference.model.model.norm.weight.dtype == torch.bfloat16
    assert (reference.model.model.norm.weight.float() - expected).abs().max() < 2**-8


def test_an_average_of_tied_weights_and_buffers():
    policy = gpt2()
    policy.register_buffer("counter", torch.zeros(1, dtype=torch.long))
    reference = ReferenceModel.ema(policy, 0.5)
    with torch.no_grad():
        policy.lm_head.weight.add_(1.0)
        policy.counter += 3
    before = reference.model.lm_head.weight.clone()
    reference.update()
    assert reference.model.lm_head.weight is reference.model.transformer.wte.weight
    assert torch.allclose(reference.model.lm_head.weight, before + 0.5)
    assert reference.model.counter.item() == 3


def test_a_policy_that_does_not_fit_changes_nothing():
    policy = llama()
    reference = ReferenceModel.ema(policy, 0.5)
    before = reference.fingerprint
    with torch.no_grad():
        policy.lm_head.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"finite parameters, got lm_head\.weight"):
        reference.update()
    with pytest.raises(ValueError, match="shape"):
        reference.update(llama(vocab=300))
    with pytest.raises(ValueError, match="difference"):
        reference.update(gpt2())
    assert (reference.version, reference.fingerprint) == (0, before)
    reference.update(llama(1))
    assert reference.version == 1


def test_updates_need_a_policy():
    reference = ReferenceModel.snapshot(llama())
    gc.collect()
    with pytest.raises(RuntimeError, match="gone"):
        reference.update()
    with pytest.raises(TypeError, match="only a reference made by"):
        ReferenceModel(llama()).update()


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
def test_rates_outside_their_range(rate):
    with pytest.raises(ValueError, match="rate must be"):
        ReferenceModel.ema(llama(), rate)


# Arguments --------------------------------------------------------------------------------------


def test_another_temperature_is_refused():
    model = llama()
    warm = ReferenceModel(model, temperature=0.7)
    got = warm.token_logprobs(IDS, MASK, temperature=0.7)
    assert got.temperature == 0.7
    with pytest.raises(ValueError, match=r"temperature must be that of the reference, 0\.7, got 1"):
        warm.token_logprobs(IDS, MASK, temperature=1.0)
    with pytest.raises(ValueError, match="temperature must be that of the reference"):
        warm.full_kl(model, IDS, MASK, temperature=1.0)


def test_functions_ask_a_reference_in_its_own_way_or_not_at_all():
    model = llama()
    for options, wrong in (
        ({"temperature": 0.7}, r"temperature must be that of {}, 0\.7, got 1\.0"),
        ({"vocab_size": 200}, "vocab_size must be that of {}, 200, got None"),
    ):
        reference = ReferenceModel(model, **options)
        ids = IDS.clamp(max=199)
        with pytest.raises(ValueError, match=wrong.format("the model")):
            token_logprobs(reference, ids, MASK)
        with pytest.raises(ValueError, match=wrong.format("the reference")):
            full_kl(model, reference, ids, MASK)
        with pytest.raises(ValueError, match=wrong.format("the policy")):
            full_kl(reference, model, ids, MASK)
        got = token_logprobs(reference, ids, MASK, **options)
        assert torch.equal(got.logprobs, reference.token_logprobs(ids, MASK).logprobs)
        assert full_kl(model, reference, ids, MASK, **options).kl.abs().max() < 1e-6


def test_the_exact_divergence_of_a_policy():
    policy, model = llama(1), llama()
    reference = ReferenceModel(model, temperature=0.5)
    got = reference.full_kl(policy, IDS, MASK)
    with torch.no_grad():
        p = (policy(input_ids=IDS[:1]).logits.double() / 0.5).log_softmax(-1)
        q = (model(input_ids=IDS[:1]).logits.double() / 0.5).log_softmax(-1)
    exact = (p.exp() * (p - q)).sum(-1)[0, :-1]
    assert (got.kl[0, 1:] - exact).abs().max() < 2e-5
    got.kl.sum().backward()
    assert policy.lm_head.weight.grad.abs().sum() > 0
    assert model.lm_head.weight.grad is None


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["q_proj", "lm_head"]])
@pytest.mark.parametrize("adapter", [None, "ref"])
def test_the_exact_divergence_from_shared_weights(targets, adapter):
    policy = with_lora(llama(), "default", "ref", target_modules=targets)
    policy.eval()
    apart = copy.deepcopy(policy)
    if adapter is None:
        other = llama()
    else:
        other = copy.deepcopy(policy)
        other.set_adapter("ref")
    before = state(policy)
    got = ReferenceModel(policy, adapter=adapter).full_kl(policy, IDS, MASK)
    want = ReferenceModel(other, adapter=adapter).full_kl(apart, IDS, MASK)
    assert (got.kl - want.kl).abs().max() < 1e-6
    assert got.kl.max() > 1e-3
    got.kl.sum().backward()
    want.kl.sum().backward()
    grads = dict(apart.named_parameters())
    assert state(policy)["adapters"] == before["adapters"]
    assert state(policy)["trainable"] == before["trainable"]
    for name, parameter in policy.named_parameters():
        if parameter.grad is None:
            assert grads[name].grad is None
        else:
            assert torch.allclose(parameter.grad, grads[name].grad, atol=1e-4), name


def test_columns_masks_and_alignments_are_those_of_the_engine():
    model = llama()
    reference = ReferenceModel(model, vocab_size=200)
    ids = IDS % 200
    mask = torch.ones_like(ids)
    mask[:, :3] = 0
    options = {"columns": slice(4, None), "score_mask": mask, "alignment": "next"}
    got = reference.token_logprobs(ids, MASK, **options)
    with torch.no_grad():
        want = token_logprobs(model, ids, MASK, vocab_size=200, **options)
    assert torch.equal(got.logprobs, want.logprobs)
    assert torch.equal(got.mask, want.mask)
    assert (got.vocab_size, got.alignment) == (200, "next")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"temperature": 0.0}, ValueError, "temperature"),
        ({"temperature": "1"}, TypeError, "temperature"),
        ({"vocab_size": 0}, ValueError, "vocab_size"),
        ({"vocab_size": 2.0}, TypeError, "vocab_size"),
        ({"cache": 3}, TypeError, "directory"),
        ({"dtype": torch.float32}, ValueError, "dtype goes only with a path"),
        ({"trust_remote_code": True}, ValueError, "trust_remote_code goes only with a path"),
    ],
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        ReferenceModel(llama(), **options)


def test_bad_sources(tmp_path):
    with pytest.raises(TypeError, match=r"source must be a path, a name or a torch\.nn\.Module"):
        ReferenceModel(3)
    with pytest.raises(OSError, match="missing"):
        ReferenceModel(tmp_path / "missing")
    save(tmp_path / "base", llama(), "none")
    with pytest.raises(ValueError, match="device must be None"):
        ReferenceModel(tmp_path / "base", device="cpu", device_map="auto")
    with pytest.raises(ValueError, match="model_kwargs must not repeat"):
        ReferenceModel(tmp_path / "base", model_kwargs={"trust_remote_code": True})
    with pytest.raises(TypeError, match="trust_remote_code must be True or False"):
        ReferenceModel(tmp_path / "base", trust_remote_code="no")


def test_no_warnings_and_a_telling_name():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy = with_two_adapters()
        reference = ReferenceModel(policy, adapter="ref", temperature=0.5)
    assert (
        repr(reference) == "ReferenceModel('PeftModelForCausalLM', adapter='ref', temperature=0.5)"
    )
    assert repr(ReferenceModel.ema(llama(), 1)) == (
        "ReferenceModel('ema of LlamaForCausalLM', version=0, temperature=1)"
    )
