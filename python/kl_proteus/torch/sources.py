"""Where the weights of a reference model come from."""

import copy
import os
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn

__all__ = ["copy_model", "load_causal_lm", "unwrap"]


def load_causal_lm(
    name: str | os.PathLike[str],
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | int | None = None,
    device_map: Any = None,
    attn_implementation: str | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Loads a causal language model, frozen: evaluation mode and no parameter with a gradient.

    A directory of a PEFT adapter loads its base model with the adapter on it (needs PEFT).

    Args:
        name: Directory of a saved model, or its name on the Hugging Face Hub.
        revision: Branch, tag or commit on the Hub.
        trust_remote_code: Whether code that comes with the model may run.
        dtype: Of the weights; None and `"auto"` keep that of the checkpoint.
        device: Where the whole model goes; None leaves it on the CPU.
        device_map: How Accelerate spreads the model; not together with `device`.
        attn_implementation: `"eager"`, `"sdpa"`, ...; None lets Transformers choose.
        model_kwargs: Further arguments of `from_pretrained`, such as `quantization_config`.

    Raises:
        OSError: There is no such model.
        TypeError: `name` is not a path.
        ValueError: An argument is illegal, or the model wants remote code.
    """
    from transformers import AutoModelForCausalLM

    if not isinstance(name, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"name must be a path or a name, got {name!r} ({type(name).__name__})")
    if not isinstance(trust_remote_code, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"trust_remote_code must be True or False, got {trust_remote_code!r}")
    if device is not None and device_map is not None:
        raise ValueError(f"device must be None where device_map is given, got {device!r}")
    options = dict(model_kwargs or {})
    given = {
        "revision": revision,
        "device_map": device_map,
        "attn_implementation": attn_implementation,
        "dtype": "auto" if dtype is None else dtype,
        "trust_remote_code": trust_remote_code,
    }
    if clash := sorted(set(options) & {key for key, value in given.items() if value is not None}):
        raise ValueError(f"model_kwargs must not repeat arguments, got {clash}")
    options |= {key: value for key, value in given.items() if value is not None}
    if "config" in options:
        # Two models of one config object share its attention implementation, read at run time.
        options["config"] = copy.deepcopy(options["config"])
    load = cast(Any, AutoModelForCausalLM).from_pretrained
    model = cast(nn.Module, load(os.fspath(name), **options))
    if device is not None:
        model.to(device)
    return _frozen(model)


def copy_model(policy: nn.Module) -> nn.Module:
    """A deep copy of a model as it is now, adapters and configuration included, frozen.

    Args:
        policy: The model to copy; it stays as it was.
    """
    return _frozen(copy.deepcopy(policy))


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of data-parallel training and `torch.compile`.

    Args:
        model: Any model.

    Raises:
        TypeError: It is no module.
    """
    if not isinstance(model, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"source must be a path, a name or a torch.nn.Module, got {model!r} "
            f"({type(model).__name__})"
        )
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = cast(nn.Module, model.module)
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def _frozen(model: nn.Module) -> nn.Module:
    model.eval()
    model.requires_grad_(False)
    return model
