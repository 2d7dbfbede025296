"""Watches how large the tensors are that torch makes."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """Within the block, `bytes` is the size of the largest tensor with memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        owned = {x.untyped_storage().data_ptr() for x in tree_leaves(args) if torch.is_tensor(x)}
        for value in tree_leaves(result):
            if torch.is_tensor(value) and value.untyped_storage().data_ptr() not in owned:
                self.bytes = max(self.bytes, value.untyped_storage().nbytes())
        return result
