"""Which way a model's logits can be had without holding all of them."""

import inspect
import logging
import sys
import weakref
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

import torch
from torch import Tensor, nn

from kl_proteus.torch.arguments import check_ids
from kl_proteus.torch.probe import HeadProbe, find_logit_map
from kl_proteus.torch.repack import Request
from kl_proteus.torch.tiles import autocast_off

logger = logging.getLogger("kl_proteus.torch")

Path: TypeAlias = Literal["tiles", "replay", "plain", "whole", "as_is"]
"""How logits are made: by tiles of the head's weight; by the model's own head on chunks of rows; by
the whole model, one batch row at a time; by one call with the repacked batch, where all processes
must make the same calls; or by one call with the batch as it came, where nothing is known of it."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Learned tables of positions, which end; rotary positions do not.
_POSITION_TABLES = ("wpe", "embed_positions", "position_embeddings", "pos_encoding")


@runtime_checkable
class ModelState(Protocol):
    """A model in a mode and with adapters that it has for a while.

    Whatever takes a model takes this, and activates it around each use. Values of parameters must
    not depend on it.
    """

    def activate(self) -> AbstractContextManager[nn.Module]:
        """Puts the model into that state, and back at the end of the block."""
        ...


@dataclass(frozen=True, eq=False)
class CausalLM:
    """A causal language model and how its logits are made.

    Attributes:
        path: See `Path`.
        model: The model, without wrappers.
        vocab: The width of its logits; 0 where only a call can tell.
        id_limit: Ids from here on have no embedding; None where that is unknown.
        position_limit: Tokens that a row may have; None where there is no limit.
        backbone: What makes hidden states; None without one that can be used.
        head: For the path `"tiles"`.
        scale, softcap: For the path `"tiles"`.
    """

    path: Path
    model: Any = None
    vocab: int = 0
    id_limit: int | None = None
    position_limit: int | None = None
    backbone: nn.Module | None = None
    head: nn.Linear | None = None
    scale: float = 1.0
    softcap: float | None = None

    def device_for(self, ids: Tensor) -> torch.device:
        """Where the model takes ids."""
        if self.path in ("whole", "as_is"):
            parameter = next(_parameters(self.model), ids)
            return parameter.device if parameter.device.type != "meta" else ids.device
        device = self.model.get_input_embeddings().weight.device
        return ids.device if device.type == "meta" else device


def activated(model: object) -> AbstractContextManager[Any]:
    """A context in which the model is what it should be."""
    return model.activate() if isinstance(model, ModelState) else nullcontext(model)


def check_stated(name: str, model: object, temperature: float, vocab_size: int | None) -> None:
    """Refuses to ask a model in another way than it says it is to be asked, as a reference does."""
    if not isinstance(model, ModelState):
        return
    for fact, given in (("temperature", temperature), ("vocab_size", vocab_size)):
        stated = getattr(model, fact, None)
        if stated is not None and stated != given:
            raise ValueError(
                f"{fact} must be that of {name}, {stated!r}, got {given!r}: log-probabilities that "
                "were made in different ways are not comparable"
            )


# Without the model itself, which an entry would keep alive.
_known: "weakref.WeakKeyDictionary[nn.Module, tuple[object, CausalLM]]" = (
    weakref.WeakKeyDictionary()
)


def causal_lm(model: object) -> CausalLM:
    """Looks at a model once, and again when its head has changed.

    Args:
        model: A Hugging Face causal language model, also within PEFT, `torch.compile` or a
            wrapper of distributed training; or anything that maps `input_ids` and
            `attention_mask` to an object with `logits`.

    Raises:
        TypeError: It cannot be called.
        ValueError: It is an encoder-decoder, or a prompt-learning adapter is active.
    """
    if not callable(model):
        raise TypeError(f"model must be a causal language model, got {type(model).__name__}")
    inner = _unwrapped(model)
    if not _is_pretrained(inner):
        wrapped = getattr(inner, "module", None)
        if _is_pretrained(wrapped):
            return replace(_called_whole(wrapped), model=inner)
        return CausalLM("as_is" if _takes_a_mask(inner) else "whole", inner)
    signature = _signature(inner)
    known = _known.get(inner)
    if known is None or known[0] != signature:
        known = (signature, _inspected(inner))
        _known[inner] = known
    return replace(known[1], model=inner)


def check_request(lm: CausalLM, request: Request) -> None:
    """Refuses what fails deep inside a model, or kills an accelerator's process."""
    limit = lm.id_limit if lm.id_limit is not None else torch.iinfo(torch.int64).max
    check_ids(request.tokens, request.kept, limit, "the ids that the model has embeddings of")
    if lm.position_limit is not None and request.tokens.shape[1] > lm.position_limit:
        longest = int(request.kept.sum(1).max()) if request.kept.numel() else 0
        if longest > lm.position_limit:
            raise ValueError(
                f"tokens must have at most {lm.position_limit} kept tokens in a row, the size of "
                f"the model's table of positions; got {longest}"
            )


def _unwrapped(model: Any) -> Any:
    """The model within wrappers that change nothing about its logits."""
    compiled = getattr(model, "_orig_mod", None)
    if compiled is not None:
        model = compiled
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        trained = torch.is_grad_enabled() and any(p.requires_grad for p in model.parameters())
        # With gradients on it has to be called itself, or it does not synchronise them.
        model = cast(Any, model if trained else model.module)
    peft = sys.modules.get("peft")
    if peft is not None and isinstance(model, peft.PeftModel):
        active = model.peft_config[model.active_adapter]
        if active.is_prompt_learning and not getattr(model, "_adapters_disabled", False):
            raise ValueError(
                "model has an active prompt-learning adapter, whose virtual tokens shift its "
                "logits; disable the adapter"
            )
        return model.get_base_model()
    return model


def _is_pretrained(model: object) -> bool:
    # Whoever has such a model has imported the module.
    module = sys.modules.get("transformers.modeling_utils")
    return module is not None and isinstance(model, module.PreTrainedModel)


def _parameters(model: object) -> Iterator[Tensor]:
    return iter(model.parameters()) if isinstance(model, nn.Module) else iter(())


def _takes_a_mask(model: Any) -> bool:
    """Whether a model that nothing is known of can be told about padding."""
    forward = model.forward if isinstance(model, nn.Module) else model
    try:
        parameters = inspect.signature(forward).parameters
    except (TypeError, ValueError):
        return True
    kinds = [parameter.kind for parameter in parameters.values()]
    return "attention_mask" in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _called_whole(model: Any) -> CausalLM:
    """A model that has to be called as a whole, in the same way by every process."""
    logger.debug("%s: the whole model makes the logits", type(model).__name__)
    limit = getattr(model.get_input_embeddings(), "num_embeddings", None)
    return CausalLM("whole", id_limit=limit, position_limit=_position_limit(model))


def _signature(model: Any) -> object:
    """What decides the path, cheap enough to look at before every use."""
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    facts: list[object] = [id(head), type(head), _is_plain(head), HeadProbe.declared(model.config)]
    for module in (model, head):
        # Patches and hooks, by their identity: the entry must not keep the model alive.
        state = cast("dict[str, Any]", getattr(module, "__dict__", {}))
        facts += [id(state.get("forward")), *(tuple(state.get(hooks, ())) for hooks in _HOOKS)]
    if isinstance(weight, Tensor):
        facts += [type(weight), id(weight), weight.shape, weight.dtype, weight.device]
    return facts


def _is_plain(head: object) -> bool:
    """Whether a head is a product with its weight and nothing else."""
    if type(head) is not nn.Linear:
        return False
    weight = head.weight
    return (
        type(weight) in (nn.Parameter, Tensor)
        and weight.ndim == 2
        and weight.is_floating_point()
        and weight.device.type != "meta"
        and not any(getattr(head, hooks) for hooks in _HOOKS)
    )


def _inspected(model: Any) -> CausalLM:
    """Chooses the path by comparing it with the model's own logits."""
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"model must be a decoder that predicts the next token, got {name}")
    if _is_sharded(model):
        return _called_whole(model)
    id_limit = getattr(model.get_input_embeddings(), "num_embeddings", None)
    limit = _position_limit(model)
    with _quiet(model):
        ids = torch.arange(8).mul_(max(1, (id_limit or 8) // 8)).clamp_(max=(id_limit or 8) - 1)
        ids = ids[None, :limit].to(CausalLM("plain", model).device_for(ids))
        try:
            logits = cast(Tensor, model(input_ids=ids, use_cache=False).logits)[0]
        except Exception as error:
            raise ValueError(f"model must give logits for input_ids; {name} failed") from error
        plain = CausalLM("plain", None, logits.shape[-1], id_limit, limit)
        backbone = _backbone(model)
        if backbone is None:
            logger.debug("%s has no backbone of its own; plain logits by batch rows", name)
            return plain
        probe = HeadProbe.taken(model, backbone, ids, logits)
        if probe is None:
            logger.debug("%s: its head cannot be replayed; plain logits by batch rows", name)
            return plain
        head = model.get_output_embeddings()
        found = None
        if _is_plain(head) and head.weight.shape[0] == plain.vocab:
            found = find_logit_map(probe, head, model.config)
    if found is None:
        logger.debug("%s: its own head makes the logits, by chunks of rows", name)
        return replace(plain, path="replay", backbone=backbone)
    scale, softcap = found
    logger.debug("%s: tiles of its head, scale %g, softcap %s", name, scale, softcap)
    return replace(plain, path="tiles", backbone=backbone, head=head, scale=scale, softcap=softcap)


def _backbone(model: Any) -> nn.Module | None:
    """What makes hidden states, if it is a part of the model."""
    try:
        backbone: object = model.get_decoder()
    except Exception:
        return None
    return backbone if isinstance(backbone, nn.Module) and backbone is not model else None


def _position_limit(model: Any) -> int | None:
    """How many tokens a table of positions has room for."""
    for name, _ in model.named_modules():
        if name.rpartition(".")[2] in _POSITION_TABLES:
            break
    else:
        if not hasattr(getattr(model, "transformer", None), "pos_encoding"):
            return None
    limit = getattr(model.config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def _is_sharded(model: nn.Module) -> bool:
    """Whether parameters are spread over processes (FSDP, tensor parallel, ZeRO-3)."""
    return any(
        hasattr(parameter, "ds_id") or type(parameter).__name__ == "DTensor"
        for parameter in model.parameters()
    )


@contextmanager
def _quiet(model: nn.Module) -> Generator[None]:
    """No gradient, no dropout, no autocast; every module's mode as it was, at the end."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad(), autocast_off(next(model.parameters()).device):
            yield
    finally:
        for module in training:
            module.training = True
