"""What an estimate from log-probabilities costs per token, next to what one would write instead.

A batch of 64 sequences of up to 1024 tokens, as lists and as arrays; every variant gives the mean
of each sequence. The answers are compared first, and the variants are timed in interleaved rounds.
Ratios are medians over rounds of peer / kl_proteus: above 1, kl_proteus is faster. The rows of
numba are left out where it is not installed.
"""

import argparse
import importlib.util
import math
import statistics
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import harness
import numpy as np

from kl_proteus import kl_from_logprobs

SEQUENCES, TOKENS = 64, 1024
OURS = "kl_proteus"
NAIVE = "naive Python loop"
SUMS = "sum(p) - sum(r)"
NUMPY = "NumPy"
CONVERTED = "NumPy, lists converted"
NUMBA = "numba"
# Time that one variant takes in one round, so that the clock and the call do not matter.
ROUND_NS = 5_000_000

Run = Callable[[], Any]


class Batch:
    """Log-probabilities such as a policy and its reference have, and the mask of their padding."""

    def __init__(self, sequences: int, tokens: int) -> None:
        generator = np.random.default_rng(0)
        shape = (sequences, tokens)
        self.policy = -np.abs(generator.normal(1.5, 1.0, shape))
        self.reference = self.policy - generator.normal(0.05, 0.3, shape)
        lengths = generator.integers(tokens // 2, tokens + 1, sequences)
        self.mask = np.arange(tokens) < lengths[:, None]
        self.lists = (self.policy.tolist(), self.reference.tolist(), self.mask.tolist())

    def arrays(self, dtype: str) -> tuple[Any, Any]:
        """Policy and reference of a dtype."""
        return self.policy.astype(dtype), self.reference.astype(dtype)


def naive_k1(policy: Any, reference: Any) -> list[float]:
    """A generator expression, as trainers have it."""
    return [
        sum(p - r for p, r in zip(*rows, strict=True)) / len(rows[0])
        for rows in zip(policy, reference, strict=True)
    ]


def naive_masked(policy: Any, reference: Any, mask: Any, k3: bool) -> list[float]:
    """A loop with an `if`."""
    exp = math.exp
    means: list[float] = []
    for rows in zip(policy, reference, mask, strict=True):
        total, count = 0.0, 0
        if k3:
            for p, r, keep in zip(*rows, strict=True):
                if keep:
                    difference = r - p
                    total += exp(difference) - difference - 1.0
                    count += 1
        else:
            for p, r, keep in zip(*rows, strict=True):
                if keep:
                    total += p - r
                    count += 1
        means.append(total / count)
    return means


def sums(policy: Any, reference: Any) -> list[float]:
    """The best of plain Python without a mask: two loops in C."""
    return [(sum(p) - sum(r)) / len(p) for p, r in zip(policy, reference, strict=True)]


def numpy_masked(policy: Any, reference: Any, weights: Any, k3: bool) -> Any:
    """Whole arrays at a time, with the mask as weights of the same dtype."""
    if k3:
        difference = reference - policy
        values = np.exp(difference) - difference - 1
    else:
        values = policy - reference
    return np.einsum("st,st->s", values, weights) / weights.sum(1)


def numba_means() -> Callable[..., Any] | None:
    """The same loop, compiled; None where numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    import numba

    @numba.njit(fastmath=True)
    def means(policy: Any, reference: Any, weights: Any, k3: bool, out: Any) -> Any:
        one = policy.dtype.type(1)
        for s in range(policy.shape[0]):
            total = count = policy.dtype.type(0)
            for t in range(policy.shape[1]):
                difference = reference[s, t] - policy[s, t]
                if k3:
                    total += weights[s, t] * (np.exp(difference) - difference - one)
                else:
                    total -= weights[s, t] * difference
                count += weights[s, t]
            out[s] = total / count
        return out

    return means


def ours(*columns: Any, estimator: str) -> Run:
    """The library."""
    return lambda: kl_from_logprobs(*columns, estimator=estimator, reduction="per_sequence")


def per_call(run: Run) -> Callable[[int], float]:
    """Times a variant, many calls at once where it is short; nanoseconds per call."""
    run()
    start = perf_counter_ns()
    run()
    calls = max(1, ROUND_NS // max(1, perf_counter_ns() - start))

    def timed(_: int) -> float:
        start = perf_counter_ns()
        for _ in range(calls):
            run()
        return (perf_counter_ns() - start) / calls

    return timed


def compare(title: str, variants: dict[str, Run], tokens: int, rounds: int, rtol: float) -> None:
    """Checks the answers, times the variants and prints their table."""
    expected = variants[OURS]()
    for name, run in variants.items():
        np.testing.assert_allclose(run(), expected, rtol=rtol, atol=rtol, err_msg=name)
    samples = harness.interleave({name: per_call(run) for name, run in variants.items()}, rounds)
    print(f"\n## {title}\n")
    rows = [
        (
            name,
            f"{statistics.median(times) / tokens:.3f}",
            f"{harness.median_ratio(times, samples[OURS]):.2f}",
        )
        for name, times in samples.items()
    ]
    harness.print_table(("", "ns per token", "x kl_proteus"), rows)


def time_lists(batch: Batch, rounds: int) -> None:
    """What trainers keep as Python lists."""
    policy, reference, mask = batch.lists
    size = batch.mask.size
    compare(
        "Lists, k1",
        {
            OURS: ours(policy, reference, estimator="k1"),
            SUMS: lambda: sums(policy, reference),
            NAIVE: lambda: naive_k1(policy, reference),
            CONVERTED: lambda: (np.array(policy) - np.array(reference)).mean(1),
        },
        size,
        rounds,
        1e-12,
    )
    for estimator in ("k1", "k3"):
        k3 = estimator == "k3"
        compare(
            f"Lists, {estimator} with a mask of bools",
            {
                OURS: ours(policy, reference, mask, estimator=estimator),
                NAIVE: lambda k3=k3: naive_masked(policy, reference, mask, k3),
                CONVERTED: lambda k3=k3: numpy_masked(
                    np.array(policy), np.array(reference), np.array(mask, float), k3
                ),
            },
            size,
            rounds,
            1e-12,
        )


def time_arrays(batch: Batch, rounds: int) -> None:
    """What trainers keep as arrays."""
    compiled = numba_means()
    for dtype in ("float32", "float64"):
        policy, reference = batch.arrays(dtype)
        weights = batch.mask.astype(dtype)
        out = np.empty(SEQUENCES, dtype)
        everything = np.ones_like(weights)
        for estimator, mask in (("k1", None), ("k1", batch.mask), ("k3", batch.mask)):
            k3 = estimator == "k3"
            used = everything if mask is None else weights
            variants: dict[str, Run] = {
                OURS: ours(policy, reference, mask, estimator=estimator),
                NUMPY: lambda p=policy, r=reference, w=used, k3=k3: numpy_masked(p, r, w, k3),
            }
            if mask is None:
                variants[NUMPY] = lambda p=policy, r=reference: (p - r).mean(1)
            if compiled is not None:
                variants[NUMBA] = lambda p=policy, r=reference, w=used, k3=k3, out=out: compiled(
                    p, r, w, k3, out
                )
            title = f"Arrays, {dtype}, {estimator}{'' if mask is None else ' with a mask of bools'}"
            compare(title, variants, batch.mask.size, rounds, 1e-3 if dtype == "float32" else 1e-12)


def time_short_calls(batch: Batch, rounds: int) -> None:
    """One sequence a call."""
    for tokens in (16, 128, 1024):
        policy, reference = batch.lists[0][0][:tokens], batch.lists[1][0][:tokens]
        compare(
            f"One list of {tokens} tokens, k1",
            {
                OURS: lambda p=policy, r=reference: kl_from_logprobs(p, r),
                SUMS: lambda p=policy, r=reference, n=tokens: (sum(p) - sum(r)) / n,
                NAIVE: lambda p=policy, r=reference: naive_k1([p], [r])[0],
            },
            tokens,
            rounds,
            1e-12,
        )


def main() -> None:
    """Checks, times and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=51, help="rounds of each table")
    parser.add_argument("--quick", action="store_true", help="a smoke run of 3 rounds")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    harness.start_clean()
    harness.refuse_debug_build()

    rounds = min(arguments.rounds, 3) if arguments.quick else arguments.rounds
    harness.print_heading("Cost of kl_from_logprobs")
    if numba_means() is None:
        print("* numba is not installed; its rows are left out (the extra `bench` has it)")
    batch = Batch(SEQUENCES, TOKENS)
    time_lists(batch, rounds)
    time_arrays(batch, rounds)
    time_short_calls(batch, rounds)


if __name__ == "__main__":
    main()
