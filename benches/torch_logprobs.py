"""Time and memory of log-probabilities and exact divergences from hidden states, next to peers.

Three parts over tokens T and vocabulary V: log-probabilities without gradient, with the gradient to
hidden states and head, and the exact divergence with and without gradient. Every variant is checked
against float64 first and timed in interleaved rounds; its memory is the high-water mark of the
resident set above what was there before the call. Ratios are medians over rounds of variant /
naive: below 1 is better. Peers that are not installed are left out.
"""

import argparse
import ctypes
import gc
import importlib.metadata
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import harness
import torch
from torch import Tensor
from torch.nn.functional import kl_div, linear
from torch.utils.checkpoint import checkpoint

from kl_proteus.torch import LazyLogits, full_kl, logprobs_from_logits

MB = 1 << 20
NAIVE = "naive log-softmax + gather"
OURS = "kl_proteus"
# Standard deviation of the logits.
SPREAD = 3.0
Run = Callable[[], Any]


# Peers: log-probabilities ------------------------------------------------------------------------


def naive(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """What the textbook has."""
    logits = linear(hidden, weight).float()
    return logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0]


def minus_logsumexp(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """One array fewer."""
    logits = linear(hidden, weight)
    return logits.gather(-1, ids[:, None])[:, 0].float() - logits.float().logsumexp(-1)


def in_chunks(rows: int, wrapped: bool = False) -> Callable[..., Tensor]:
    """Chunks of whole rows, as trainers offer; `wrapped`: logits are made again for backward."""

    def run(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
        def chunk(start: int) -> Tensor:
            part = slice(start, start + rows)
            return minus_logsumexp(hidden[part], weight, ids[part])

        starts = range(0, len(ids), rows)
        if wrapped:
            return torch.cat([checkpoint(chunk, s, use_reentrant=False) for s in starts])
        return torch.cat([chunk(s) for s in starts])

    return run


def trl_selective() -> Callable[..., Tensor] | None:
    """TRL's selective_log_softmax on whole logits."""
    try:
        from trl.trainer.utils import selective_log_softmax
    except ImportError:
        return None
    return lambda hidden, weight, ids: selective_log_softmax(
        linear(hidden, weight)[None], ids[None]
    )[0]


def trl_fused() -> Callable[..., Tensor] | None:
    """TRL's fused head, tiles of 4096 by 32768."""
    try:
        from trl.kernels import ChunkedLogProbFunction
    except ImportError:
        return None
    return lambda hidden, weight, ids: ChunkedLogProbFunction.apply(
        hidden, weight, None, ids, 1.0, 32768, None, 1.0, ("log_probs",)
    )[0]


def ours(budget: int | None = None) -> Callable[..., Tensor]:
    """The library."""
    return lambda hidden, weight, ids: logprobs_from_logits(
        LazyLogits(hidden, weight), ids, byte_budget=budget
    )


# Peers: exact divergence -------------------------------------------------------------------------


def naive_kl(hidden: Tensor, weight: Tensor, other: Tensor) -> Tensor:
    """Two log-softmaxes."""
    p = linear(hidden, weight).float().log_softmax(-1)
    with torch.no_grad():
        q = linear(other, weight).float().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def functional_kl(hidden: Tensor, weight: Tensor, other: Tensor) -> Tensor:
    """torch.nn.functional.kl_div."""
    p = linear(hidden, weight).float().log_softmax(-1)
    with torch.no_grad():
        q = linear(other, weight).float().log_softmax(-1)
    return kl_div(q, p, reduction="none", log_target=True).sum(-1)


def chunked_kl(rows: int) -> Callable[..., Tensor]:
    """Chunks of whole rows, made again for backward."""

    def run(hidden: Tensor, weight: Tensor, other: Tensor) -> Tensor:
        def chunk(start: int) -> Tensor:
            part = slice(start, start + rows)
            return naive_kl(hidden[part], weight, other[part])

        starts = range(0, len(hidden), rows)
        return torch.cat([checkpoint(chunk, s, use_reentrant=False) for s in starts])

    return run


def our_kl(hidden: Tensor, weight: Tensor, other: Tensor) -> Tensor:
    """The library."""
    return full_kl(LazyLogits(hidden, weight), LazyLogits(other, weight.detach())).values


# Measuring ---------------------------------------------------------------------------------------


def resident(key: str) -> int:
    """Bytes that Linux counts for this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def peak_of(run: Run) -> int:
    """Bytes at the high-water mark above those before."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    run()
    return max(0, resident("VmHWM") - before)


def timed(run: Run) -> Callable[[int], float]:
    """Nanoseconds of a call."""

    def call(_: int) -> float:
        start = perf_counter_ns()
        run()
        return perf_counter_ns() - start

    return call


def compare(
    title: str, variants: dict[str, Run], error: Callable[[Any], float], rounds: int
) -> None:
    """Measures variants and prints their table; the first is what ratios are of."""
    errors = {name: error(run()) for name, run in variants.items()}
    peaks = {name: peak_of(run) for name, run in variants.items()}
    samples = harness.interleave({name: timed(run) for name, run in variants.items()}, rounds)
    first = next(iter(variants))
    rows = [
        (
            name,
            f"{statistics.median(times) / 1e6:,.1f}",
            f"{harness.median_ratio(times, samples[first]):.2f}",
            f"{peaks[name] / MB:,.0f}",
            f"{peaks[name] / max(1, peaks[first]):.3f}",
            f"{errors[name]:.1e}",
        )
        for name, times in samples.items()
    ]
    print(f"\n## {title}\n")
    harness.print_table(("", "ms", "x time", "peak MB", "x peak", "error"), rows)


@dataclass
class Case:
    """Hidden states of a policy and a reference, a head, and ids."""

    hidden: Tensor
    weight: Tensor
    other: Tensor
    ids: Tensor

    @classmethod
    def made(cls, tokens: int, vocab: int, width: int, dtype: torch.dtype) -> "Case":
        """Random ones whose logits have the spread of a trained model's."""
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(tokens, width, generator=generator)
        weight = torch.randn(vocab, width, generator=generator) * (SPREAD / width**0.5)
        other = hidden + 0.3 * torch.randn(tokens, width, generator=generator)
        ids = torch.randint(vocab, (tokens,), generator=generator)
        return cls(hidden.to(dtype), weight.to(dtype), other.to(dtype), ids)

    def exact(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Log-softmaxes of both in float64, a block of rows at a time."""
        weight = self.weight.double()
        for i in range(0, len(self.ids), 64):
            yield tuple(
                linear(h[i : i + 64].double(), weight).log_softmax(-1)
                for h in (self.hidden, self.other)
            )


def largest(got: Tensor, want: Tensor) -> float:
    """The largest difference."""
    return (got.detach().double() - want).abs().max().item()


def chunk_rows(vocab: int, megabytes: int) -> int:
    """Whole rows of float32 logits that fit."""
    return max(1, megabytes * MB // (4 * vocab))


def logprob_variants(case: Case, budgets: list[int]) -> dict[str, Callable[..., Tensor]]:
    """What log-probabilities are computed with."""
    vocab = len(case.weight)
    variants: dict[str, Callable[..., Tensor] | None] = {
        NAIVE: naive,
        "gather - logsumexp": minus_logsumexp,
        "TRL selective_log_softmax": trl_selective(),
        "TRL fused head": trl_fused(),
        "row chunks, 16 MB": in_chunks(chunk_rows(vocab, 16)),
        **{f"{OURS}, {budget} MB": ours(budget * MB) for budget in budgets},
        OURS: ours(),
    }
    return {name: variant for name, variant in variants.items() if variant is not None}


def part_a(case: Case, name: str, budgets: list[int], rounds: int) -> None:
    """Log-probabilities, no gradient."""
    want = torch.cat(
        [
            p.gather(-1, ids[:, None])[:, 0]
            for (p, _), ids in zip(case.exact(), case.ids.split(64), strict=True)
        ]
    )
    runs = {
        title: lambda f=f: f(case.hidden, case.weight, case.ids)
        for title, f in logprob_variants(case, budgets).items()
    }
    with torch.no_grad():
        compare(f"A. Log-probabilities, {name}", runs, lambda got: largest(got, want), rounds)


def part_b(case: Case, name: str, budgets: list[int], rounds: int, frozen: bool) -> None:
    """Log-probabilities with gradients."""
    hidden = case.hidden.clone().requires_grad_()
    weight = case.weight.clone().requires_grad_(not frozen)
    upstream = torch.randn(len(case.ids), generator=torch.Generator().manual_seed(1))

    def gradient(function: Callable[..., Tensor]) -> Run:
        def run() -> Tensor:
            hidden.grad = weight.grad = None
            function(hidden, weight, case.ids).backward(upstream)
            assert hidden.grad is not None
            return hidden.grad

        return run

    dense = case.weight.double()
    want = torch.cat(
        [
            g[:, None] * (dense[ids] - p.exp() @ dense)
            for (p, _), ids, g in zip(
                case.exact(), case.ids.split(64), upstream.double().split(64), strict=True
            )
        ]
    )
    variants = logprob_variants(case, budgets)
    variants["row chunks, 16 MB, checkpointed"] = in_chunks(
        chunk_rows(len(case.weight), 16), wrapped=True
    )
    title = f"B. With the gradient to hidden states{'' if frozen else ' and head'}, {name}"
    compare(
        title,
        {label: gradient(function) for label, function in variants.items()},
        lambda got: ((got.double() - want).norm() / want.norm()).item(),
        rounds,
    )


def part_c(case: Case, name: str, rounds: int) -> None:
    """Exact divergence, value and gradient."""
    want = torch.cat([(p.exp() * (p - q)).sum(-1) for p, q in case.exact()])
    variants: dict[str, Callable[..., Tensor]] = {
        "naive, two log-softmaxes": naive_kl,
        "torch.nn.functional.kl_div": functional_kl,
        "row chunks, 16 MB, checkpointed": chunked_kl(chunk_rows(len(case.weight), 16)),
        f"{OURS} full_kl": our_kl,
    }

    def error(got: Tensor) -> float:
        return largest(got, want)

    with torch.no_grad():
        runs: dict[str, Run] = {
            title: lambda f=f: f(case.hidden, case.weight, case.other)
            for title, f in variants.items()
        }
        compare(f"C. Exact divergence, {name}", runs, error, rounds)
    hidden, weight = case.hidden.clone().requires_grad_(), case.weight.clone().requires_grad_()

    def gradient(function: Callable[..., Tensor]) -> Run:
        def run() -> Tensor:
            hidden.grad = weight.grad = None
            value = function(hidden, weight, case.other)
            value.sum().backward()
            return value

        return run

    runs = {title: gradient(function) for title, function in variants.items()}
    compare(f"C. Exact divergence with gradient, {name}", runs, error, rounds)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--vocab", type=int, nargs="+", default=[32_000, 152_064])
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--budgets", type=int, nargs="*", default=[1, 16], help="MB of a tile")
    parser.add_argument("--parts", nargs="+", default=["A", "B", "C"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a smoke run of small sizes")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.tokens, arguments.vocab, arguments.hidden = [8], [600], 16
        arguments.rounds = 2
    torch.set_num_threads(arguments.threads)
    harness.print_heading("Log-probabilities and divergences of language models")
    versions = [f"torch {torch.__version__}"]
    if trl_selective() is not None:
        versions.append(f"trl {importlib.metadata.version('trl')}")
    print(f"* {', '.join(versions)}; {arguments.threads} thread(s), CPU")
    print(f"* hidden size {arguments.hidden}, standard deviation of the logits {SPREAD:g}")
    for dtype in arguments.dtypes:
        for vocab in arguments.vocab:
            for tokens in arguments.tokens:
                case = Case.made(tokens, vocab, arguments.hidden, getattr(torch, dtype))
                name = f"{dtype}, V = {vocab}, T = {tokens}"
                if "A" in arguments.parts:
                    part_a(case, name, arguments.budgets, arguments.rounds)
                if "B" in arguments.parts:
                    for frozen in (False, True):
                        part_b(case, name, arguments.budgets, arguments.rounds, frozen)
                if "C" in arguments.parts:
                    part_c(case, name, arguments.rounds)


if __name__ == "__main__":
    main()
