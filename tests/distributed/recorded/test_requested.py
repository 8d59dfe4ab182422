"""Requested windows across ranks: both record them, a rank that does not read the request spoils no number."""

import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import traincope
from tests.distributed.ranks.pool import Pool
from tests.distributed.recorded.bits import Bits, bits
from traincope.analysis import FaultKind
from traincope.events import BLOCK_STEPS, Kind
from traincope.record.session import recorder, sampling
from traincope.record.session.control import Control
from traincope.record.session.rendezvous import Place
from traincope.report.document.document import to_document
from traincope.store.job.requests import Cause, WindowRequest, append_request
from traincope.timeline import Timeline, match_instances

SEED = "requested"
STEPS = 16 * BLOCK_STEPS
FIRST = 8 * BLOCK_STEPS
NUM_STEPS = 2 * BLOCK_STEPS - 1


def request(*, first_step: int = FIRST, kernels: bool = False, cause: Cause = Cause.PROFILE) -> WindowRequest:
    return WindowRequest(
        attempt=0,
        first_step=first_step,
        num_steps=NUM_STEPS,
        kernels=kernels,
        cause=cause,
        at_step=None if cause is Cause.PROFILE else 40,
        at_wall_ns=time.time_ns(),
    )


def no_look(files: Control, place: Place) -> None:
    """Read nothing."""


def train(directory: str, look_steps: tuple[int, int], kernels: bool = False) -> Bits:
    """DDP with detail in the first block only. Each rank looks for a request only at the begin of its own step."""
    rank, is_window, look, interval_ns = dist.get_rank(), sampling.is_window, Control.look, recorder.CLOCK_INTERVAL_NS
    sampling.is_window, recorder.CLOCK_INTERVAL_NS = lambda block, **_: block == 0, 0
    torch.manual_seed(7)
    losses = []
    try:
        with traincope.run(directory or None, run_id=SEED, agent=False) as run:  # it requests windows itself
            layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
            model = DistributedDataParallel(layers, process_group=dist.new_group())
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            for step in range(STEPS):
                if step == 4 and rank == 0 and directory:
                    append_request(Path(directory), request(kernels=kernels))
                if step == 4:
                    dist.barrier()
                Control.look = look if step == look_steps[rank] else no_look
                run.step()
                loss = model(torch.full((2, 8), float(step))).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
    finally:
        sampling.is_window, Control.look, recorder.CLOCK_INTERVAL_NS = is_window, look, interval_ns
    return bits(losses, model, optimizer)


def steps_with_detail(timeline: Timeline, rank: int) -> set[int]:
    return {step.number for step in timeline.ranks[rank].steps if step.detailed}


def test_a_requested_window_is_recorded_on_all_ranks_and_says_why(two_ranks: Pool, tmp_path: Path) -> None:
    """The ranks read the request in different steps."""
    two_ranks.run(train, str(tmp_path / "run"), (10, 30))
    timeline = traincope.open_run(tmp_path / "run")
    window = set(range(FIRST + 1, FIRST + 2 * BLOCK_STEPS))
    assert [steps_with_detail(timeline, rank) for rank in (0, 1)] == [set(range(BLOCK_STEPS)) | window] * 2
    assert timeline.requested_steps == dict.fromkeys(sorted(window), "traincope profile")
    instances = match_instances(timeline)
    assert instances.complete[instances.number[np.isin(instances.parts.step, sorted(window))]].all()
    assert instances.num_shifted == 0
    analysis = traincope.analyze(timeline)
    (mark,) = (fault for fault in analysis.faults if fault.kind is FaultKind.REQUESTED_WINDOW)
    assert mark.what == f"requested window of {NUM_STEPS} steps from step {FIRST + 1}: traincope profile"
    assert (mark.ranks, mark.step, mark.is_fault) == ((0, 1), FIRST, False)
    (requested,) = to_document(analysis)["recorder"]["sampling"]["requested"]
    assert requested == {
        "first_step": FIRST + 1,
        "last_step": FIRST + NUM_STEPS,
        "cause": "profile",
        "reason": "traincope profile",
        "at_step": None,
        "kernels": False,
        "recorded_steps": NUM_STEPS,
        "ranks_without": [],
    }


def test_a_window_that_one_rank_never_reads_enters_nothing(two_ranks: Pool, tmp_path: Path) -> None:
    two_ranks.run(train, str(tmp_path / "run"), (10, STEPS))
    timeline = traincope.open_run(tmp_path / "run")
    window = set(range(FIRST + 1, FIRST + 2 * BLOCK_STEPS))
    assert steps_with_detail(timeline, 0) == set(range(BLOCK_STEPS)) | window
    assert steps_with_detail(timeline, 1) == set(range(BLOCK_STEPS))
    assert set(timeline.ranks[1].of_kind(Kind.COLLECTIVE)["step"].tolist()) <= set(range(-1, BLOCK_STEPS))
    instances = match_instances(timeline)
    alone = np.isin(instances.parts.step, sorted(window))
    assert alone.any()
    assert not instances.complete[instances.number[alone]].any()
    analysis = traincope.analyze(timeline)
    for rank in analysis.ledger.ranks:
        assert not window & set(rank.numbers[rank.counted].tolist())
    (requested,) = to_document(analysis)["recorder"]["sampling"]["requested"]
    assert (requested["recorded_steps"], requested["ranks_without"]) == (0, [1])


def test_a_rank_that_reads_a_request_late_begins_with_the_next_block(two_ranks: Pool, tmp_path: Path) -> None:
    """Rank 1 looks inside the first block of the window. Both share the second one, with counts of its own."""
    two_ranks.run(train, str(tmp_path / "run"), (10, FIRST + 3))
    timeline = traincope.open_run(tmp_path / "run")
    second = set(range(FIRST + BLOCK_STEPS + 1, FIRST + 2 * BLOCK_STEPS))
    assert steps_with_detail(timeline, 1) == set(range(BLOCK_STEPS)) | second
    instances = match_instances(timeline)
    assert instances.complete[instances.number[np.isin(instances.parts.step, sorted(second))]].all()
    (requested,) = to_document(traincope.analyze(timeline))["recorder"]["sampling"]["requested"]
    assert (requested["recorded_steps"], requested["ranks_without"]) == (len(second), [1])


def test_kernels_are_traced_in_exactly_the_requested_steps_and_change_no_bit(two_ranks: Pool, tmp_path: Path) -> None:
    assert two_ranks.run(train, str(tmp_path / "run"), (10, 30), True) == two_ranks.run(bare)
    timeline = traincope.open_run(tmp_path / "run")
    for rank in timeline.run.ranks:
        names = [path.name for path in rank.traces]
        assert names == [f"kernels-step-{step:08d}.json" for step in range(FIRST + 1, FIRST + 1 + NUM_STEPS)]
        assert rank.info.probes["windows"] == "off: needs level 3, this run records level 1"
        assert rank.info.level == 1
    assert not torch.autograd._profiler_enabled()
    analysis = traincope.analyze(timeline)
    assert not any(
        fault.step in timeline.requested_steps for fault in analysis.faults if fault.kind is FaultKind.SLOW_STEP
    )


def bare() -> Bits:
    os.environ["TRAINCOPE"] = "off"
    try:
        return train("", (STEPS, STEPS))
    finally:
        del os.environ["TRAINCOPE"]
