"""How far a policy is from a reference on rows of text."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kl_proteus import kl_from_logprobs
from kl_proteus.estimators import Estimator
from kl_proteus.torch.encoding import EncodedRow
from kl_proteus.torch.reference import ReferenceModel
from kl_proteus.torch.results import Direction

__all__ = ["RowScore", "Scorer"]


@dataclass(frozen=True, slots=True)
class RowScore:
    """The tokens of one row's completion under both models.

    Attributes:
        tokens: Scored tokens; all numbers are over these.
        excluded: Tokens of the completion that are left out, because a log-probability or the
            exact divergence is not finite.
        policy_logprob: Sum of log-probabilities, in nats.
        reference_logprob: The same under the reference.
        kl: The estimate, in nats per token; 0.0 without tokens.
        full_kl: The exact divergence, in nats per token; None unless asked for.
    """

    tokens: int
    excluded: int
    policy_logprob: float
    reference_logprob: float
    kl: float
    full_kl: float | None

    @property
    def kl_sum(self) -> float:
        """The estimate, in nats per row."""
        return self.kl * self.tokens

    @property
    def full_kl_sum(self) -> float | None:
        """The exact divergence, in nats per row."""
        return None if self.full_kl is None else self.full_kl * self.tokens


class Scorer:
    """Scores rows, a batch at a time.

    Args:
        policy: The policy, frozen.
        reference: The reference, of the same temperature; log-probabilities go through its cache.
        estimator: As for `kl_proteus.kl_from_logprobs`.
        direction: Of the exact divergence; None leaves it out.
        tokenizer_hash: Of the tokenizer that the rows were encoded with, for the cache.
        device: Where token ids are put.

    Raises:
        ValueError: The models have different temperatures.
    """

    def __init__(
        self,
        policy: ReferenceModel,
        reference: ReferenceModel,
        *,
        estimator: Estimator = "k1",
        direction: Direction | None = None,
        tokenizer_hash: str | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if policy.temperature != reference.temperature:
            raise ValueError(
                f"policy and reference must have the same temperature, got {policy.temperature:g} "
                f"and {reference.temperature:g}"
            )
        self._policy = policy
        self._reference = reference
        self._estimator: Estimator = estimator
        self._direction: Direction | None = direction
        self._tokenizer_hash = tokenizer_hash
        self._device = device

    def score(self, rows: Sequence[EncodedRow]) -> list[RowScore]:
        """Scores a batch.

        Args:
            rows: The rows.

        Returns:
            A score a row, in their order.

        Raises:
            RuntimeError: A model has changed since it was made.
            ValueError: An id is not in a vocabulary, or a row is longer than a model's context.
        """
        ids, mask, scored = self._padded(rows)
        reference = self._reference.token_logprobs(
            ids, mask, score_mask=scored, tokenizer_hash=self._tokenizer_hash
        )
        policy = self._policy.token_logprobs(ids, mask, score_mask=scored)
        if policy.vocab_size != reference.vocab_size:
            raise ValueError(
                f"policy and reference must share their ids, got {policy.vocab_size} and "
                f"{reference.vocab_size}; vocab_size cuts both to the first ones"
            )
        p, q = _array(policy.logprobs), _array(reference.logprobs)
        wanted = policy.mask.cpu().numpy()
        kept = wanted & np.isfinite(p) & np.isfinite(q)
        full = None
        if self._direction is not None:
            exact = self._reference.full_kl(
                self._policy, ids, mask, score_mask=scored, direction=self._direction
            )
            full = _array(exact.kl)
            kept &= np.isfinite(full)
        kl = kl_from_logprobs(p, q, kept, estimator=self._estimator, reduction="per_sequence")
        return [
            RowScore(
                tokens=int(kept[row].sum()),
                excluded=int((wanted[row] & ~kept[row]).sum()),
                policy_logprob=_sum(p[row], kept[row]),
                reference_logprob=_sum(q[row], kept[row]),
                kl=float(kl[row]),
                full_kl=None if full is None else _mean(full[row], kept[row]),
            )
            for row in range(len(rows))
        ]

    def _padded(
        self, rows: Sequence[EncodedRow]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        longest = max((len(row.ids) for row in rows), default=0)
        ids = torch.zeros((len(rows), longest), dtype=torch.long)
        mask, scored = torch.zeros_like(ids), torch.zeros_like(ids)
        for index, row in enumerate(rows):
            length = len(row.ids)
            ids[index, :length] = torch.tensor(row.ids, dtype=torch.long)
            mask[index, :length] = 1
            scored[index, :length] = torch.tensor(row.scored, dtype=torch.long)
        return ids.to(self._device), mask.to(self._device), scored.to(self._device)


def _array(values: torch.Tensor) -> NDArray[np.float64]:
    return values.detach().cpu().double().numpy()


def _sum(values: NDArray[np.float64], kept: NDArray[np.bool_]) -> float:
    return float(values[kept].sum())


def _mean(values: NDArray[np.float64], kept: NDArray[np.bool_]) -> float:
    return float(values[kept].mean()) if kept.any() else 0.0
