"""What `token_logprobs` returns, which way it goes, and what it refuses."""

import gc
import logging
import pickle
import weakref
from types import SimpleNamespace

import pytest
import torch
from allocations import Largest
from model_families import make
from torch import nn

from kl_proteus.torch import LazyLogits, logprobs_from_logits, token_logprobs
from kl_proteus.torch.causal_lm import causal_lm

LENGTHS = (24, 9, 17, 1)


def padded(rows, side, filler=0):
    """Rows of ids, padded on one side; ids and mask."""
    width = max(map(len, rows))
    ids, mask = torch.full((len(rows), width), filler), torch.zeros(len(rows), width)
    for i, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[i, place], mask[i, place] = row, 1
    return ids, mask


def text_rows(text_bytes, lengths=LENGTHS):
    return [text_bytes[100 * i : 100 * i + n] for i, n in enumerate(lengths)]


def expected(model, row, temperature=1.0, vocab=None):
    """Float64 log-softmax of the plain logits of a row alone."""
    with torch.no_grad():
        logits = model(input_ids=row[None]).logits[0, :, :vocab].double() / temperature
    return logits.log_softmax(-1)[:-1].gather(-1, row[1:, None]).squeeze(-1)


def close(got, want, atol=2e-5):
    torch.testing.assert_close(torch.as_tensor(got).double(), want.double(), atol=atol, rtol=0)


# Values and places ----------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_of_a_trained_model(trained, text_bytes, side, temperature):
    rows = text_rows(text_bytes)
    ids, mask = padded(rows, side, filler=-100)
    with torch.no_grad():
        got = token_logprobs(trained, ids, mask, temperature=temperature)
    assert got.shape == ids.shape
    assert got.dtype == torch.float32
    assert (got.temperature, got.vocab_size, got.alignment) == (temperature, 256, "token")
    assert got.mask.sum() == sum(LENGTHS) - len(LENGTHS)
    assert (got.logprobs[~got.mask] == 0).all()
    assert (got.logprobs <= 1e-6).all()
    for i, row in enumerate(rows):
        close(got[i][got.mask[i]], expected(trained, row, temperature))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_masks_of_any_type_and_holes(trained, text_bytes, dtype):
    ids = text_bytes[None, :12]
    mask = torch.tensor([[0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 0]]).to(dtype)
    with torch.no_grad():
        got = token_logprobs(trained, ids, mask)
    kept = mask.bool()[0]
    assert got.mask[0].tolist() == [bool(k) and i > 1 for i, k in enumerate(kept)]
    close(got[0][got.mask[0]], expected(trained, ids[0][kept]))


def test_the_next_token_alignment_is_the_same_one_place_earlier(trained, text_bytes):
    ids, mask = padded(text_rows(text_bytes), "left")
    with torch.no_grad():
        own = token_logprobs(trained, ids, mask)
        following = token_logprobs(trained, ids, mask, alignment="next")
    assert torch.equal(following[:, :-1], own[:, 1:])
    assert torch.equal(following.mask[:, :-1], own.mask[:, 1:])
    assert not following.mask[:, -1].any()
    assert (following[:, -1] == 0).all()


@pytest.mark.parametrize("alignment", ["token", "next"])
@pytest.mark.parametrize("columns", [slice(16, None), slice(0, 16), slice(-5, -1), slice(3, 3)])
def test_columns_are_those_of_the_whole(trained, text_bytes, alignment, columns):
    ids, mask = padded(text_rows(text_bytes), "left")
    with torch.no_grad():
        whole = token_logprobs(trained, ids, mask, alignment=alignment)
        part = token_logprobs(trained, ids, mask, alignment=alignment, columns=columns)
    close(part.values, whole.values[:, columns], atol=2e-6)
    assert torch.equal(part.mask, whole.mask[:, columns])


def test_what_is_not_wanted_is_context(trained, text_bytes):
    ids = text_bytes[None, :12]
    wanted = torch.zeros(1, 12)
    wanted[0, [0, 5, 11]] = 1
    with torch.no_grad():
        whole = token_logprobs(trained, ids)
        part = token_logprobs(trained, ids, score_mask=wanted)
    assert part.mask[0].nonzero().flatten().tolist() == [5, 11]
    close(part.values, torch.where(part.mask, whole.values, 0.0), atol=2e-6)


def test_only_wanted_rows_meet_the_head(trained, text_bytes):
    ids = text_bytes[:128].view(2, 64)
    with torch.no_grad(), Largest() as largest:
        token_logprobs(trained, ids, columns=slice(60, None))
    assert largest.bytes < 2 * 64 * 256 * 4


def test_nothing_to_score(trained):
    for shape in ((0, 5), (3, 0), (0, 0), (2, 1)):
        got = token_logprobs(trained, torch.zeros(shape, dtype=torch.long))
        assert got.shape == shape
        assert not got.mask.any()
        assert got.vocab_size == 256
    got = token_logprobs(trained, torch.full((2, 4), -1), torch.zeros(2, 4))
    assert (got.values == 0).all()


def test_the_result_is_a_tensor_whose_results_are_plain(trained, text_bytes):
    with torch.no_grad():
        got = token_logprobs(trained, text_bytes[None, :8])
    assert isinstance(got, torch.Tensor)
    for derived in (got - got, got[0], got.sum(), got.values, got.logprobs, got.double()):
        assert type(derived) is torch.Tensor
    again = pickle.loads(pickle.dumps(got))
    assert torch.equal(again.values, got.values)
    assert (again.temperature, again.vocab_size) == (1.0, 256)


def test_a_shared_vocabulary(trained, text_bytes):
    ids = text_bytes[None, :20]
    with torch.no_grad():
        got = token_logprobs(trained, ids, vocab_size=128)
    assert got.vocab_size == 128
    close(got[0, 1:], expected(trained, ids[0], vocab=128))
    assert (got[0, 1:] > token_logprobs(trained, ids)[0, 1:]).all()


def test_padded_embeddings_change_values_unless_they_are_cut(text_bytes):
    model = make("llama", vocab_size=256)
    ids = text_bytes[None, :20]
    before = token_logprobs(model, ids)
    model.resize_token_embeddings(pad_to_multiple_of=100, mean_resizing=False)
    padded_ = token_logprobs(model, ids)
    assert padded_.vocab_size == 300
    assert (padded_.values - before.values)[0, 1:].abs().max() > 1e-2
    close(token_logprobs(model, ids, vocab_size=256).values, before.values, atol=2e-6)


# Which way ------------------------------------------------------------------------------------


class Odd(nn.Module):
    """A head that is no product with a weight."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())

    def forward(self, hidden):
        return 3 * torch.sin(hidden @ self.weight.T)


def with_odd_head():
    model = make("llama")
    model.lm_head = Odd(model.lm_head.weight)
    return model


def with_hook():
    model = make("llama")
    model.lm_head.register_forward_hook(lambda module, args, output: output - 2 * output.tanh())
    return model


def with_undeclared_scale():
    model = make("llama")
    forward = model.forward

    def scaled(*args, **kwargs):
        output = forward(*args, **kwargs)
        output.logits = output.logits * 3
        return output

    model.forward = scaled
    return model


def with_logits_of_its_own():
    """Logits that the head and the hidden states do not explain."""
    model = make("llama")
    forward = model.forward
    embedding = model.get_input_embeddings()

    def changed(*args, input_ids=None, **kwargs):
        output = forward(*args, input_ids=input_ids, **kwargs)
        output.logits = output.logits + embedding(input_ids).sum(-1, keepdim=True).sin() * (
            torch.arange(output.logits.shape[-1]) % 7
        )
        return output

    model.forward = changed
    return model


WAYS = {
    "tiles": lambda: make("gemma2"),
    "odd head": with_odd_head,
    "hook": with_hook,
    "undeclared scale": with_undeclared_scale,
    "own logits": with_logits_of_its_own,
}
PATHS = dict(zip(WAYS, ("tiles", "replay", "replay", "replay", "plain"), strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_logits_of_the_model(way, caplog):
    caplog.set_level(logging.DEBUG, "kl_proteus.torch")
    model = WAYS[way]()
    rows = [torch.arange(n) * 5 % 97 for n in LENGTHS]
    ids, mask = padded(rows, "left")
    with torch.no_grad():
        got = token_logprobs(model, ids, mask, byte_budget=4096)
    assert causal_lm(model).path == PATHS[way]
    words = {"tiles": "tiles", "replay": "own head", "plain": "batch rows"}[PATHS[way]]
    assert [words in record.getMessage() for record in caplog.records] == [True]
    for i, row in enumerate(rows):
        close(got[i][got.mask[i]], expected(model, row), atol=5e-5)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_has_gradients(way):
    model = WAYS[way]()
    model.requires_grad_(True)
    ids = torch.arange(14).view(2, 7) * 5 % 97
    weights = torch.linspace(-1, 1, 12).view(2, 6)

    def gradients(lp):
        model.zero_grad()
        (lp * weights).sum().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    plain = model(input_ids=ids).logits[:, :-1].log_softmax(-1)
    want = gradients(plain.gather(-1, ids[:, 1:, None])[..., 0])
    got = gradients(token_logprobs(model, ids, byte_budget=4096)[:, 1:])
    assert got.keys() == want.keys()
    for name, gradient in want.items():
        assert (got[name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-7, name


def test_a_model_is_looked_at_once_and_let_go(caplog):
    caplog.set_level(logging.DEBUG, "kl_proteus.torch")
    model = make("llama")
    ids = torch.arange(10)[None]
    assert torch.equal(token_logprobs(model, ids).values, token_logprobs(model, ids).values)
    assert len(caplog.records) == 1
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_head_that_changes_is_looked_at_again():
    model = make("llama")
    ids = torch.arange(10)[None]
    token_logprobs(model, ids)
    model.lm_head = Odd(model.lm_head.weight)
    assert causal_lm(model).path == "replay"
    close(token_logprobs(model, ids)[0, 1:], expected(model, ids[0]))
    gemma = make("gemma2")
    assert causal_lm(gemma).softcap == 5.0
    gemma.config.final_logit_softcapping = None
    assert causal_lm(gemma).softcap is None


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("change", ["head", "model", "hook"])
def test_a_forward_that_was_replaced_counts(change, seen):
    model = make("llama")
    ids = torch.arange(10)[None]
    if seen:
        token_logprobs(model, ids)
    if change == "hook":

        def double(_, __, output):
            output.logits = 2 * output.logits

        model.register_forward_hook(double)
    elif change == "head":
        head = model.lm_head.forward
        model.lm_head.forward = lambda hidden: 2 * head(hidden)
    else:
        whole = model.forward

        def twice(*args, **options):
            output = whole(*args, **options)
            output.logits = 2 * output.logits
            return output

        model.forward = twice
    close(token_logprobs(model, ids).logprobs[0, 1:], expected(model, ids[0]))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_adapters_on_the_head_and_off():
    from peft import LoraConfig, get_peft_model

    base = make("llama")
    ids = torch.arange(30).view(2, 15) * 3 % 97
    before = token_logprobs(base, ids)
    config = LoraConfig(r=2, target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    model = get_peft_model(base, config).eval()
    with torch.no_grad():
        got = token_logprobs(model, ids)
        logits = model(input_ids=ids).logits
        with model.disable_adapter():
            off = token_logprobs(model, ids)
    assert causal_lm(model).path == "replay"
    for i, row in enumerate(ids):
        want = logits[i].double().log_softmax(-1)[:-1].gather(-1, row[1:, None])[:, 0]
        close(got[i, 1:], want)
    close(off.values, before.values, atol=2e-6)
    assert (off.values - got.values).abs().max() > 1e-2
    token_logprobs(model, ids).sum().backward()
    adapters = {n: p.grad for n, p in model.named_parameters() if "lora_" in n}
    assert all(gradient is not None and gradient.any() for gradient in adapters.values())


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_virtual_tokens_are_refused_while_they_are_on():
    from peft import PromptTuningConfig, get_peft_model

    model = get_peft_model(
        make("llama"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    )
    ids = torch.arange(8)[None]
    with pytest.raises(ValueError, match="virtual tokens"):
        token_logprobs(model, ids)
    with model.disable_adapter(), torch.no_grad():
        close(token_logprobs(model, ids)[0, 1:], expected(model.get_base_model(), ids[0]))


class Stub:
    """Logits that were fixed before, whatever comes."""

    def __init__(self, logits):
        self.logits = logits

    def __call__(self, input_ids, attention_mask):
        assert (input_ids >= 0).all()
        return SimpleNamespace(logits=self.logits)


def test_a_stub_gets_the_batch_as_it_is():
    logits = torch.tensor([[[0.0, 1, 2], [2, 0, 1], [1, 2, 0], [9, 9, 9]]])
    ids = torch.tensor([[0, 2, 0, 1]])
    got = token_logprobs(Stub(logits), ids)
    close(got.values, torch.tensor([[0.0, -0.4076059644443806] + [-0.4076059644443806] * 2]))
    left = torch.tensor([[-100, 2, 0, 1]])
    got = token_logprobs(Stub(logits), left, torch.tensor([[0, 1, 1, 1]]))
    assert got.mask.tolist() == [[False, False, True, True]]
    for width in (3, 5):
        longer = torch.zeros(1, width, 3)
        with pytest.raises(ValueError, match=r"logits of shape \(1, 4, vocabulary\)"):
            token_logprobs(Stub(longer), ids)


class Recurrent(nn.Module):
    """A model of somebody's own, which knows no padding."""

    def __init__(self):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(11, 8), nn.GRU(8, 8, batch_first=True)
        self.out = nn.Linear(8, 11)

    def forward(self, input_ids):
        return SimpleNamespace(logits=self.out(self.rnn(self.embed(input_ids))[0]))


def test_a_model_without_a_mask_gets_right_padding():
    torch.manual_seed(0)
    model = Recurrent().eval()
    rows = [torch.arange(6), torch.arange(3) + 5]
    ids, mask = padded(rows, "left", filler=7)
    with torch.no_grad():
        got = token_logprobs(model, ids, mask)
    for i, row in enumerate(rows):
        close(got[i][got.mask[i]], expected(model, row))


# What is left alone ---------------------------------------------------------------------------


def test_the_model_is_as_it_was():
    model = make("gpt2", resid_pdrop=0.5).train()
    model.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    state = torch.random.get_rng_state()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    causal_lm(model)
    assert torch.equal(torch.random.get_rng_state(), state)
    ids = torch.arange(8)[None]
    first, second = (token_logprobs(model, ids) for _ in range(2))
    assert (first.values - second.values).abs().max() > 1e-3
    assert [module.training for module in model.modules()] == modes
    assert "forward" not in vars(model.transformer)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_autocast_is_off(trained, text_bytes):
    ids = text_bytes[None, :20]
    with torch.no_grad():
        plain = token_logprobs(trained, ids)
        with torch.autocast("cpu", torch.bfloat16):
            inside = token_logprobs(trained, ids)
    assert torch.equal(plain.values, inside.values)


class Compiled(nn.Module):
    """Wraps as torch.compile does, without waiting for a compiler."""

    def __init__(self, model):
        super().__init__()
        self._orig_mod = model


@pytest.mark.parametrize("wrap", [nn.DataParallel, Compiled])
def test_wrappers(trained, text_bytes, wrap):
    ids = text_bytes[None, :20]
    assert torch.equal(
        token_logprobs(wrap(trained), ids).values, token_logprobs(trained, ids).values
    )


def test_gradients_and_padding_that_is_not_a_number(policy, text_bytes):
    ids, mask = padded(text_rows(text_bytes), "left")
    reference = torch.full(ids.shape, float("nan"))
    got = token_logprobs(policy, ids, mask)
    reference[got.mask] = -1.0
    loss = torch.where(got.mask, got.values - torch.where(got.mask, reference, 0.0), 0.0).sum()
    loss.backward()
    gradients = [p.grad for p in policy.parameters() if p.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


# Refusals -------------------------------------------------------------------------------------

IDS = torch.arange(6).view(2, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tokens": [[1, 2]]}, TypeError, "tokens must be a tensor of token ids"),
        ({"tokens": IDS.float()}, TypeError, "integers; got torch.float32"),
        ({"tokens": IDS[0]}, ValueError, r"shape \(batch, tokens\), got \(3,\)"),
        ({"tokens": IDS + 255}, ValueError, r"from 0 to 255, .*; got 256 at \[0, 1\]"),
        ({"tokens": IDS - 1}, ValueError, r"got -1 at \[0, 0\]"),
        ({"attention_mask": IDS[:, :2]}, ValueError, r"attention_mask must have the shape \(2, 3"),
        ({"attention_mask": IDS}, ValueError, r"0 or 1, got 2 at \[0, 2\]"),
        ({"attention_mask": [[1]]}, TypeError, "attention_mask must be a tensor"),
        ({"score_mask": IDS}, ValueError, "score_mask must hold"),
        ({"temperature": 0.0}, ValueError, "temperature must be > 0"),
        ({"temperature": float("nan")}, ValueError, "temperature must be a finite number"),
        ({"temperature": "1"}, TypeError, "temperature must be a real number"),
        ({"vocab_size": 257}, ValueError, "vocab_size must be at most the 256 ids"),
        ({"vocab_size": 0}, ValueError, "vocab_size must be at least 1"),
        ({"vocab_size": 4}, ValueError, r"from 0 to 3, .*; got 4 at \[1, 1\]"),
        ({"columns": slice(0, 3, 2)}, ValueError, "slice of step 1"),
        ({"columns": 2}, TypeError, "columns must be a slice"),
        ({"alignment": "left"}, ValueError, "alignment must be 'token' or 'next'"),
        ({"byte_budget": 0}, ValueError, "byte_budget must be at least 1"),
        ({"byte_budget": 1.5}, TypeError, "byte_budget must be an int"),
        ({"model": "gpt2"}, TypeError, "model must be a causal language model, got str"),
    ],
)
def test_bad_arguments(trained, arguments, error, message):
    with pytest.raises(error, match=message):
        token_logprobs(**{"model": trained, "tokens": IDS, **arguments})


@pytest.mark.parametrize("family", ["gpt2", "opt", "ctrl"])
def test_a_row_longer_than_the_table_of_positions(family):
    model = make(family)
    with pytest.raises(ValueError, match=r"at most 64 kept tokens in a row, .* got 65"):
        token_logprobs(model, torch.zeros(1, 65, dtype=torch.long))
    mask = torch.ones(1, 65)
    mask[0, 0] = 0
    assert token_logprobs(model, torch.zeros(1, 65, dtype=torch.long), mask).mask.sum() == 63


def test_an_encoder_decoder_is_refused():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=11, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="decoder that predicts the next token"):
        token_logprobs(T5ForConditionalGeneration(config), IDS)


def test_logits_that_do_not_fit():
    logits = torch.randn(2, 3, 5)
    ids = torch.zeros(2, 3, dtype=torch.long)
    for wrong in (ids[:, :2], torch.zeros(2, 4, dtype=torch.long)):
        with pytest.raises(ValueError, match="shape of logits without the last axis"):
            logprobs_from_logits(logits, wrong)
    with pytest.raises(ValueError, match="from 0 to 4"):
        logprobs_from_logits(logits, ids + 5)
    with pytest.raises(TypeError, match="logits must be a tensor of floats"):
        logprobs_from_logits(ids, ids)
    with pytest.raises(ValueError, match="hidden ends in 3 numbers, weight takes 4"):
        LazyLogits(torch.zeros(2, 3), torch.zeros(5, 4))
    with pytest.raises(ValueError, match="bias must have the shape"):
        LazyLogits(torch.zeros(2, 4), torch.zeros(5, 4), torch.zeros(4))
    with pytest.raises(TypeError, match="bias must be a tensor, got list"):
        LazyLogits(torch.zeros(2, 4), torch.zeros(5, 4), [0.0] * 5)
    with pytest.raises(TypeError, match="hidden must hold floats"):
        LazyLogits(ids[0], torch.zeros(5, 3))
    with pytest.raises(ValueError, match="weight must have the shape"):
        LazyLogits(torch.zeros(2, 4), torch.zeros(0, 4))
    for name, value, error in (
        ("scale", float("nan"), ValueError),
        ("softcap", float("inf"), ValueError),
        ("softcap", 0, ValueError),
        ("softcap", "30", TypeError),
    ):
        with pytest.raises(error, match=f"{name} must be"):
            LazyLogits(torch.zeros(2, 4), torch.zeros(5, 4), **{name: value})
    got = logprobs_from_logits(logits[:, :-1], ids[:, 1:])
    close(got, logits[:, :-1].log_softmax(-1)[..., 0])
