"""What a fingerprint sees, and what it does not."""

import subprocess
import sys

import pytest
import torch
from reference_models import gpt2, llama, save, tokenizer, with_lora
from torch import nn

from kl_proteus.torch import ReferenceModel, model_fingerprint, tokenizer_hash
from kl_proteus.torch.fingerprint import describe_model


def test_equal_models_have_equal_hashes():
    assert len(model_fingerprint(llama())) == 64
    assert model_fingerprint(llama()) == model_fingerprint(llama().train())
    assert model_fingerprint(gpt2()) == model_fingerprint(gpt2())
    assert model_fingerprint(llama()) != model_fingerprint(llama(1))


def test_it_is_the_same_in_another_process_and_after_a_round_trip(tmp_path):
    save(tmp_path / "base", llama(), "none")
    code = (
        "import sys; from kl_proteus.torch import ReferenceModel\n"
        "print(ReferenceModel(sys.argv[1]).fingerprint)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "base")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.strip() == model_fingerprint(llama())


def with_buffer(model, value):
    model.register_buffer("extra", torch.tensor([value]), persistent=False)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.model.layers[1].mlp.up_proj.weight[3].add_(1e-6),
        lambda m: m.model.rotary_emb.inv_freq.mul_(1.001),
        lambda m: with_buffer(m, 1.0),
        lambda m: m.to(torch.bfloat16),
        lambda m: m.lm_head.to(torch.float64),
        lambda m: m.set_attn_implementation("eager"),
        lambda m: setattr(m.config, "rms_norm_eps", 1e-3),
        lambda m: setattr(m.config, "logit_scale", 2.0),
        lambda m: m.model.layers.__delitem__(1),
        lambda m: setattr(m.model.layers[0].mlp, "act_fn", nn.GELU()),
        lambda m: setattr(m.config, "quantization_config", {"bits": 4}),
    ],
    ids=[
        *("parameter", "hidden buffer", "new buffer", "dtype", "head dtype", "attention", "config"),
        *("logit scale", "layers", "activation", "quantisation"),
    ],
)
def test_what_changes_it(change):
    model = llama()
    before = model_fingerprint(model)
    with torch.no_grad():
        change(model)
    assert model_fingerprint(model) != before


def test_state_beside_parameters_and_buffers_enters():
    class Scaled(nn.Linear):
        scale = 1

        def get_extra_state(self):
            return torch.tensor(self.scale)

        def set_extra_state(self, state):
            self.scale = state.item()

    model = llama()
    model.lm_head = Scaled(32, 259, bias=False)
    before = model_fingerprint(model)
    model.lm_head.scale = 2
    assert model_fingerprint(model) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.requires_grad_(False),
        lambda m: setattr(m.config, "_name_or_path", "elsewhere"),
        lambda m: setattr(m.config, "use_cache", False),
        lambda m: setattr(m.config, "transformers_version", "9"),
    ],
    ids=["requires_grad", "name", "use_cache", "version"],
)
def test_what_does_not_change_it(change):
    model = llama()
    before = model_fingerprint(model)
    change(model)
    assert model_fingerprint(model) == before


def test_tied_weights_are_read_once_and_listed_twice():
    model = gpt2()
    tensors = describe_model(model)["tensors"]
    assert tensors["lm_head.weight"] == tensors["transformer.wte.weight"]
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    after = describe_model(model)["tensors"]
    assert after["lm_head.weight"] == after["transformer.wte.weight"]
    assert after["lm_head.weight"] != tensors["lm_head.weight"]


def test_memory_layout_does_not_matter():
    model, other = llama(), llama()
    weight = other.lm_head.weight.detach()
    other.lm_head.weight = nn.Parameter(weight.t().contiguous().t())
    assert not other.lm_head.weight.is_contiguous()
    assert model_fingerprint(model) == model_fingerprint(other)


def test_only_active_adapters_enter():
    policy = with_lora(llama(), "default", "ref")
    parameters = dict(policy.named_parameters())
    default = next(p for n, p in parameters.items() if "lora_A.default" in n)
    ref = next(p for n, p in parameters.items() if "lora_A.ref" in n)

    def prints():
        return [
            ReferenceModel(policy).fingerprint,
            ReferenceModel(policy, adapter="ref").fingerprint,
            model_fingerprint(policy),
        ]

    first = prints()
    assert len(set(first)) == 3
    with torch.no_grad():
        ref[0, 0] += 1
    second = prints()
    assert [a == b for a, b in zip(first, second, strict=True)] == [True, False, True]
    with torch.no_grad():
        default[0, 0] += 1
    third = prints()
    assert [a == b for a, b in zip(second, third, strict=True)] == [True, True, False]
    layer = policy.base_model.model.model.layers[0].self_attn.q_proj
    layer.scaling["ref"] *= 2
    assert [a == b for a, b in zip(third, prints(), strict=True)] == [True, False, True]


def test_weights_that_are_elsewhere_are_refused():
    with torch.device("meta"):
        model = llama()
    with pytest.raises(ValueError, match="weights in memory"):
        model_fingerprint(model)


def test_tensors_inside_tensors_are_read():
    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
            made.inner = inner
            return made

        def __tensor_flatten__(self):
            return ["inner"], None

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            plain = [x.inner if isinstance(x, cls) else x for x in args]
            out = func(*plain, **(kwargs or {}))
            return cls(out) if isinstance(out, torch.Tensor) else out

    model, other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    values = torch.arange(4.0).reshape(2, 2)
    model.weight = nn.Parameter(Wrapped(values), requires_grad=False)
    other.weight = nn.Parameter(Wrapped(values.clone()), requires_grad=False)
    assert model_fingerprint(model) == model_fingerprint(other)
    values[0, 0] += 1
    assert model_fingerprint(model) != model_fingerprint(other)


def test_tokenizers():
    from kl_proteus.torch.tokenizer_identity import tokenizer_difference

    one = tokenizer()
    assert tokenizer_hash(one) == tokenizer_hash(tokenizer())
    assert tokenizer_difference(one, tokenizer()) is None
    other = tokenizer("{{ messages }}")
    assert tokenizer_hash(one) != tokenizer_hash(other)
    assert tokenizer_hash(one, chat_template=False) == tokenizer_hash(other, chat_template=False)
    assert tokenizer_difference(one, other) == "chat template"
    assert tokenizer_difference(one, other, chat_template=False) is None
    assert tokenizer_difference(one, tokenizer(extra=["<x>"])) == "vocabulary"
    other = tokenizer()
    other.eos_token = "<|pad|>"
    assert tokenizer_difference(one, other) == "special tokens"
