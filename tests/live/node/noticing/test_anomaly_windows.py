"""Windows that anomalies open: real ranks beside a real agent, and the bounds."""

import math
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import traincope
from tests.distributed.ranks.pool import Pool
from tests.live.processes import DEADLINE_SECONDS, agents_of, until
from tests.live.recorded import record
from tests.live.windows import ranks, records
from tests.live.windows import window as hand_made
from tests.store.job.test_requests import as_if_it_ran
from traincope.analysis import Fault, FaultKind
from traincope.cli.commands.agent import INTERVAL_VARIABLE, SHARE_VARIABLE
from traincope.events import BLOCK_STEPS
from traincope.live.node.noticing.anomaly_windows import (
    DRAWN_PER_WINDOW,
    FREE_WINDOWS,
    LATE_STEPS,
    MIN_STEPS,
    AnomalyWindows,
)
from traincope.live.window import Window
from traincope.record.session import sampling
from traincope.record.session.options import AGENT_VARIABLE
from traincope.store.job.requests import Cause, WindowRequest, append_request, read_requests
from traincope.store.side_tables.rows import Row

NOT_FINITE_AT, SLOW_AT = 30, 60
STEP_SECONDS, SLOW_SECONDS = 0.02, 2.0


def train(directory: str) -> None:
    """Detail in the first block only. A loss is NaN, and one step is slow. It ends after both anomalies' windows."""
    os.environ |= {AGENT_VARIABLE: "on", INTERVAL_VARIABLE: "0.1", SHARE_VARIABLE: "1"}
    usual, deadline = sampling.is_window, time.monotonic() + DEADLINE_SECONDS
    sampling.is_window = lambda block, **_: block == 0
    try:
        with traincope.run(directory) as run:
            model = DistributedDataParallel(nn.Linear(8, 8), process_group=dist.new_group())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            step, stopping = 0, torch.zeros(1)
            while not stopping:
                run.step()
                time.sleep(SLOW_SECONDS if step == SLOW_AT and dist.get_rank() else STEP_SECONDS)
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                run.log(loss=math.nan if step == NOT_FINITE_AT else 1.0)
                stopping = torch.tensor([float(are_over(Path(directory), step) or time.monotonic() > deadline)])
                dist.all_reduce(stopping)
                step += 1
    finally:
        sampling.is_window = usual
        os.environ[AGENT_VARIABLE] = "off"


def are_over(run: Path, step: int) -> bool:
    requests = read_requests(run, attempt=0)
    both = {Cause.NOT_FINITE, Cause.SLOW_STEP} <= {request.cause for request in requests}
    return both and step > max(request.end_step for request in requests)


def test_a_slow_step_and_a_value_that_is_not_finite_open_windows(two_ranks: Pool, tmp_path: Path) -> None:
    run = tmp_path / "run"
    two_ranks.run(train, str(run), timeout_seconds=2 * DEADLINE_SECONDS)
    until(lambda: not agents_of(run), "the agent's end")
    timeline = traincope.open_run(run)
    by_cause = {request.cause: request for request in timeline.run.requests}
    for of_others in (Cause.STEP_TIME_CHANGE, Cause.LATE_RANK):
        by_cause.pop(of_others, None)  # other work on this machine may change the step time, or hold a rank up
    assert by_cause.keys() == {Cause.NOT_FINITE, Cause.SLOW_STEP}
    assert by_cause[Cause.NOT_FINITE].at_step == NOT_FINITE_AT
    assert by_cause[Cause.SLOW_STEP].at_step is not None
    marks = [fault.what for fault in traincope.analyze(timeline).faults if fault.kind is FaultKind.REQUESTED_WINDOW]
    for request in by_cause.values():
        asked = set(range(request.first_step + 1, request.last_step + 1))
        for rank in timeline.ranks:
            assert asked <= {step.number for step in rank.steps if step.detailed}
        assert asked <= timeline.requested_steps.keys()
        assert any(what.endswith(request.reason) for what in marks)


def row(step: int, *, detailed: bool) -> Row:
    terms = {"forward": 1} if detailed else {}
    return Row(rank=0, step=step, start_ns=step, wall_ns=1, own_ns=0, anomalous=False, terms=terms)


def fault(kind: FaultKind = FaultKind.SLOW_STEP, *, step: int | None = 9) -> Fault:
    return Fault(kind=kind, at_ns=9, step=step, what="it happened")


def look(run: Path, *faults: Fault, light: int = 1, detailed: int = 0, last: bool = False) -> Window:
    rows = [row(1_000 + at, detailed=False) for at in range(light)]
    rows += [row(at, detailed=True) for at in range(detailed)]
    return replace(hand_made(records(ranks(0, 1)), faults=faults), run=run, rows=tuple(rows), last=last)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    record(tmp_path / "run", monkeypatch, steps=20)
    as_if_it_ran(tmp_path / "run")
    return tmp_path / "run"


def causes(run: Path) -> list[Cause]:
    return [request.cause for request in read_requests(run)]


def earlier(*, first_step: int = 7_000, at_wall_ns: int = 0) -> WindowRequest:
    return WindowRequest(
        attempt=0,
        first_step=first_step,
        num_steps=6,
        kernels=False,
        cause=Cause.SLOW_STEP,
        at_step=1,
        at_wall_ns=at_wall_ns,
    )


def test_a_cause_opens_one_window_a_minute(run: Path) -> None:
    observer = AnomalyWindows()
    observer.observe(look(run, fault()))
    observer.observe(look(run, fault(step=10)))
    assert causes(run) == [Cause.SLOW_STEP]


def test_a_step_time_that_rose_opens_a_window(run: Path) -> None:
    AnomalyWindows().observe(look(run, fault(FaultKind.STEP_TIME_CHANGE)))
    (request,) = read_requests(run)
    assert (request.cause, request.reason) == (Cause.STEP_TIME_CHANGE, "a longer step time (step 9)")


@pytest.mark.parametrize(
    ("kind", "named", "stacks"),
    [
        (FaultKind.SLOW_STEP, (1,), (1, 0)),
        (FaultKind.STEP_TIME_CHANGE, (0,), (0, 1)),
        (FaultKind.SLOW_STEP, (), ()),
        (FaultKind.NOT_FINITE, (1,), ()),
    ],
)
def test_the_slow_rank_and_one_other_sample_their_stacks(
    run: Path, kind: FaultKind, named: tuple[int, ...], stacks: tuple[int, ...]
) -> None:
    AnomalyWindows().observe(look(run, replace(fault(kind), ranks=named)))
    (request,) = read_requests(run)
    assert request.stacks == stacks


def test_after_a_minute_the_next_one_opens(run: Path) -> None:
    append_request(run, earlier())
    AnomalyWindows().observe(look(run, fault()))
    assert causes(run) == [Cause.SLOW_STEP] * 2


def test_a_rare_cause_is_not_held_up_by_a_frequent_one_and_opens_one_window(run: Path) -> None:
    observer = AnomalyWindows()
    for step in (9, 10, 11):
        observer.observe(look(run, fault(step=step), fault(FaultKind.NOT_FINITE, step=step)))
    assert causes(run) == [Cause.NOT_FINITE, Cause.SLOW_STEP]


def test_all_windows_of_anomalies_are_a_bounded_share_of_the_drawn_ones(run: Path) -> None:
    for _ in range(FREE_WINDOWS):
        append_request(run, earlier())
    observer = AnomalyWindows()
    observer.observe(look(run, fault(), detailed=BLOCK_STEPS * DRAWN_PER_WINDOW - 1))
    assert len(causes(run)) == FREE_WINDOWS
    observer.observe(look(run, fault(step=10), detailed=1))
    assert len(causes(run)) == FREE_WINDOWS + 1


def test_a_step_inside_a_requested_window_opens_no_other(run: Path) -> None:
    append_request(run, earlier(first_step=7))
    AnomalyWindows().observe(look(run, fault(step=9)))
    assert len(causes(run)) == 1


@pytest.mark.parametrize("kind", [FaultKind.SKIPPED_STEP, FaultKind.CHECKPOINT, FaultKind.REQUESTED_WINDOW])
def test_other_entries_of_the_stream_open_no_window(run: Path, kind: FaultKind) -> None:
    AnomalyWindows().observe(look(run, fault(kind)))
    assert causes(run) == []


def test_where_every_step_has_detail_no_window_is_needed(run: Path) -> None:
    AnomalyWindows().observe(look(run, fault(), light=0, detailed=8))
    assert causes(run) == []


def test_growing_memory_opens_one_window_also_there(run: Path) -> None:
    """Tensors are counted in it."""
    observer = AnomalyWindows()
    for rank in (0, 1):
        observer.observe(look(run, replace(fault(FaultKind.MEMORY_GROWTH), ranks=(rank,)), light=0, detailed=8))
    assert causes(run) == [Cause.MEMORY_GROWTH]


def test_a_job_that_is_over_gets_no_window(run: Path) -> None:
    AnomalyWindows().observe(look(run, fault(), last=True))
    assert causes(run) == []


def test_a_late_rank_samples_its_stack_once_and_a_peer_too(run: Path) -> None:
    """Also where every step has detail: only samples show the line."""
    rows = [
        replace(
            row(step, detailed=True),
            rank=rank,
            wall_ns=100,
            terms={"forward": 60 + 30 * rank, "exposed_wait[dp]": 40 - 30 * rank},
        )
        for rank in (0, 1)
        for step in range(1, MIN_STEPS + 1)
    ]
    observer = AnomalyWindows()
    observer.observe(replace(look(run, light=0), rows=tuple(rows)))
    observer.observe(replace(look(run, light=0), rows=tuple(replace(each, step=each.step + 100) for each in rows)))
    (request,) = read_requests(run)
    assert (request.cause, request.stacks, request.num_steps) == (Cause.LATE_RANK, (1, 0), LATE_STEPS)
    assert request.reason == "a rank that the others wait for"
