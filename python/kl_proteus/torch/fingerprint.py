"""What a model computes, as one hash: models of the same hash give the same log-probabilities.

A hash covers the bytes of parameters and buffers with their dtypes, the configuration, the
attention implementation, quantisation, and the adapters that are active. It does not cover the
device, nor the padding and batch shape of a call, which move results of low precision a little.
"""

import copy
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import torch
from torch import nn

from kl_proteus.torch.adapters import named_modules, tuner_layers

__all__ = ["Stamp", "describe_model", "model_fingerprint"]

_FORMAT = 1
_CHUNK_BYTES = 1 << 26
_HASHING_THREADS = 4
_SAMPLES = 16

# Names, versions and settings of other calls: none of them changes a log-probability.
_VOLATILE = frozenset(
    {
        "_commit_hash",
        "_name_or_path",
        "architectures",
        "dtype",
        "id2label",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "problem_type",
        "return_dict",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
_VOLATILE_OF_ADAPTERS = frozenset(
    {"auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision"}
)


def model_fingerprint(model: nn.Module) -> str:
    """Hashes everything that decides the log-probabilities of a model in its present state.

    Adapters that are switched off, or are not active, do not enter. About 1 GiB a second and
    thread; weights on an accelerator are copied to the host in parts.

    Args:
        model: A language model.

    Returns:
        SHA-256, 64 hexadecimal digits.

    Raises:
        ValueError: A parameter has no bytes here: it is offloaded, or sharded over processes.
    """
    return hashlib.sha256(_canonical(describe_model(model))).hexdigest()


def describe_model(model: nn.Module) -> dict[str, Any]:
    """What `model_fingerprint` hashes, as JSON values.

    Args:
        model: A language model.

    Returns:
        A dict; `tensors` holds the hash of each parameter, buffer and further state by its name.

    Raises:
        ValueError: A parameter has no bytes here: it is offloaded, or sharded over processes.
    """
    config = getattr(model, "config", None)
    head = _output_head(model)
    return {
        "format": _FORMAT,
        "classes": {name: _class_name(module) for name, module in named_modules(model)},
        "config": _without(_as_dict(config), _VOLATILE),
        "implementations": _implementations(config),
        "head_dtype": str(getattr(getattr(head, "weight", None), "dtype", None)),
        "adapters": _active_adapters(model),
        "tensors": _tensor_hashes(model),
    }


class Stamp:
    """A quick look at a model's parameters and buffers, to notice that they have changed.

    In-place changes and replaced tensors are seen by PyTorch's own counters; those that bypass the
    counters (`parameter.data.copy_()`) by a few numbers of each.

    Args:
        model: The model, in the state that is to be recognised.
    """

    def __init__(self, model: nn.Module) -> None:
        tensors = _tensors(model)
        self._identities = {name: _identity(tensor) for name, tensor in tensors.items()}
        self._samples = _samples(tensors)
        self._implementations = _implementations(getattr(model, "config", None))
        self._scales = _scales(model)

    def difference(self, model: nn.Module) -> str | None:
        """What has changed since the stamp was made.

        Args:
            model: The same model, in the same state.

        Returns:
            None if nothing has, else what, in a few words. A model that was only moved to another
            device has not changed.
        """
        now = _implementations(getattr(model, "config", None))
        if now != self._implementations:
            return f"the attention implementation was {self._implementations}, now it is {now}"
        for name, scale in (scales := _scales(model)).items():
            if self._scales.get(name) != scale:
                return f"{name} uses its adapters at {scale}, before at {self._scales.get(name)}"
        if lost := sorted(self._scales.keys() - scales.keys()):
            return f"{lost[0]} uses no adapter any more"
        tensors = _tensors(model)
        if lost := sorted(self._identities.keys() ^ tensors.keys()):
            return f"tensors were added or removed: {', '.join(lost[:3])}"
        identities = {name: _identity(tensor) for name, tensor in tensors.items()}
        for name, identity in identities.items():
            if self._identities[name][1:] != identity[1:]:
                return f"{name} was changed in place, or has another dtype or shape"
        samples = _samples(tensors)
        for name, sample in samples.items():
            if sample != self._samples[name]:
                return f"{name} holds other numbers"
        self._identities = identities
        return None


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor lies, then what stays the same when it is only moved."""
    if tensor.device.type == "meta":  # offloaded: a new one after each use
        return 0, 0, str(tensor.dtype), tuple(tensor.shape)
    version = 0 if tensor.is_inference() else tensor._version  # pyright: ignore[reportPrivateUsage]
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # subclasses without memory of their own
        address = id(tensor)
    return address, version, str(tensor.dtype), tuple(tensor.shape)


def _samples(tensors: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    """A few numbers of each tensor, the same on every device, in one transfer a dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in tensors.items():
        plain = _parts(tensor)[0][1].detach()
        if plain.device.type == "meta":
            continue
        flat = plain.view(-1) if plain.is_contiguous() else plain.flatten()
        picked = flat[:: max(1, flat.numel() // _SAMPLES)][:_SAMPLES]
        groups.setdefault((plain.device, plain.dtype), []).append((name, picked))
    found: dict[str, bytes] = {}
    for group in groups.values():
        data = _bytes_of(torch.cat([picked for _, picked in group]))
        start = 0
        for name, picked in group:
            end = start + picked.numel() * picked.element_size()
            found[name] = data[start:end]
            start = end
    return found


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers that take part, by name; tied ones under each of their names."""
    idle = tuple(_idle_prefixes(model))
    moving = _recomputed_buffers(model)
    found: dict[str, torch.Tensor] = {}
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        if name not in moving and not f"{name}.".startswith(idle):
            found[name] = tensor
    return found


def _idle_prefixes(model: nn.Module) -> Iterator[str]:
    """Where the weights of adapters lie that take no part now."""
    for name, layer in tuner_layers(model):
        active = [] if layer.disable_adapters else layer.active_adapters
        for attribute in (*layer.adapter_layer_names, *layer.other_param_names):
            container = getattr(layer, attribute, None)
            if isinstance(container, (nn.ModuleDict, nn.ParameterDict, nn.Module)):
                for key in _keys(container):
                    if key not in active:
                        yield f"{name}.{attribute}.{key}."


def _keys(container: nn.Module) -> list[str]:
    return list(cast(Any, container).keys()) if hasattr(container, "keys") else []


def _recomputed_buffers(model: nn.Module) -> frozenset[str]:
    """Rotary frequencies that a forward pass sets anew from the configuration and the length."""
    found: set[str] = set()
    for name, module in named_modules(model):
        kinds = getattr(module, "rope_type", None)
        kinds = list(cast("dict[str, Any]", kinds).values()) if isinstance(kinds, dict) else [kinds]
        if any("dynamic" in str(kind) or kind == "longrope" for kind in kinds):
            found |= {f"{name}.{key}" for key in dict(module.named_buffers(recurse=False))}
    return frozenset(found)


def _tensor_hashes(model: nn.Module) -> dict[str, str]:
    tensors = _tensors(model)
    # Tied ones once.
    unique = {id(tensor): (name, tensor) for name, tensor in tensors.items()}
    with ThreadPoolExecutor(min(_HASHING_THREADS, os.cpu_count() or 1)) as pool:
        hashed = pool.map(_hash_tensor, *zip(*unique.values(), strict=True)) if unique else ()
        hashes = dict(zip(unique, hashed, strict=True))
    found = {name: hashes[id(tensor)] for name, tensor in tensors.items()}
    return found | _further_state(model, found.keys())


def _further_state(model: nn.Module, known: Any) -> dict[str, str]:
    """State that is neither parameter nor buffer, such as the scales of quantised weights."""
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    every |= {name for name, _ in model.named_buffers(remove_duplicate=False)}
    further: dict[str, str] = {}
    for name, value in cast("dict[str, object]", model.state_dict()).items():
        if name in known or name in every:
            continue
        if isinstance(value, torch.Tensor):
            further[name] = _hash_tensor(name, value)
        else:
            further[name] = hashlib.sha256(repr(value).encode()).hexdigest()
    return further


def _hash_tensor(name: str, tensor: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for label, part in _parts(tensor):
        if part.device.type == "meta":
            raise ValueError(
                f"model must have its weights in memory, got {name} without any (offloaded?)"
            )
        digest.update(f"{label};{part.dtype};{tuple(part.shape)};".encode())
        flat = part.detach().contiguous().reshape(-1)
        rows = max(1, _CHUNK_BYTES // max(1, part.element_size()))
        for start in range(0, flat.numel(), rows):
            digest.update(_bytes_of(flat[start : start + rows]))
    return digest.hexdigest()


def _parts(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """The plain tensors inside one of a subclass, with their names."""
    if type(tensor).__name__ == "DTensor":
        raise ValueError("model must not be sharded over processes, got a DTensor parameter")
    flatten = cast(Any, getattr(tensor, "__tensor_flatten__", None))
    if flatten is None:
        return [("", tensor)]
    names, context = cast("tuple[list[str], object]", flatten())
    found: list[tuple[str, torch.Tensor]] = []
    for name in names:
        inner = cast(torch.Tensor, getattr(tensor, name))
        found += [(f"{name}.{label};{context!r}", part) for label, part in _parts(inner)]
    return found


def _bytes_of(flat: torch.Tensor) -> bytes:
    """The bytes of a one-dimensional tensor; NumPy has no bfloat16."""
    return flat.to("cpu").contiguous().view(torch.uint8).numpy().tobytes()


def _active_adapters(model: nn.Module) -> list[Any]:
    """What is active in which layer, at what scale, and how it is configured."""
    scales = _scales(model)
    layers = [[name, list(scale), list(scale.values())] for name, scale in scales.items()]
    names = {key for scale in scales.values() for key in scale}
    configs = cast("dict[str, Any]", getattr(model, "peft_config", None) or {})
    chosen = {key: _as_dict(configs[key]) for key in sorted(names & configs.keys())}
    return [layers, _without(chosen, _VOLATILE_OF_ADAPTERS)] if layers else []


def _scales(model: nn.Module) -> dict[str, dict[str, str]]:
    """The scale of each active adapter, by layer."""
    found: dict[str, dict[str, str]] = {}
    for name, layer in tuner_layers(model):
        if not layer.disable_adapters:
            scaling = cast("dict[str, object]", getattr(layer, "scaling", None) or {})
            found[name] = {key: repr(scaling.get(key)) for key in layer.active_adapters}
    return found


def _implementations(config: Any, depth: int = 0) -> dict[str, Any]:
    """How attention and experts are computed, by part of the model."""
    if config is None or depth > 3:
        return {}
    found: dict[str, Any] = {
        key: str(value)
        for key in ("_attn_implementation", "_experts_implementation")
        if (value := getattr(config, key, None)) is not None
    }
    for part in cast("dict[str, Any]", getattr(config, "sub_configs", None) or {}):
        if inner := _implementations(getattr(config, part, None), depth + 1):
            found[part] = inner
    return found


def _output_head(model: nn.Module) -> object:
    get: Callable[[], object] | None = getattr(model, "get_output_embeddings", None)
    try:
        return None if get is None else get()
    except (AttributeError, NotImplementedError):
        return None


def _class_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _as_dict(config: Any) -> Any:
    if config is None or isinstance(config, dict):
        return cast(Any, config)
    to_dict = getattr(config, "to_dict", None)
    return copy.deepcopy(to_dict()) if callable(to_dict) else repr(config)


def _without(value: Any, keys: frozenset[str]) -> Any:
    """The value without some keys, at any depth."""
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return {str(k): _without(v, keys) for k, v in entries.items() if k not in keys}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, cast("set[object]", value)))
    if isinstance(value, (list, tuple)):
        return [_without(item, keys) for item in cast("list[Any]", value)]
    return value


def _canonical(description: dict[str, Any]) -> bytes:
    return json.dumps(description, sort_keys=True, separators=(",", ":"), default=str).encode()
