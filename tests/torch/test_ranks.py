"""The drop-in controller on two processes: one measurement, one coefficient, to the last bit."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st

from kl_proteus import AdaptiveKLController, KLConfig
from kl_proteus.kl_controller.stats import moments
from kl_proteus.torch import KLController
from kl_proteus.torch.measurements import Spread

WORLD = 2
VOCABULARY = 5
# Rows of each process in each call: of different sizes, without any, and with no kept token.
SIZES = [(3, 1), (1, 4), (0, 2), (2, 2), (5, 3)]
MASKED = {(3, 0)}


class Stub(torch.nn.Module):
    def forward(self, input_ids, attention_mask):
        logits = torch.nn.functional.one_hot(input_ids, VOCABULARY).double() * 0.7
        return SimpleNamespace(logits=logits)


def controller(**options):
    rule = AdaptiveKLController(0.1, 0.2, 1000)
    config = KLConfig("stub", adaptation_window=2, kl_target=0.2, **options)
    config.controller = rule if options.get("estimator") == "k3" else None
    made = KLController(config, load_model=False)
    made.ref_model = Stub()
    return made


def batch(call, rank):
    """Tokens, log-probabilities and mask of one process; the numbers do not add up evenly."""
    rows = SIZES[call][rank]
    generator = torch.Generator().manual_seed(10 * call + rank)
    tokens = torch.randint(VOCABULARY, (rows, 6), generator=generator)
    logprobs = -0.1 - 3.0 * torch.rand((rows, 6), generator=generator)
    mask = torch.rand((rows, 6), generator=generator) > 0.3
    mask[:, :2] = True
    if (call, rank) in MASKED:
        mask[:] = False
    return logprobs, tokens, mask


def calls(made, batches, gathered):
    """What a controller answers to the batches of one process, or to those of all."""
    seen = []
    for call, (logprobs, tokens, mask) in enumerate(batches):
        if call % 2:
            penalty, stats = made.get_batch_penalty(logprobs, tokens, mask)
            mean, rest = stats.mean_kl, vars(stats)
        else:
            penalty, mean = made.get_penalty(logprobs, tokens, mask)
            rest = {}
        seen.append([mean, made.kl_coeff, rest, penalty.tolist()])
    lists = [[-1.0, -2.0]] * gathered, [[-1.5, -2.75]] * gathered
    penalties, stats = made.get_batch_penalty_from_logprobs(*lists)
    seen.append([stats.mean_kl, made.kl_coeff, vars(stats), penalties])
    return seen


def on_one_rank(rank, folder):
    """What a process does; its answers go to a file."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD
    )
    try:
        report = {}
        for name, options in (("default", {}), ("k3", {"estimator": "k3"})):
            made = controller(**options)
            batches = [batch(call, rank) for call in range(len(SIZES))]
            report[name] = calls(made, batches, rank)  # rank 0 passes an empty list
            report[f"{name} state"] = made.save_state()

        # What one process cannot measure, none adapts to.
        made = controller()
        before = made.save_state()
        logprobs, tokens, mask = batch(1, rank)
        if rank == 1:
            logprobs[0, 0] = math.nan
        try:
            made.get_penalty(logprobs, tokens, mask)
        except ValueError as error:
            report["refused"] = str(error)
        assert made.save_state() == before
        try:
            made.get_batch_penalty_from_logprobs([[0.0]], [[-1.0] if rank else [math.nan]])
        except ValueError as error:
            report["refused lists"] = str(error)
        assert made.save_state() == before
        report["after"] = calls(made, [batch(1, rank)], rank)

        # One that stays with its process asks nobody.
        alone = KLController(KLConfig("stub"), load_model=False, all_ranks=False)
        alone.ref_model = Stub()
        if rank == 0:
            report["alone"] = alone.get_penalty(*batch(1, 0))[1]
        # So does one in a group of its own.
        groups = [dist.new_group([0]), dist.new_group([1])]
        own = KLController(KLConfig("stub"), load_model=False, process_group=groups[rank])
        own.ref_model = Stub()
        report["group"] = own.get_penalty(*batch(1, rank))[1]
        Path(folder, f"rank-{rank}.json").write_text(json.dumps(report))
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The answers of both processes."""
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(on_one_rank, (str(folder),), nprocs=WORLD)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(WORLD)]


@pytest.mark.parametrize("name", ["default", "k3"])
def test_every_process_holds_the_same(name, reports):
    first, second = (report[name] for report in reports)
    for ours, theirs in zip(first, second, strict=True):
        assert ours[:3] == theirs[:3]  # JSON keeps every bit of a float
    assert reports[0][f"{name} state"] == reports[1][f"{name} state"]
    assert len({row[1] for row in first}) > 2


@pytest.mark.parametrize("name", ["default", "k3"])
def test_the_measurement_is_that_of_all_rows(name, reports):
    batches = []
    for call in range(len(SIZES)):
        parts = [batch(call, rank) for rank in range(WORLD)]
        batches.append([torch.cat(values) for values in zip(*parts, strict=True)])
    made = controller(**({"estimator": "k3"} if name == "k3" else {}))
    expected = calls(made, batches, 1)
    for call, row in enumerate(expected):
        assert reports[0][name][call][:2] == pytest.approx(row[:2], rel=1e-12)
        assert reports[0][name][call][2] == pytest.approx(row[2], rel=1e-12)
        together = reports[0][name][call][3] + reports[1][name][call][3]
        assert together == pytest.approx(row[3], rel=1e-6)
    state = made.save_state()
    ours = reports[0][f"{name} state"]
    assert ours["recent_history"] == pytest.approx(state["recent_history"], rel=1e-12)
    assert ours["samples_processed"] == state["samples_processed"]
    assert ours["adaptation_count"] == state["adaptation_count"] > 0


def test_a_process_that_cannot_measure_stops_all(reports):
    assert reports[0]["refused"].startswith("rank 1 could not measure its batch: ValueError: ")
    assert "policy[0][0] is nan" in reports[0]["refused"]
    assert reports[1]["refused"].startswith("policy[0][0] is nan")
    assert "sequence 0 of the batch" in reports[0]["refused lists"]
    assert reports[1]["refused lists"].startswith("rank 0 could not measure its batch: ")
    assert reports[0]["after"][0][:3] == reports[1]["after"][0][:3]


def test_a_controller_of_one_process(reports):
    rows = KLController(KLConfig("stub"), load_model=False)
    rows.ref_model = Stub()
    means = [float(rows.compute_kl(*batch(1, rank)).double().mean()) for rank in range(WORLD)]
    assert reports[0]["alone"] == pytest.approx(means[0], rel=1e-6)
    assert [report["group"] for report in reports] == pytest.approx(means, rel=1e-6)


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=6), max_size=5))
def test_spreads_put_together(parts):
    whole = [value for part in parts for value in part]
    spread = Spread.together([Spread.of(part) for part in parts])
    mean, std = moments(whole)
    scale = max(map(abs, whole), default=0.0)
    assert spread.count == len(whole)
    assert spread.mean == pytest.approx(mean, rel=1e-12, abs=1e-12 * scale)
    # Squares of differences below 1e-154 are too small for a float.
    assert spread.std == pytest.approx(std, rel=1e-9, abs=1e-9 * scale + 1e-150)
    assert spread.largest == max(whole, default=0.0)
    assert spread.smallest == min(whole, default=0.0)
