"""Windows of an agent by hand: two ranks whose steps are known on paper.

A step takes 100 ms: rank 0 goes forward for 40 and waits for rank 1, which takes 60; then both are in an
all-gather for 10 and go backward for 30. Step 0 warms up. Each rank needs 1 GFLOP a step and could do 100 a
second, so that MFU is 10 %.
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
from traincope.store.rows import Row
from traincope.timeline import build_timeline

MS = 1_000_000
STEP_NS = 100 * MS
BYTES = 4096
SETTINGS = {"model_flops_per_step": 2e9, "peak_flops": {"bfloat16": 1e11}, "tokens_per_step": 64}
FSDP = group("fsdp", 0, 1)


def step_of(number: int, at: int) -> list[Record]:
    """What rank `number` (0 or 1) records in step `at`."""
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
    """Both, with these steps; `more` is of rank 0."""
    made = []
    for number in (0, 1):
        records = [record for at in steps for record in step_of(number, at)]
        own = rank(number, *records, *(more if number == 0 else ()), groups=(FSDP,), coords={"fsdp": number})
        probes = {"modules": "on" if level > 1 else "off: needs level 2, this run records level 1"}
        info = replace(own.info, device=device or {"name": "a device"}, started_wall_ns=0, probes=probes)
        made.append(replace(own, info=info))
    return made


def records(own: Sequence[RankRecords], *, world_size: int | None = None, **settings: Any) -> RunRecords:
    made = run(*own, world_size=world_size, mesh={"fsdp": 2})
    info = replace(made.info, id="job-7", settings=SETTINGS | settings, versions={"torch": "2.13.0", "traincope": "1"})
    return replace(made, info=info, missing=())


def rows_of(analysis: Analysis, *, own_ns: int = MS) -> tuple[Row, ...]:
    """As the agent writes them."""
    return tuple(
        Row(
            rank=ledger.rank,
            step=one.number,
            start_ns=one.start_ns,
            wall_ns=int(ledger.wall_ns[at]),
            own_ns=own_ns,
            anomalous=False,
            terms={term: int(ns[at]) for term, ns in ledger.terms.items() if ns is not None and ns[at]},
        )
        for ledger, timeline in zip(analysis.ledger.ranks, analysis.timeline.ranks, strict=True)
        for at, one in enumerate(timeline.steps)
    )


def statuses(own: Sequence[RankRecords], *, state: RankState = RankState.ALIVE, last_ns: int = 0) -> list[RankStatus]:
    return [
        RankStatus(
            rank=one.rank,
            info=one.info,
            state=state,
            began_wall_ns=0,
            last_record_ns=last_ns,
            last_record_wall_ns=last_ns,
            num_records=100 + one.rank,
            num_dropped=2,
        )
        for one in own
    ]


def window(
    found: RunRecords,
    *,
    faults: Sequence[Fault] = (),
    states: Sequence[RankStatus] | None = None,
    at_ns: int = 0,
    warm_up: int | None = 0,
) -> Window:
    """Everything recorded is new."""
    analysis = analyze(build_timeline(found))
    return Window(
        run=Path("hand-made"),
        attempt=0,
        info=found.info,
        at_ns=at_ns,
        since_ns=0,
        until_ns=1 << 62,
        ranks=tuple(statuses(found.ranks) if states is None else states),
        rows=rows_of(analysis),
        warm_up=warm_up,
        analysis=analysis,
        faults=tuple(faults),
        earlier=(),
        last=False,
    )


def quiet(before: Window, **changes: Any) -> Window:
    """Nothing happened since."""
    return replace(before, **{"rows": (), "analysis": None, "faults": (), "earlier": (), **changes})
