"""Models of a few thousand parameters, made and trained where the tests run; no network.

There is no `__init__.py` beside this file: the directory would be a package called torch.
"""

import argparse
import copy
import inspect

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

# Small products wait for each other at the barriers of several threads.
torch.set_num_threads(1)


def byte_config() -> LlamaConfig:
    """A vocabulary of bytes, as every id is text."""
    return LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


@pytest.fixture(scope="session")
def text_bytes() -> torch.Tensor:
    """Bytes of Python source, shape (length,)."""
    source = inspect.getsource(argparse).encode()[:40_000]
    return torch.frombuffer(bytearray(source), dtype=torch.uint8).long()


@pytest.fixture(scope="session")
def trained(text_bytes: torch.Tensor) -> LlamaForCausalLM:
    """A byte model that has seen text, so that its logits are spread; do not change it."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(byte_config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(100):
        starts = torch.randint(len(text_bytes) - 33, (16,), generator=generator)
        ids = torch.stack([text_bytes[start : start + 33] for start in starts])
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 3.0
    return model.eval().requires_grad_(False)


@pytest.fixture
def policy(trained: LlamaForCausalLM) -> LlamaForCausalLM:
    """A copy of the trained model, moved a little from it, with gradients."""
    model = copy.deepcopy(trained).requires_grad_(True)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return model
