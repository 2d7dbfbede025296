"""A language model and a tokenizer so small that a trainer takes a step in milliseconds."""

import string

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

SPECIAL = ["<pad>", "<bos>", "<eos>"]
LETTERS = list(string.ascii_lowercase + " ")


def tokenizer():
    """One token a letter."""
    vocabulary = {token: place for place, token in enumerate([*SPECIAL, *LETTERS])}
    letters = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=letters, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


def saved_model(folder, seed=0):
    """The folder of a model with two layers: TRL reads its reference from the disk."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + len(LETTERS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def vowels(completions, **_):
    """A reward that a random model can raise at once."""
    return [sum(letter in "aeiou" for letter in text) / 8 for text in completions]


def trainer(kind, model, output, *, callbacks=None, peft_config=None, **options):
    """A trainer on eight prompts; `kind` is "grpo" or "rloo"."""
    Config, Trainer = {"grpo": (GRPOConfig, GRPOTrainer), "rloo": (RLOOConfig, RLOOTrainer)}[kind]
    settings = {
        "beta": 0.05,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 8,
        "learning_rate": 1e-2,
        "max_steps": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "disable_tqdm": True,
        "seed": 0,
    }
    return Trainer(
        model,
        reward_funcs=vowels,
        args=Config(str(output), **(settings | options)),
        train_dataset=Dataset.from_dict({"prompt": ["abc", "hello", "the cat", "x"] * 2}),
        processing_class=tokenizer(),
        callbacks=callbacks,
        peft_config=peft_config,
    )
