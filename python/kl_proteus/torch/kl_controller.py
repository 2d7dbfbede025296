"""The drop-in controller with a reference model."""

import logging
import os
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor

from kl_proteus.kl_controller.base import KLControllerBase
from kl_proteus.kl_controller.config import KLConfig
from kl_proteus.kl_controller.factory import create_kl_controller
from kl_proteus.kl_controller.stats import KLStats
from kl_proteus.torch.arguments import check_mask, check_tokens, first_place, kind
from kl_proteus.torch.estimators import kl_from_logprobs
from kl_proteus.torch.measurements import Spread
from kl_proteus.torch.ranks import on_all_ranks
from kl_proteus.torch.reference import ReferenceModel
from kl_proteus.torch.reference_values import ReferenceValues, reference_values
from kl_proteus.torch.results import TokenLogprobs
from kl_proteus.torch.tiles import accumulator

__all__ = ["KLController", "create_kl_controller"]

logger = logging.getLogger("kl_proteus.kl_controller")

Alignment: TypeAlias = Literal["next", "token"]


class KLController(KLControllerBase):
    """The drop-in controller with a frozen reference model that it runs itself.

    It takes the policy's log-probabilities as tensors, runs the reference on the tokens, and turns
    the divergence of each row into a penalty to subtract from a reward. Everything of
    `KLControllerBase` is here too.

    A row's divergence is the mean over its predicted tokens (or their sum, with
    ``reduction="sequence_sum"``), and unlike that of the methods on lists it is not clamped at 0.
    Each call gives the rule one value, the mean over the rows. A row of a single token has nothing
    to predict, and counts as 0.0; one without any token is no measurement and costs nothing.

    Where torch.distributed runs, the measurement is that of the rows of all processes, and every
    process holds the same coefficient to the last bit. All of them must make the same calls, with
    batches of whatever size.

    Attributes:
        config: The settings; see `KLControllerBase`.
        tokenizer: That of the model; None where it has none, and before the model is loaded.

    Args:
        config: The settings, or the name or path of the reference model alone.
        load_model: False to load it later, or to set `ref_model`.
        process_group: The processes that measure together; None for all.
        all_ranks: False for a controller that stays with this process.

    Raises:
        ImportError: Transformers is not installed.
        OSError: There is no such model.
        TypeError: An argument is of another type.
        ValueError: An argument is out of its range, or the model wants to run code of its own.
    """

    tokenizer: Any

    def __init__(
        self,
        config: KLConfig | str | os.PathLike[str],
        load_model: bool = True,
        *,
        process_group: Any = None,
        all_ranks: bool = True,
    ) -> None:
        if isinstance(config, str | os.PathLike):
            config = KLConfig(os.fspath(config))
        super().__init__(config)
        for name, flag in (("load_model", load_model), ("all_ranks", all_ranks)):
            if not isinstance(flag, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"{name} must be True or False, got {flag!r}")
        self._process_group = process_group
        self._all_ranks = all_ranks
        self._model: Any = None
        self._reference: ReferenceModel | None = None
        self.tokenizer = None
        if load_model:
            self.load_reference_model()

    @property
    def ref_model(self) -> Any:
        """The reference model; None before it is loaded.

        It can be set to a Hugging Face causal language model, a `ReferenceModel`, or anything that
        maps `input_ids` and `attention_mask` to an object with `logits` of shape (batch, tokens,
        vocabulary). A model is not changed, copied or moved.
        """
        return self._model

    @ref_model.setter
    def ref_model(self, model: Any) -> None:
        if model is not None and not (isinstance(model, ReferenceModel) or callable(model)):
            raise TypeError(f"ref_model must be a model or None, got {model!r}")
        self._model = model
        self._reference = model if isinstance(model, ReferenceModel) else None

    def load_reference_model(self) -> None:
        """Loads the model and the tokenizer that the config names.

        `device="auto"` takes an accelerator where there is one. Weights are bfloat16 there with
        `use_bf16`, else float32: on a CPU bfloat16 would cost precision and bring no speed.

        Raises:
            ImportError: Transformers is not installed.
            OSError: There is no such model.
            ValueError: The model wants to run code of its own, and `trust_remote_code` is False.
        """
        config = self.config
        device = torch.device(_any_device() if config.device == "auto" else config.device)
        half = config.use_bf16 and device.type != "cpu"
        reference = ReferenceModel(
            config.reference_model_name,
            temperature=config.temperature,
            trust_remote_code=config.trust_remote_code,
            dtype=torch.bfloat16 if half else torch.float32,
            device=device,
        )
        self.tokenizer = _tokenizer(config)
        self._model = reference.model
        self._reference = reference

    def compute_reference_logprobs(
        self, tokens: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Log-probability of each token given those before it under the reference, in nats.

        Args:
            tokens: Token ids of shape (batch, tokens).
            attention_mask: True or 1 where there is a token, the same shape; None is everywhere.

        Returns:
            float32 of shape (batch, tokens): position t is that of token t. Padding and the first
            token of a row, which has no context, are 0.0.

        Raises:
            RuntimeError: There is no reference model, or it has changed since it was set.
            TypeError: An argument is of another type.
            ValueError: Shapes differ, or an id is outside the vocabulary.
        """
        tokens, mask = _checked_tokens(tokens, attention_mask)
        found = self._reference_values(tokens, mask)
        counted = mask & (mask.cumsum(1) > 1)
        return torch.where(counted, found.values, 0.0).float()

    def compute_kl(
        self,
        policy_logprobs: Tensor,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        *,
        alignment: Alignment = "next",
    ) -> Tensor:
        """Estimates each row's divergence of the policy from the reference.

        Args:
            policy_logprobs: Log-probabilities of the tokens under the policy, of any float dtype.
                With `alignment="next"` position t holds that of token t + 1, of shape (batch,
                tokens) with a last column that is not used, or (batch, tokens - 1); with `"token"`
                position t holds that of token t, of shape (batch, tokens) with a first column that
                is not used. `TokenLogprobs` know theirs, and must agree.
            tokens: Token ids of shape (batch, tokens).
            attention_mask: True or 1 where there is a token, the same shape; None is everywhere. A
                token counts where it is kept, has a place before it, and the reference has a value
                for it: Hugging Face models have none for a row's first kept token.
            alignment: See above.

        Returns:
            Nats per token, or per sequence with `reduction="sequence_sum"`, of shape (batch,):
            float64 where the policy's are, else float32. Negative where a k1 estimate is; 0.0 for a
            row without predicted tokens. It has a gradient where `policy_logprobs` has one, but
            `kl_loss` is the function to differentiate.

        Raises:
            RuntimeError: There is no reference model, or it has changed since it was set.
            TypeError: An argument is of another type.
            ValueError: Shapes differ, an id is outside the vocabulary, the log-probabilities were
                made in another way, or one that counts is not finite.
        """
        kl, _ = self._rows(policy_logprobs, tokens, attention_mask, alignment)
        return kl.to(_result_type(policy_logprobs))

    def get_penalty(
        self,
        policy_logprobs: Tensor,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        *,
        alignment: Alignment = "next",
    ) -> tuple[Tensor, float]:
        """Measures a batch, adapts, and returns what each row costs.

        Args:
            policy_logprobs: As for `compute_kl`.
            tokens: As for `compute_kl`.
            attention_mask: As for `compute_kl`.
            alignment: As for `compute_kl`.

        Returns:
            The penalty of each row (the coefficient *after* the adaptation times its divergence),
            to subtract from its reward, and the mean divergence of the measured rows of all
            processes; 0.0 without any.

        Raises:
            RuntimeError: As for `compute_kl`.
            TypeError: As for `compute_kl`.
            ValueError: As for `compute_kl`, on any process, or the penalty is too large for a
                float. Nothing is changed then.
        """
        penalty, spread = self._penalty(policy_logprobs, tokens, attention_mask, alignment)
        return penalty, spread.mean

    def get_batch_penalty(
        self,
        policy_logprobs: Tensor,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        *,
        alignment: Alignment = "next",
    ) -> tuple[Tensor, KLStats]:
        """As `get_penalty`, with the statistics of the batch in place of its mean.

        Args:
            policy_logprobs: As for `compute_kl`.
            tokens: As for `compute_kl`.
            attention_mask: As for `compute_kl`.
            alignment: As for `compute_kl`.

        Returns:
            The penalty of each row, and statistics of the measured rows of all processes.

        Raises:
            RuntimeError: As for `get_penalty`.
            TypeError: As for `get_penalty`.
            ValueError: As for `get_penalty`.
        """
        penalty, spread = self._penalty(policy_logprobs, tokens, attention_mask, alignment)
        stats = self._compute_stats([])
        stats.mean_kl, stats.std_kl = spread.mean, spread.std
        stats.max_kl, stats.min_kl = spread.largest, spread.smallest
        return penalty, stats

    def _penalty(
        self, policy_logprobs: Tensor, tokens: Tensor, mask: Tensor | None, alignment: Alignment
    ) -> tuple[Tensor, Spread]:
        def measure() -> tuple[Tensor, Spread]:
            kl, measured = self._rows(policy_logprobs, tokens, mask, alignment)
            values = cast("list[float]", kl.detach()[measured].tolist())
            return kl, Spread.of(values)

        kl, spreads = on_all_ranks(measure, self._process_group, self._all_ranks)
        spread = Spread.together(spreads)
        if spread.count:
            largest = max(abs(spread.largest), abs(spread.smallest))
            limit = torch.finfo(_result_type(policy_logprobs)).max
            self._adapt_to([spread.mean], spread.count, largest, limit)
        return (self.kl_coeff * kl).to(_result_type(policy_logprobs)), spread

    def _observe(
        self, measure: Callable[[], list[float | None]]
    ) -> tuple[list[float | None], list[float]]:
        """Lets the values of all processes join the history, in the order of their ranks."""

        def shared() -> tuple[list[float | None], list[float]]:
            measured = measure()
            return measured, [kl for kl in measured if kl is not None]

        measured, parts = on_all_ranks(shared, self._process_group, self._all_ranks)
        values = [kl for part in parts for kl in part]
        self._adapt_to_each(values)
        return measured, values

    def _rows(
        self, policy: Any, tokens: Any, attention_mask: Any, alignment: object
    ) -> tuple[Tensor, Tensor]:
        """Each row's divergence, and which rows are measured."""
        tokens, mask = _checked_tokens(tokens, attention_mask)
        logprobs, given = _predicted(policy, tokens, alignment, self.config.temperature)
        found = self._reference_values(tokens, mask)
        ours = policy.vocab_size if isinstance(policy, TokenLogprobs) else 0
        if ours and found.vocab_size and ours != found.vocab_size:
            raise ValueError(
                "policy_logprobs must be over the ids of the reference, "
                f"{found.vocab_size}, got {ours}: vocab_size cuts both to the first ones"
            )
        device = logprobs.device
        reference = found.values[:, 1:].to(device)
        candidates = mask[:, 1:].to(device)
        counted = candidates & found.known[:, 1:].to(device) & given
        config = self.config
        in_sums = config.reduction == "sequence_sum"
        kl = kl_from_logprobs(
            logprobs,
            reference,
            counted,
            estimator=config.estimator,
            reduction="none" if in_sums else "per_sequence",
            on_nonfinite=config.on_nonfinite,
        )
        if in_sums:
            kl = kl.sum(1)
        type_ = _result_type(policy)
        wrong = ~kl.detach().to(type_).isfinite()
        if wrong.any():
            raise ValueError(
                f"the divergence of row {first_place(wrong)[0]} is too large for {type_}"
            )
        finite = (logprobs.detach() - reference).isfinite()
        nothing_to_predict = mask.to(device).any(1) & ~candidates.any(1)
        return kl, (counted & finite).any(1) | nothing_to_predict

    def _reference_values(self, tokens: Tensor, mask: Tensor) -> ReferenceValues:
        if self._model is None:
            raise RuntimeError(
                "there is no reference model: call load_reference_model(), or set ref_model"
            )
        if self._reference is not None and self._reference is not self._model:
            # A field of the config acts from the next call on.
            self._reference.temperature = self.config.temperature
        found, self._reference = reference_values(
            self._model, self._reference, tokens, mask, self.config.temperature
        )
        return found


def _any_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _tokenizer(config: KLConfig) -> Any:
    from transformers import AutoTokenizer

    load = cast("Any", AutoTokenizer).from_pretrained
    try:
        return load(config.reference_model_name, trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as error:
        logger.warning("%s has no tokenizer: %s", config.reference_model_name, error)
        return None


def _checked_tokens(tokens: Any, attention_mask: Any) -> tuple[Tensor, Tensor]:
    tokens = check_tokens(tokens)
    return tokens, check_mask("attention_mask", attention_mask, tokens)


def _predicted(
    policy: object, tokens: Tensor, alignment: object, temperature: float
) -> tuple[Tensor, Tensor]:
    """The policy's values of tokens 1, 2, ..., in the widest float, and where it has one."""
    if alignment not in ("next", "token"):
        raise ValueError(f"alignment must be 'next' or 'token', got {alignment!r}")
    if not isinstance(policy, Tensor) or not policy.is_floating_point():
        raise TypeError(f"policy_logprobs must be a tensor of floats, got {kind(policy)}")
    batch, length = tokens.shape
    short = (batch, max(0, length - 1))
    given = torch.ones((), dtype=torch.bool, device=policy.device)
    if isinstance(policy, TokenLogprobs):
        if policy.alignment != alignment:
            raise ValueError(
                f"policy_logprobs have alignment={policy.alignment!r}, got {alignment!r}"
            )
        if policy.temperature != temperature:
            raise ValueError(
                "policy_logprobs must have the temperature of the reference, "
                f"{temperature:g}, got {policy.temperature:g}"
            )
        given = policy.mask
        policy = policy.logprobs
    if policy.shape == tokens.shape:
        cut = slice(None, -1) if alignment == "next" else slice(1, None)
        policy = policy[:, cut]
        given = given[:, cut] if given.ndim else given
    elif not (alignment == "next" and policy.shape == short):
        also = f" or {short}" if alignment == "next" else ""
        raise ValueError(
            f"policy_logprobs must have the shape of tokens, {(batch, length)}{also}, got "
            f"{tuple(policy.shape)}"
        )
    return policy.to(accumulator(policy.device)), given


def _result_type(policy: Tensor) -> torch.dtype:
    return torch.float64 if policy.dtype == torch.float64 else torch.float32
