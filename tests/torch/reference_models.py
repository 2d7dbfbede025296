"""Tiny random models, adapters and a tokenizer, made without a network."""

import warnings

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

VOCAB = 259
"""A byte each, and three special tokens."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def llama(seed=0, *, vocab=VOCAB, scale=4.0, context=256, **options):
    """Two layers; matrices large enough for logits that differ."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        **options,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return model.eval()


def gpt2(seed=0, *, vocab=VOCAB):
    """With dropout, which shows a model that is not in evaluation mode."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocab,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=128,
        resid_pdrop=0.3,
        embd_pdrop=0.3,
        attn_pdrop=0.3,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).train()


def with_lora(model, *names, seed=0, **options):
    """A `PeftModel` with an adapter a name, each of which does something."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    options = {"target_modules": ["q_proj", "v_proj"], "r": 2, "lora_alpha": 4, **options}
    config = LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.2, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peft = get_peft_model(model, config, adapter_name=names[0])
        for name in names[1:]:
            peft.add_adapter(name, config)
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if "lora_B" in name or "lora_embedding_A" in name:
                parameter.normal_(std=0.5)
    return peft


def batch(rows=3, length=12, *, seed=0, vocab=VOCAB):
    """Ids with left and right padding of different lengths, and the mask."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, vocab, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(rows):
        if row % 2:
            mask[row, :row] = 0
        elif row:
            mask[row, -row:] = 0
    return ids, mask


def expected_logprobs(model, ids, mask):
    """Float64, a row at a time without its padding."""
    found = torch.zeros(ids.shape, dtype=torch.float64)
    with torch.no_grad():
        for row in range(len(ids)):
            kept = mask[row].bool()
            tokens = ids[row, kept]
            if len(tokens) < 2:
                continue
            logits = model(input_ids=tokens[None]).logits[0, :-1].double()
            values = logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
            found[row, kept] = torch.cat([values.new_zeros(1), values])
    return found


def tokenizer(template=CHAT_TEMPLATE, *, extra=()):
    """A byte-level tokenizer with three special tokens."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|pad|>", "<|start|>", "<|end|>", *extra]
    vocabulary = {token: number for number, token in enumerate([*specials, *symbols])}
    made = Tokenizer(models.BPE(vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|start|>"],
    )
    fast.chat_template = template
    return fast


def save(path, model, template=CHAT_TEMPLATE, **options):
    """A directory as `from_pretrained` wants it."""
    model.save_pretrained(path)
    if template != "none":
        tokenizer(template, **options).save_pretrained(path)
    return path
