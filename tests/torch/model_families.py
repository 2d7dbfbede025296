"""Tiny, random models of the families that differ in how they make logits."""

import warnings
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB = 97
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
PLAIN = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}

# Family: its settings, and the scale and softcap that its logits have.
FAMILIES: dict[str, tuple[dict[str, Any], float, float | None]] = {
    "gpt2": (GPT, 1.0, None),
    "gpt_neo": (
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 64,
        },
        1.0,
        None,
    ),
    "gptj": ({**GPT, "rotary_dim": 4}, 1.0, None),
    "gpt_neox": (PLAIN, 1.0, None),
    "gpt_bigcode": (GPT, 1.0, None),
    "llama": (LLAMA, 1.0, None),
    "mistral": (LLAMA, 1.0, None),
    "mixtral": ({**LLAMA, **EXPERTS}, 1.0, None),
    "qwen2": (LLAMA, 1.0, None),
    "qwen3": ({**LLAMA, "head_dim": 8}, 1.0, None),
    "gemma": ({**LLAMA, "head_dim": 8}, 1.0, None),
    "gemma2": ({**LLAMA, "head_dim": 8, "final_logit_softcapping": 5.0}, 1.0, 5.0),
    "gemma3_text": ({**LLAMA, "head_dim": 8}, 1.0, None),
    "phi": (PLAIN, 1.0, None),
    "phi3": (LLAMA, 1.0, None),
    "stablelm": (LLAMA, 1.0, None),
    "starcoder2": (LLAMA, 1.0, None),
    "olmo2": (LLAMA, 1.0, None),
    "opt": (
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 48,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 16,
        },
        1.0,
        None,
    ),
    "bloom": ({"hidden_size": 32, "n_layer": 2, "n_head": 4}, 1.0, None),
    "falcon": ({k: v for k, v in PLAIN.items() if k != "intermediate_size"}, 1.0, None),
    "cohere": (LLAMA, 0.0625, None),
    "cohere2": ({**LLAMA, "sliding_window": 8}, 0.0625, None),
    "granite": ({**LLAMA, "logits_scaling": 8.0}, 0.125, None),
    "falcon_h1": (
        {
            **LLAMA,
            "lm_head_multiplier": 0.5,
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_chunk_size": 8,
        },
        0.5,
        None,
    ),
    "recurrent_gemma": (
        {
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "logits_soft_cap": 5.0,
            "attention_window_size": 16,
        },
        1.0,
        5.0,
    ),
    "ctrl": ({"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "dff": 48}, 1.0, None),
    "mamba": ({"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, 1.0, None),
    "mamba2": (
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 8,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 1,
            "chunk_size": 8,
        },
        1.0,
        None,
    ),
    "rwkv": ({"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32}, 1.0, None),
    "gpt_oss": ({**LLAMA, **EXPERTS, "head_dim": 8, "sliding_window": 8}, 1.0, None),
}
# Those that are also run in low precision.
MAIN = ("gpt2", "llama", "qwen2", "qwen3", "gemma", "gemma2", "mistral", "mamba")


def make(family: str, **changes: Any) -> Any:
    """A model in eval mode whose logits are spread."""
    settings, _, _ = FAMILIES[family]
    transformers.logging.set_verbosity_error()
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **{**COMMON, **settings, **changes})
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim >= 2:
                    # Mamba overflows float16 sooner.
                    parameter *= 2 if family == "mamba" else 4
    return model.eval().requires_grad_(False)
