"""Without torch the package says which extra it needs; without transformers tensors still work."""

import subprocess
import sys

import pytest

import kl_proteus.torch

BLOCKED = """
import sys

class Block:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Block)
"""


def run(code, *blocked):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(blocked=set(blocked)) + code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "code", ["import kl_proteus.torch", "from kl_proteus.torch import kl_loss"]
)
def test_without_torch(code):
    run(
        f"""
import kl_proteus
try:
    {code}
except ImportError as error:
    assert "pip install 'kl-proteus[torch]'" in str(error), error
else:
    raise AssertionError
assert kl_proteus.kl_from_logprobs([-1.0], [-2.0]) == 1.0
""",
        "torch",
    )


def test_tensors_need_no_transformers():
    run(
        """
import torch
from types import SimpleNamespace
from kl_proteus.torch import full_kl, kl_loss, logprobs_from_logits, token_logprobs
logits = torch.zeros(1, 3, 5)
assert full_kl(logits, logits).sum() == 0
assert kl_loss(logits[..., 0], logits[..., 0]) == 0
ids = torch.zeros(1, 3, dtype=torch.long)
assert logprobs_from_logits(logits, ids).sum() < 0
stub = lambda input_ids, attention_mask: SimpleNamespace(logits=logits)
assert token_logprobs(stub, ids).sum() < 0
""",
        "transformers",
        "peft",
    )


@pytest.mark.parametrize("name", kl_proteus.torch.__all__)
def test_every_public_name_is_there(name):
    assert getattr(kl_proteus.torch, name) is getattr(kl_proteus.torch, name)
    assert name in dir(kl_proteus.torch)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match=r"'kl_proteus\.torch' has no attribute 'nothing'"):
        _ = kl_proteus.torch.nothing
