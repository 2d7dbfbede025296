"""The frozen model that a policy is measured against."""

import os
import weakref
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from kl_proteus import _checks
from kl_proteus.torch.adapters import (
    adapters_as,
    base_model,
    check_adapter,
    check_as_it_is,
    has_adapters,
)
from kl_proteus.torch.arguments import check_count, check_temperature
from kl_proteus.torch.averages import MovingAverage
from kl_proteus.torch.cache import LogprobCache
from kl_proteus.torch.fingerprint import Stamp, model_fingerprint
from kl_proteus.torch.freezing import evaluating
from kl_proteus.torch.results import Alignment, TokenKL, TokenLogprobs
from kl_proteus.torch.sources import copy_model, load_causal_lm, unwrap

__all__ = ["ReferenceModel"]


class ReferenceModel:
    """A frozen causal language model: the reference of a KL penalty.

    It runs in evaluation mode, without gradients, dropout or autocast, and nothing of it changes.
    Before each use it is looked at, and one that has changed since it was made is an error: a
    reference that silently trains along measures nothing.

    Where the weights come from:

    * `ReferenceModel("path/or/name")`: loaded with Transformers, without remote code. A directory
      with a PEFT adapter loads its base model and the adapter.
    * `ReferenceModel(model)`: a model of yours. It is not copied; every training flag is as it
      was after each use. A model that trains cannot serve: take a `snapshot` of it.
    * `ReferenceModel(model)` of a model with PEFT adapters: its base weights, with all adapters
      switched off. `adapter="ref"` switches to that adapter alone, for a policy that began from a
      trained adapter. The policy shares these weights, so the reference costs no memory;
      afterwards its adapters, and what is trainable, are as they were.
    * `ReferenceModel.snapshot(policy)`: a copy of the policy as it is now.
    * `ReferenceModel.ema(policy, rate)`: a copy that follows the policy.

    Where a model or an adapter is shared, do not run it from two threads at once: the state is that
    of the module, which the other thread would see.

    Args:
        source: See above. DistributedDataParallel and `torch.compile` are unwrapped.
        adapter: Name of the adapter that makes the reference; None switches adapters off, except
            those that a path came with.
        temperature: What logits are divided by, for the policy too; results remember it, and those
            of different temperatures are not compared.
        vocab_size: Uses the first ids only and renormalises; for a policy and a reference whose
            embeddings were padded differently.
        cache: A `LogprobCache`, or the directory of one, for log-probabilities of rows that were
            seen before; None keeps none.
        verify: Whether to look for changes before each use. Without it a model that changes is
            legal, and a cache takes it for another one.
        revision: With a path: branch, tag or commit.
        trust_remote_code: With a path: whether code that comes with the model may run.
        dtype: With a path: of the weights; None keeps that of the checkpoint.
        device: With a path: where the model goes; None leaves it on the CPU.
        device_map: With a path: how Accelerate spreads the model.
        attn_implementation: With a path: `"eager"`, `"sdpa"`, ...
        model_kwargs: With a path: further arguments of `from_pretrained`.

    Attributes:
        temperature: See above.
        vocab_size: See above; None uses all ids.
        cache: The `LogprobCache`, or None.
        version: Updates of a snapshot or average so far.

    Raises:
        OSError: There is no such model.
        TypeError: An argument has another type.
        ValueError: An argument is illegal, there is no such adapter, it adds virtual tokens, or
            adapters are merged into the base weights.
    """

    temperature: float
    vocab_size: int | None
    cache: LogprobCache | None
    version: int

    def __init__(
        self,
        source: str | os.PathLike[str] | nn.Module,
        *,
        adapter: str | None = None,
        temperature: float = 1.0,
        vocab_size: int | None = None,
        cache: LogprobCache | str | os.PathLike[str] | None = None,
        verify: bool = True,
        revision: str | None = None,
        trust_remote_code: bool = False,
        dtype: torch.dtype | str | None = None,
        device: torch.device | str | int | None = None,
        device_map: Any = None,
        attn_implementation: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        settings = _settings(temperature, vocab_size, cache)
        loading: dict[str, Any] = {
            "revision": revision,
            "dtype": dtype,
            "device": device,
            "device_map": device_map,
            "attn_implementation": attn_implementation,
            "model_kwargs": model_kwargs,
        }
        if isinstance(source, (str, os.PathLike)):
            model = load_causal_lm(source, trust_remote_code=trust_remote_code, **loading)
            switched = adapter is not None
            name = os.fspath(source)
        else:
            given = [key for key, value in loading.items() if value is not None]
            if given or trust_remote_code:
                raise ValueError(
                    f"{(given or ['trust_remote_code'])[0]} goes only with a path or a name, "
                    f"got a {type(source).__name__}"
                )
            model = unwrap(source)
            switched = adapter is not None or has_adapters(model)
            name = type(model).__name__
        if switched:
            check_adapter(model, adapter)
        self._set_up(model, name, settings, adapter=adapter, switched=switched, verify=verify)

    @classmethod
    def snapshot(
        cls,
        policy: nn.Module,
        *,
        temperature: float = 1.0,
        vocab_size: int | None = None,
        cache: LogprobCache | str | os.PathLike[str] | None = None,
    ) -> Self:
        """A copy of a policy as it is now, with the adapters that are active.

        `update` makes the copy anew, as in the hard update of Gorbatovski et al., "Learn Your
        Reference Model for Real Good Alignment", 2024.

        Args:
            policy: The model to copy; it is not kept alive.
            temperature: As for the class.
            vocab_size: As for the class.
            cache: As for the class.

        Raises:
            TypeError: The policy is no module, or an argument has another type.
            ValueError: An argument is illegal, or an active adapter adds virtual tokens.
        """
        return cls._follower(policy, 1.0, _settings(temperature, vocab_size, cache), "snapshot")

    @classmethod
    def ema(
        cls,
        policy: nn.Module,
        rate: float,
        *,
        temperature: float = 1.0,
        vocab_size: int | None = None,
        cache: LogprobCache | str | os.PathLike[str] | None = None,
    ) -> Self:
        """A copy of a policy that follows it as an exponential moving average.

        Each `update` sets every weight to

            reference = (1 - rate) * reference + rate * policy

        and copies buffers. This is the anchor of Ramé et al., "WARP: On the Benefits of Weight
        Averaged Rewarded Policies", 2024 (rate 0.01, every step), and the soft update of
        Gorbatovski et al., "Learn Your Reference Model for Real Good Alignment", 2024 (rate 0.6,
        every 512 steps or so); `rate` is their mu and alpha. Many libraries name the complement,
        a decay of 1 - rate. Weights in half precision are averaged in float32, which takes four
        more bytes for each. The factors of a LoRA adapter are averaged, not their product.

        Args:
            policy: The model to copy and to follow; it is not kept alive.
            rate: Share of the policy in each update, in (0, 1].
            temperature: As for the class.
            vocab_size: As for the class.
            cache: As for the class.

        Raises:
            TypeError: The policy is no module, or an argument has another type.
            ValueError: An argument is illegal, or an active adapter adds virtual tokens.
        """
        share = _checks.real_number("rate", rate, minimum=0.0, maximum=1.0, above_minimum=True)
        return cls._follower(policy, share, _settings(temperature, vocab_size, cache), "ema")

    @classmethod
    def _follower(cls, policy: nn.Module, rate: float, settings: dict[str, Any], kind: str) -> Self:
        policy = unwrap(policy)
        check_as_it_is(policy)
        model = copy_model(policy)
        self = cls.__new__(cls)
        self._set_up(model, f"{kind} of {type(base_model(policy)).__name__}", settings)
        self._average = MovingAverage(model, rate)
        self._policy = weakref.ref(policy)
        return self

    def _set_up(
        self,
        model: nn.Module,
        name: str,
        settings: dict[str, Any],
        *,
        adapter: str | None = None,
        switched: bool = False,
        verify: bool = True,
    ) -> None:
        self.temperature = settings["temperature"]
        self.vocab_size = settings["vocab_size"]
        self.cache = settings["cache"]
        self.version = 0
        self._name = name
        self._whole = model
        self._adapter = adapter
        self._switched = switched
        self._verify = verify
        self._average: MovingAverage | None = None
        self._policy: weakref.ref[nn.Module] | None = None
        self._depth = 0
        self._stamp: Stamp | None = None
        self._fingerprint: str | None = None
        with self.activate() as active:
            self._stamp = Stamp(active)

    def __repr__(self) -> str:
        facts = [repr(self._name)]
        if self._switched:
            facts.append(f"adapter={self._adapter!r}")
        if self._average is not None:
            facts.append(f"version={self.version}")
        return f"ReferenceModel({', '.join(facts)}, temperature={self.temperature:g})"

    @property
    def model(self) -> nn.Module:
        """The language model itself, without a wrapper of PEFT.

        Run it inside `activate`, or better use the methods of this class.
        """
        return base_model(self._whole)

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides the log-probabilities, 64 hexadecimal digits.

        It covers parameters, buffers, dtypes, the configuration, the attention implementation,
        quantisation and the adapters in use. It is computed when it is first asked for, at about
        1 GiB a second and thread, and again after an `update`.

        Raises:
            RuntimeError: The model has changed since it was made.
            ValueError: Weights are offloaded, or sharded over processes.
        """
        with self.activate() as model:
            if not self._verify and self._stamp is not None and self._stamp.difference(model):
                self._stamp = Stamp(model)
                self._fingerprint = None
            if self._fingerprint is None:
                self._fingerprint = model_fingerprint(model)
        return self._fingerprint

    @contextmanager
    def activate(self) -> Generator[nn.Module]:
        """Puts the model into the state of the reference, and back at the end of the block.

        Inside it is in evaluation mode, gradients and autocast are off, and its adapters are those
        of the reference. Blocks may be nested.

        Yields:
            The language model, without a wrapper of PEFT.

        Raises:
            RuntimeError: The model has changed since it was made.
        """
        model = self.model
        with ExitStack() as stack:
            if self._depth == 0 and self._switched:
                stack.enter_context(adapters_as(self._whole, self._adapter))
            stack.enter_context(evaluating(model))
            if self._depth == 0:
                self._check_unchanged(model)
            self._depth += 1
            try:
                yield model
            finally:
                self._depth -= 1

    def _check_unchanged(self, model: nn.Module) -> None:
        if self._stamp is None or not self._verify:
            return
        difference = self._stamp.difference(model)
        if difference is not None:
            raise RuntimeError(
                f"the reference model has changed since it was made: {difference}. A reference "
                "must stay as it is; take ReferenceModel.snapshot(model) of a model that trains"
            )

    def token_logprobs(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        *,
        temperature: float | None = None,
        columns: slice | None = None,
        score_mask: Tensor | None = None,
        alignment: Alignment = "token",
        tokenizer_hash: str | None = None,
        byte_budget: int | None = None,
    ) -> TokenLogprobs:
        """Log-probabilities of tokens under the reference; see `kl_proteus.torch.token_logprobs`.

        With a cache, rows that were scored before are read from it, and only the others run
        through the model. A row is recognised by its kept tokens and by which of them are scored;
        padding and the rest of the batch play no part. In bfloat16 and float16 they move results
        a little (up to 0.05 nats a token), so a row keeps the values of the batch it was first in.

        Args:
            tokens: Token ids of shape (batch, tokens).
            attention_mask: True or 1 for tokens that the model sees, the same shape; None is all.
            temperature: That of the policy's log-probabilities, to make sure that it is the same.
            columns: Slice of columns to score, such as those of the completion.
            score_mask: True or 1 for tokens to score, the same shape.
            alignment: Where values go: `"token"`, or `"next"` for the position before.
            tokenizer_hash: Where the tokens came from text: `tokenizer_hash(tokenizer)`, which
                becomes a part of what the cache recognises.
            byte_budget: Bytes of logits at once.

        Returns:
            float32, in nats, of shape (batch, tokens) or that of `columns`; 0.0 where its `mask`
            is False.

        Raises:
            RuntimeError: The model has changed since it was made.
            TypeError: An argument has another type.
            ValueError: The temperature is another one, or another argument is illegal.
        """
        from kl_proteus.torch.cached_rows import cached_token_logprobs
        from kl_proteus.torch.logprobs import token_logprobs

        self._check_temperature(temperature)
        if not isinstance(tokenizer_hash, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                "tokenizer_hash must be a str or None, as tokenizer_hash(tokenizer) gives it, got "
                f"{type(tokenizer_hash).__name__}"
            )
        what: dict[str, Any] = {
            "columns": columns,
            "score_mask": score_mask,
            "alignment": alignment,
            "byte_budget": byte_budget,
            "temperature": self.temperature,
            "vocab_size": self.vocab_size,
        }
        if self.cache is not None:
            identity = {
                "fingerprint": self.fingerprint,
                "version": self.version,
                "tokenizer": tokenizer_hash,
            }
            with self.activate():
                return cached_token_logprobs(
                    self, self.cache, identity, tokens, attention_mask, **what
                )
        with self.activate():
            return token_logprobs(self, tokens, attention_mask, **what)

    def full_kl(
        self,
        policy: Any,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        *,
        temperature: float | None = None,
        **options: Any,
    ) -> TokenKL:
        """Exact divergence from the reference at each prefix; see `kl_proteus.torch.full_kl`.

        Args:
            policy: The policy's model, which gets gradients; it may be the one that is shared.
            tokens: Token ids of shape (batch, tokens).
            attention_mask: True or 1 for tokens that the models see, the same shape; None is all.
            temperature: That of the policy, to make sure that it is the same.
            **options: Further arguments of `kl_proteus.torch.full_kl`.

        Returns:
            float32, in nats; 0.0 where its `mask` is False.

        Raises:
            RuntimeError: The model has changed since it was made.
            TypeError: An argument has another type.
            ValueError: The temperature is another one, or another argument is illegal.
        """
        from kl_proteus.torch.vocabulary_kl import full_kl

        self._check_temperature(temperature)
        return full_kl(
            policy,
            self,
            tokens,
            attention_mask,
            temperature=self.temperature,
            vocab_size=self.vocab_size,
            **options,
        )

    def update(self, policy: nn.Module | None = None) -> int:
        """Moves a snapshot or an average to the policy.

        Args:
            policy: The policy; None takes the one it was made of.

        Returns:
            The new `version`.

        Raises:
            RuntimeError: The policy it was made of is gone, or the model has changed otherwise.
            TypeError: This reference does not follow a policy.
            ValueError: The policy has other parameters, or one that is not finite. The reference
                is then as it was.
        """
        if self._average is None or self._policy is None:
            raise TypeError(
                "only a reference made by ReferenceModel.snapshot or ReferenceModel.ema can be "
                f"updated, got {self!r}"
            )
        source = self._policy() if policy is None else unwrap(policy)
        if source is None:
            raise RuntimeError("the policy that the reference was made of is gone: pass a policy")
        with self.activate() as model:
            self._average.step(source)
            self.version += 1
            self._fingerprint = None
            self._stamp = Stamp(model)
        return self.version

    def _check_temperature(self, temperature: float | None) -> None:
        if temperature is None:
            return
        given = check_temperature(temperature)
        if given != self.temperature:
            raise ValueError(
                f"temperature must be that of the reference, {self.temperature:g}, got {given:g}: "
                "log-probabilities at different temperatures are not comparable"
            )


def _settings(temperature: object, vocab_size: object, cache: object) -> dict[str, Any]:
    """The settings that every kind of reference has, checked."""
    size = None if vocab_size is None else check_count("vocab_size", vocab_size)
    if cache is not None and not isinstance(cache, LogprobCache):
        cache = LogprobCache(cast(str, cache))
    return {
        "temperature": check_temperature(temperature),
        "vocab_size": size,
        "cache": cache,
    }
