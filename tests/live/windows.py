"""Hand-made windows of an agent: two ranks whose steps are computed by hand.

A step takes 100 ms. Forward takes 40 ms on rank 0, which then waits, and 60 ms on rank 1. Then both are in an
all_gather for 10 ms and in backward for 30 ms. Step 0 is the warm-up step. Each rank needs 1 GFLOP per step and has a
peak of 100 GFLOP/s, so MFU is 10 %.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.timeline.build import Row as Record
from tests.timeline.build import collective, group, phase, rank, run, stall, step
from traincope.analysis import Analysis, Fault, analyze
from traincope.events import Kind, Phase
from traincope.live.window import RankState, RankStatus, Window
from traincope.store import RankRecords, RunRecords
from traincope.store.side_tables.rows import Row
from traincope.timeline import build_timeline

MS = 1_000_000
STEP_NS = 100 * MS
BYTES = 4096
SETTINGS = {"model_flops_per_step": 2e9, "peak_flops": {"bfloat16": 1e11}, "tokens_per_step": 64}
FSDP = group("fsdp", 0, 1)


def step_of(number: int, at: int) -> list[Record]:
    """Events of rank `number` (0 or 1) in step `at`."""
    begin = at * STEP_NS
    late = begin + (60 if number else 40) * MS
    gather = collective(late, begin + 70 * MS, sequence=at, at=at, num_bytes=BYTES)
    return [
        step(at, begin, begin + STEP_NS),
        phase(Phase.FORWARD, begin, late, at=at),
        gather,
        stall(gather, late, begin + 70 * MS),
        phase(Phase.BACKWARD, begin + 70 * MS, begin + STEP_NS, at=at),
        measured("resident", (number + 1) * 1_000 + at, begin + STEP_NS, at=at),
        scalar("loss", 3.0 - at + number, begin + 90 * MS, at=at),
    ]


def measured(name: str, value: int, now_ns: int, *, at: int) -> Record:
    return Record(kind=Kind.MEMORY, start_ns=now_ns, end_ns=now_ns, name=name, value=value, step=at)


def scalar(name: str, value: float, now_ns: int, *, at: int) -> Record:
    bits = int(np.float64(value).view(np.int64))
    return Record(kind=Kind.SCALAR, start_ns=now_ns, end_ns=now_ns, name=name, value=bits, step=at)


def ranks(
    *steps: int, more: Sequence[Record] = (), device: dict[str, Any] | None = None, level: int = 1
) -> list[RankRecords]:
    """Both ranks with these steps. `more`: additional events of rank 0."""
    result = []
    for number in (0, 1):
        records = [record for at in steps for record in step_of(number, at)]
        rank_records = rank(number, *records, *(more if number == 0 else ()), groups=(FSDP,), coords={"fsdp": number})
        probes = {"modules": "on" if level > 1 else "off: needs level 2, this run records level 1"}
        info = replace(rank_records.info, device=device or {"name": "a device"}, started_wall_ns=0, probes=probes)
        result.append(replace(rank_records, info=info))
    return result


def records(rank_records: Sequence[RankRecords], *, world_size: int | None = None, **settings: Any) -> RunRecords:
    result = run(*rank_records, world_size=world_size, mesh={"fsdp": 2})
    info = replace(
        result.info, id="job-7", settings=SETTINGS | settings, versions={"torch": "2.13.0", "traincope": "1"}
    )
    return replace(result, info=info, missing=())


def rows_of(analysis: Analysis, *, own_ns: int = MS) -> tuple[Row, ...]:
    """Rows as the agent writes them."""
    return tuple(
        Row(
            rank=ledger.rank,
            step=step_info.number,
            start_ns=step_info.start_ns,
            wall_ns=int(ledger.wall_ns[at]),
            own_ns=own_ns,
            anomalous=False,
            terms={term: int(ns[at]) for term, ns in ledger.terms.items() if ns is not None and ns[at]},
        )
        for ledger, timeline in zip(analysis.ledger.ranks, analysis.timeline.ranks, strict=True)
        for at, step_info in enumerate(timeline.steps)
    )


def statuses(
    rank_records: Sequence[RankRecords], *, state: RankState = RankState.ALIVE, last_ns: int = 0
) -> list[RankStatus]:
    return [
        RankStatus(
            rank=recorded.rank,
            info=recorded.info,
            state=state,
            began_wall_ns=0,
            last_record_ns=last_ns,
            last_record_wall_ns=last_ns,
            num_records=100 + recorded.rank,
            num_dropped=2,
        )
        for recorded in rank_records
    ]


def window(
    run_records: RunRecords,
    *,
    faults: Sequence[Fault] = (),
    states: Sequence[RankStatus] | None = None,
    at_ns: int = 0,
    warm_up: int | None = 0,
) -> Window:
    """Window in which all events are new."""
    analysis = analyze(build_timeline(run_records))
    return Window(
        run=Path("hand-made"),
        attempt=0,
        info=run_records.info,
        at_ns=at_ns,
        since_ns=0,
        until_ns=1 << 62,
        ranks=tuple(statuses(run_records.ranks) if states is None else states),
        rows=rows_of(analysis),
        warm_up=warm_up,
        analysis=analysis,
        faults=tuple(faults),
        earlier=(),
        last=False,
    )


def quiet(before: Window, **changes: Any) -> Window:
    """Window without new rows."""
    return replace(before, **{"rows": (), "analysis": None, "faults": (), "earlier": (), **changes})
