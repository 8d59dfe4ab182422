"""Pipelined jobs whose slowdown is known: a small simulator writes their tables and knows their step times.

It shares no code with the analysis. Workers run 1F1B or its interleaved form with data-parallel ranks. A message begins
when its sender computed it and its receiver finished the computation before; a collective when its last member comes.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from traincope.plan.pipeline.orders.schedules import interleaved, one_forward_one_backward
from traincope.plan.pipeline.orders.shape import Shape

NAMES = {"F": "forward", "B": "backward"}
MS = 1e-3


class Computation(NamedTuple):
    """One forward or backward."""

    kind: str
    dp_rank: int
    part: int
    step: int
    microbatch: int


Seconds = Callable[[Computation], float]
Row = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job and its times in seconds."""

    replicas: int
    stages: int
    microbatches: int
    chunks: int = 1
    steps: Sequence[int] = (10, 20, 21)
    seconds: Seconds = lambda of: 2 * MS if of.kind == "B" else MS
    delay: Seconds = lambda _: 0.0
    """From when a computation could begin to its begin."""
    transfer: Mapping[str, float] = field(
        default_factory=lambda: {"message": 0.05 * MS, "gather": 0.5 * MS, "reduce": 0.8 * MS, "small": 0.02 * MS}
    )

    @property
    def parts(self) -> int:
        return self.stages * self.chunks

    def rank(self, dp_rank: int, stage: int) -> int:
        return stage * self.replicas + dp_rank

    def order(self, stage: int) -> list[tuple[str, int, int]]:
        """Return the computations of a stage: kind, part of the model, microbatch."""
        shape = Shape(ranks=self.stages, microbatches=self.microbatches, chunks=self.chunks)
        actions = interleaved(stage, shape) if self.chunks > 1 else one_forward_one_backward(stage, shape)
        return [(action.kind, action.stage, action.microbatch) for action in actions]


def table(job: Job, *, absolute: bool = False) -> list[Row]:
    """Return the rows of the job. `absolute`: one step begins after the other, otherwise each at 0."""
    rows: list[Row] = []
    offset = 1_700_000_000.0 if absolute else 0.0
    for step in job.steps:
        found, length = simulate(job, step, job.seconds, job.delay)
        rows += [{**row, "start_ts": float(str(row["start_ts"])) + offset} for row in found]
        offset += length + 0.1 if absolute else 0.0
    return rows


def step_seconds(job: Job, seconds: Seconds) -> float:
    """Return the mean step time with these computations and without delays."""
    return mean(simulate(job, step, seconds, lambda _: 0.0)[1] for step in job.steps)


def ideal(job: Job) -> Seconds:
    """Return the mean of each kind of computation over the whole job."""
    every = [
        Computation(kind, dp_rank, part, step, microbatch)
        for step in job.steps
        for dp_rank in range(job.replicas)
        for stage in range(job.stages)
        for kind, part, microbatch in job.order(stage)
    ]
    means = {kind: mean(job.seconds(of) for of in every if of.kind == kind) for kind in "FB"}
    return lambda of: means[of.kind]


def slowdown(job: Job) -> float:
    """Return S."""
    return step_seconds(job, job.seconds) / step_seconds(job, ideal(job))


def explained(job: Job, chosen: Callable[[Computation], bool]) -> float:
    """Return the share of the loss that the chosen computations explain."""
    even, own = ideal(job), step_seconds(job, job.seconds)
    without = step_seconds(job, lambda of: even(of) if chosen(of) else job.seconds(of))
    return (own - without) / (own - step_seconds(job, even))


def simulate(job: Job, step: int, seconds: Seconds, delay: Seconds) -> tuple[list[Row], float]:
    """Run one step from time 0: its rows, and its length."""
    rows: list[Row] = []
    workers = [(dp_rank, stage) for dp_rank in range(job.replicas) for stage in range(job.stages)]
    orders = {stage: job.order(stage) for stage in range(job.stages)}
    gathered: dict[tuple[int, int], float] = {}

    def note(at: tuple[int, int], optype: str, start: float, end: float, *, chunk: int = -1, mb: int = -1) -> None:
        dp_rank, stage = at
        rows.append(
            {
                "dp_rank": dp_rank,
                "stage": stage,
                "rank": job.rank(dp_rank, stage),
                "step": step,
                "optype": optype,
                "start_ts": start,
                "duration": end - start,
                "mc": chunk,
                "mb_id": mb,
            }
        )

    for stage in range(job.stages):
        at = 0.0
        for chunk in range(job.chunks):
            for dp_rank in range(job.replicas):
                note((dp_rank, stage), "params-all-gather", at, at + job.transfer["gather"], chunk=chunk)
            at += job.transfer["gather"]
            gathered[stage, chunk] = at

    free = dict.fromkeys(workers, 0.0)
    done: dict[tuple[int, str, int, int], float] = {}
    last_of_kind: dict[tuple[tuple[int, int], str], float] = {}
    wire: dict[tuple[tuple[int, int], str, str], float] = {}
    position = dict.fromkeys(workers, 0)
    while any(position[worker] < len(orders[worker[1]]) for worker in workers):
        for worker in workers:
            dp_rank, stage = worker
            while position[worker] < len(orders[stage]):
                kind, part, microbatch = orders[stage][position[worker]]
                source = part - 1 if kind == "F" else part + 1
                ready = max(free[worker], gathered[stage, part // job.stages])
                if 0 <= source < job.parts:
                    sent = done.get((dp_rank, kind, source, microbatch))
                    if sent is None:
                        break
                    sender = (dp_rank, source % job.stages)
                    send = max(sent, wire.get((sender, kind, "send"), 0.0))
                    receive = max(last_of_kind.get((worker, kind), 0.0), wire.get((worker, kind, "recv"), 0.0))
                    arrived = max(send, receive) + job.transfer["message"]
                    wire[sender, kind, "send"] = wire[worker, kind, "recv"] = arrived
                    note(sender, f"{NAMES[kind]}-send", send, arrived)
                    note(worker, f"{NAMES[kind]}-recv", receive, arrived)
                    ready = max(ready, arrived)
                of = Computation(kind, dp_rank, part, step, microbatch)
                begin = ready + delay(of)
                end = begin + seconds(of)
                note(worker, f"{NAMES[kind]}-compute", begin, end, chunk=part // job.stages, mb=microbatch)
                done[dp_rank, kind, part, microbatch] = free[worker] = last_of_kind[worker, kind] = end
                position[worker] += 1

    def together(members: list[tuple[int, int]], optype: str, transfer: float, *, chunk: int = -1) -> None:
        end = max(free[member] for member in members) + transfer
        for member in members:
            note(member, optype, free[member], end, chunk=chunk)
            free[member] = end

    for dp_rank in range(job.replicas):
        ends = sorted({(dp_rank, 0), (dp_rank, job.stages - 1)})
        together(ends, "embedding-grads-all-reduce", job.transfer["small"])
    for stage in range(job.stages):
        members = [(dp_rank, stage) for dp_rank in range(job.replicas)]
        for chunk in reversed(range(job.chunks)):
            together(members, "grads-reduce-scatter", job.transfer["reduce"], chunk=chunk)
    together(workers, "optimizer-clip-main-grad", job.transfer["small"])
    for worker in workers:
        note(worker, "optimizer", free[worker], free[worker] + MS)
    return rows, max(free.values()) + MS


def write_csv(path: Path, rows: Sequence[Row]) -> Path:
    """Write a table."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
