"""The models and the tokenizer of a scoring run."""

import contextlib
import hashlib
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import torch

from kl_proteus.cli.failures import CommandError, describe
from kl_proteus.cli.score_options import ScoreOptions
from kl_proteus.cli.score_output import row_digest
from kl_proteus.torch.cache import LogprobCache
from kl_proteus.torch.encoding import PLAIN_TEMPLATE, EncodedRow, RowEncoder
from kl_proteus.torch.reference import ReferenceModel
from kl_proteus.torch.scoring import Scorer
from kl_proteus.torch.tokenizer_identity import tokenizer_difference, tokenizer_hash

__all__ = ["Models", "load"]


class Models:
    """Two models, their tokenizer, and what decides their scores.

    Args:
        options: The command line.
        encoder: Makes tokens of rows.
        scorer: Makes scores of tokens.
        settings: What a file of scores must agree on.
        max_length: Most tokens of a row; None sets no limit.
        cache: Of the reference, or None.
    """

    def __init__(
        self,
        options: ScoreOptions,
        encoder: RowEncoder,
        scorer: Scorer,
        settings: dict[str, Any],
        max_length: int | None,
        cache: LogprobCache | None,
    ) -> None:
        self._options = options
        self._encoder = encoder
        self._scorer = scorer
        self.settings = settings
        self.max_length = max_length
        self.cache = cache

    def score(self, rows: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
        """Scores a batch.

        Args:
            rows: Number and content of each row.

        Returns:
            A row for the file of scores each.

        Raises:
            CommandError: A row cannot be made into tokens.
        """
        encoded: list[EncodedRow] = []
        for number, row in rows:
            try:
                encoded.append(self._encoder.encode(row))
            except (TypeError, ValueError) as error:
                raise CommandError(
                    f"row {number + 1} of {self._options.data}: {describe(error)}"
                ) from error
        found: list[dict[str, Any]] = []
        scores = self._scorer.score(encoded)
        for (number, row), tokens, score in zip(rows, encoded, scores, strict=True):
            entry: dict[str, Any] = {
                "row": number,
                "digest": row_digest(row),
                "tokens": score.tokens,
                "cut": tokens.cut,
                "excluded": score.excluded,
                "policy_logprob": score.policy_logprob,
                "reference_logprob": score.reference_logprob,
                "kl": score.kl,
                "kl_sum": score.kl_sum,
            }
            if score.full_kl is not None:
                entry |= {"full_kl": score.full_kl, "full_kl_sum": score.full_kl_sum}
            found.append(entry)
        return found


def load(options: ScoreOptions) -> Models:
    """Loads what a run needs.

    Args:
        options: The command line.

    Raises:
        CommandError: A model, tokenizer or template cannot be loaded, tokenizers differ, or an
            option does not fit.
    """
    template = _chat_template(options)
    tokenizer = _tokenizer(options, compared=template is None)
    cache = None
    if options.cache is not None:
        with _telling("cannot use the cache"):
            cache = LogprobCache(options.cache)
    policy = _model(options, options.policy, "policy")
    reference = _model(options, options.reference, "reference", cache)
    max_length = options.max_length or _context(policy, reference)
    with _telling("cannot use the tokenizer"):
        encoder = RowEncoder(
            tokenizer,
            chat_template=template,
            turns=cast(Any, options.turns),
            completion_field=options.completion_field,
            max_length=max_length,
            overlong=cast(Any, options.overlong),
        )
        text = tokenizer_hash(tokenizer)
    scorer = Scorer(
        policy,
        reference,
        estimator=cast(Any, options.estimator),
        direction=cast(Any, options.direction) if options.full_kl else None,
        tokenizer_hash=text,
        device=_device(options),
    )
    with _telling("cannot tell the models from others"):
        settings = {
            "policy": policy.fingerprint,
            "reference": reference.fingerprint,
            "tokenizer": text,
            "chat_template": None if template is None else _short_hash(template),
            "estimator": options.estimator,
            "full_kl": options.full_kl,
            "direction": options.direction if options.full_kl else None,
            "temperature": options.temperature,
            "vocab_size": options.vocab_size,
            "turns": options.turns,
            "completion_field": options.completion_field,
            "max_length": max_length,
            "overlong": options.overlong,
        }
    return Models(options, encoder, scorer, settings, max_length, cache)


def _chat_template(options: ScoreOptions) -> str | None:
    if options.chat_template in (None, "plain"):
        return None if options.chat_template is None else PLAIN_TEMPLATE
    with _telling("cannot read the chat template"):
        return Path(options.chat_template).read_text(encoding="utf-8")


def _tokenizer(options: ScoreOptions, *, compared: bool) -> Any:
    """The tokenizer of both models.

    Args:
        options: The command line.
        compared: Whether chat templates take part in the comparison.
    """
    if options.tokenizer is not None:
        return _load_tokenizer(options, options.tokenizer)
    ours = _load_tokenizer(options, options.policy)
    theirs = _load_tokenizer(options, options.reference)
    difference = tokenizer_difference(ours, theirs, chat_template=compared)
    if difference is not None:
        raise CommandError(
            f"policy and reference have tokenizers with another {difference}, so their tokens "
            "cannot be compared; if they mean the same, choose one with --tokenizer"
        )
    return ours


def _load_tokenizer(options: ScoreOptions, name: str) -> Any:
    from transformers import AutoTokenizer

    with _telling(f"cannot load the tokenizer of {name}"):
        return cast(Any, AutoTokenizer).from_pretrained(
            name, trust_remote_code=options.trust_remote_code
        )


def _model(
    options: ScoreOptions, name: str, what: str, cache: LogprobCache | None = None
) -> ReferenceModel:
    with _telling(f"cannot load the {what} {name}"):
        return ReferenceModel(
            name,
            temperature=options.temperature,
            vocab_size=options.vocab_size,
            cache=cache,
            trust_remote_code=options.trust_remote_code,
            dtype=options.dtype,
            device=_device(options),
            attn_implementation=options.attn_implementation,
        )


def _device(options: ScoreOptions) -> torch.device:
    if options.device != "auto":
        try:
            return torch.device(options.device)
        except RuntimeError as error:
            raise CommandError(f"--device must name a device, got {options.device!r}") from error
    found = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if found is None else found


def _context(*models: ReferenceModel) -> int | None:
    """The smallest number of positions that a model was made for."""
    sizes: list[int] = []
    for model in models:
        config = cast(Any, model.model).config
        size = getattr(config.get_text_config(), "max_position_embeddings", None)
        if isinstance(size, int) and size > 1:
            sizes.append(size)
    return min(sizes, default=None)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def _telling(what: str) -> Generator[None]:
    """Tells any error in one line; loading runs code of many packages."""
    try:
        yield
    except CommandError:
        raise
    except Exception as error:
        raise CommandError(f"{what}: {describe(error)}") from error
