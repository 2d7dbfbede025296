"""Switching PEFT adapters off, or to a reference adapter, and putting everything back."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

from torch import nn

__all__ = [
    "adapters_as",
    "base_model",
    "check_adapter",
    "check_as_it_is",
    "has_adapters",
    "is_peft_model",
    "named_modules",
    "tuner_layers",
]

# They change the forward of the wrapper rather than single layers, so a layer cannot switch them.
_WHOLE_MODEL = frozenset({"ADAPTION_PROMPT", "XLORA"})


class TunerLayer(Protocol):
    """What PEFT's tuner layers and its wrappers of whole modules have in common."""

    adapter_layer_names: tuple[str, ...]
    other_param_names: tuple[str, ...]

    @property
    def active_adapters(self) -> list[str]: ...
    @property
    def disable_adapters(self) -> bool: ...
    def set_adapter(self, adapter_names: list[str], inference_mode: bool = False) -> None: ...
    def enable_adapters(self, enabled: bool) -> None: ...


def is_peft_model(model: nn.Module) -> bool:
    """Whether a model is a `peft.PeftModel`; PEFT is not imported for the answer."""
    return any(
        kind.__name__ == "PeftModel" and kind.__module__.partition(".")[0] == "peft"
        for kind in type(model).__mro__
    )


def has_adapters(model: nn.Module) -> bool:
    """Whether a model carries PEFT adapters, wrapped in a `peft.PeftModel` or not."""
    return is_peft_model(model) or any(True for _ in tuner_layers(model))


def base_model(model: nn.Module) -> nn.Module:
    """The language model inside a `peft.PeftModel`, its tuner layers in place; else `model`."""
    return cast(nn.Module, cast(Any, model).get_base_model()) if is_peft_model(model) else model


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """`model.named_modules()`, with types."""
    return cast("Iterator[tuple[str, nn.Module]]", model.named_modules())


def tuner_layers(model: nn.Module) -> Iterator[tuple[str, TunerLayer]]:
    """The modules of a model that hold adapters, with their names.

    Args:
        model: Any model.

    Yields:
        Name and module, in the order of `named_modules`.
    """
    for name, module in named_modules(model):
        # By what they can do: PEFT has two families of them, without a common base.
        if hasattr(type(module), "adapter_layer_names") and hasattr(
            type(module), "enable_adapters"
        ):
            yield name, cast(TunerLayer, cast(object, module))


def check_adapter(model: nn.Module, adapter: str | None) -> None:
    """Refuses what cannot serve as a reference.

    Args:
        model: A model with adapters.
        adapter: Name of the reference adapter; None switches adapters off.

    Raises:
        TypeError: `adapter` is not a name.
        ValueError: There is no such adapter; it prepends virtual tokens; its kind cannot be
            switched layer by layer; or adapters are merged into the base weights.
    """
    configs = cast("dict[str, Any]", getattr(model, "peft_config", {}))
    if adapter is not None:
        if not isinstance(adapter, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"adapter must be a str or None, got {adapter!r}")
        if adapter not in configs:
            raise ValueError(f"adapter must be one of {sorted(configs)}, got {adapter!r}")
        if configs[adapter].is_prompt_learning:
            raise ValueError(
                f"adapter must not be of a prompt-learning method, got {adapter!r}: its virtual "
                "tokens are not in the text, so log-probabilities would not line up with tokens"
            )
    for name, config in configs.items():
        kind = str(getattr(config.peft_type, "value", config.peft_type))
        if kind in _WHOLE_MODEL:
            raise ValueError(
                f"source must have adapters that can be switched layer by layer, got {name!r} of "
                f"kind {kind}"
            )
    _refuse_merged(model)


def check_as_it_is(model: nn.Module) -> None:
    """Refuses a model whose active adapter puts virtual tokens before the text.

    Raises:
        ValueError: It has such an adapter.
    """
    if is_peft_model(model) and cast(Any, model).active_peft_config.is_prompt_learning:
        raise ValueError(
            "policy must not have an active adapter of a prompt-learning method, got "
            f"{cast(Any, model).active_adapter!r}: its virtual tokens are not in the text"
        )


def _refuse_merged(model: nn.Module) -> None:
    for name, layer in tuner_layers(model):
        if getattr(layer, "merged", False):
            raise ValueError(
                f"source must not have adapters merged into its base weights, got {name} with "
                f"{getattr(layer, 'merged_adapters', [])}: call unmerge_adapter() first"
            )


@contextmanager
def adapters_as(model: nn.Module, adapter: str | None) -> Generator[None]:
    """Runs a block with all adapters off, or with one of them alone.

    The adapters that were active, and the trainability of every parameter, are as before
    afterwards, whatever happens in the block. PEFT changes both when adapters are switched.

    Args:
        model: A model with adapters.
        adapter: Name of the only active adapter; None switches all adapters off.

    Raises:
        ValueError: Adapters are merged into the base weights, which a switch would change.
    """
    _refuse_merged(model)
    layers = [layer for _, layer in tuner_layers(model)]
    before = [(layer, list(layer.active_adapters), layer.disable_adapters) for layer in layers]
    trainable = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        _switch(model, layers, adapter)
        yield
    finally:
        for layer, active, disabled in before:
            layer.set_adapter(active)
            layer.enable_adapters(not disabled)
        for parameter, needed in trainable:
            parameter.requires_grad_(needed)


def _switch(model: nn.Module, layers: Sequence[TunerLayer], adapter: str | None) -> None:
    if adapter is None:
        for layer in layers:
            layer.enable_adapters(False)
        return
    from peft import functional

    for layer in layers:
        layer.enable_adapters(True)
    functional.set_adapter(model, adapter, inference_mode=True)
