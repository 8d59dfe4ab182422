"""Program of a stage: the records of one recorded step, and the work between their begins and ends."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.attribution.terms import ACTION_TERMS, PHASE_TERMS, UNATTRIBUTED
from traincope.events import OPEN, SEND_OPERATIONS, Flag, Kind, Phase
from traincope.store import RankRecords, read_run

STALLED = "stalled"
ONCE_PER_STEP = (Kind.STEP, Kind.PHASE, Kind.ACTION, Kind.COLLECTIVE, Kind.STALL, Kind.CLOCK, Kind.MEMORY)
CALLS = (Kind.COLLECTIVE, Kind.STALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    """Begin or end of a record, and the rank's own work before it."""

    record: int
    ends: bool
    work_ns: int
    term: str
    """Ledger term of that work: that of the innermost interval. STALLED: the thread waits for a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One step of a stage."""

    source: RankRecords
    records: NDArray[np.void]
    """RECORD_DTYPE, in order of begin."""
    borders: tuple[Border, ...]
    calls: dict[int, int]
    """Group -> collectives per step; messages count per peer and side."""

    def axis(self, record: int) -> str:
        return self.source.groups[int(self.records["group"][record])].axis

    def is_message(self, record: int) -> bool:
        return bool(self.records["flags"][record] & Flag.POINT_TO_POINT)

    def sends(self, record: int) -> bool:
        return self.source.name(int(self.records["name"][record])) in SEND_OPERATIONS

    def channel(self, record: int) -> tuple[int, int, bool]:
        """What counts the sequence of a call: group, and of a message peer and side."""
        each = self.records[record]
        if not self.is_message(record):
            return int(each["group"]), -1, False
        return int(each["group"]), int(each["peer"]), self.sends(record)


def read_program(run: Path) -> Program:
    """Take the shortest recorded step: the machine disturbed it least."""
    (rank,) = read_run(run).ranks
    main = rank.thread("main")
    steps = main[(main["kind"] == Kind.STEP) & (main["end_ns"] != OPEN) & (main["flags"] & Flag.PARTIAL == 0)][1:]
    step = steps[np.argmin(steps["end_ns"] - steps["start_ns"])]
    records = main[(main["step"] == step["step"]) & np.isin(main["kind"], ONCE_PER_STEP)]
    records = records[(records["phase"] != Phase.GC) & (records["end_ns"] != OPEN)]
    records = records[np.argsort(records["start_ns"], kind="stable")].copy()
    for name in ("start_ns", "end_ns"):
        records[name] -= step["start_ns"]
    called = np.isin(records["kind"], CALLS)
    program = Program(source=rank, records=records, borders=(), calls={})
    firsts: dict[tuple[int, int, bool], int] = {}
    for at in np.flatnonzero(called).tolist():
        number = int(records["sequence"][at])
        firsts[program.channel(at)] = min(firsts.get(program.channel(at), number), number)
    counts = dict.fromkeys(firsts, 0)
    for at in np.flatnonzero(called).tolist():
        channel = program.channel(at)
        records["sequence"][at] -= firsts[channel]
        counts[channel] = max(counts[channel], int(records["sequence"][at]) + 1)
    return Program(source=rank, records=records, borders=_borders(program), calls=counts)  # type: ignore[arg-type]


def balanced(programs: Sequence[Program]) -> tuple[Program, ...]:
    """Scale the work of each stage to the same total: the straggler is then the only cause of waits besides the
    schedule. The recorded stages differ, because the recording machine was busy with other work.
    """
    totals = [sum(border.work_ns for border in program.borders if border.term != STALLED) for program in programs]
    usual = sorted(totals)[len(totals) // 2]
    return tuple(
        replace(
            program,
            borders=tuple(replace(border, work_ns=border.work_ns * usual // total) for border in program.borders),
        )
        for program, total in zip(programs, totals, strict=True)
    )


def _borders(program: Program) -> tuple[Border, ...]:
    records = program.records
    count = len(records)
    at = np.concatenate([records["start_ns"], records["end_ns"]])
    record = np.tile(np.arange(count), 2)
    ends = np.repeat([False, True], count)
    instants = records["start_ns"] == records["end_ns"]
    # Of one instant: begins in order, then the end of an instant after its begin, then ends from the inside out.
    order = np.lexsort((np.where(ends & ~np.tile(instants, 2), -record, record), ends, at))
    borders, before, inside = [], int(at[order[0]]), [(-1, UNATTRIBUTED)]
    for index in order.tolist():
        each = int(record[index])
        term = inside[-1][1]
        borders.append(Border(record=each, ends=bool(ends[index]), work_ns=int(at[index]) - before, term=term))
        before = int(at[index])
        if records["kind"][each] in (Kind.STALL, Kind.PHASE, Kind.ACTION):
            entry = (each, _term(program, each))
            inside.remove(entry) if ends[index] else inside.append(entry)
    return tuple(borders)


def _term(program: Program, record: int) -> str:
    each = program.records[record]
    if each["kind"] == Kind.STALL:
        return STALLED
    if each["kind"] == Kind.ACTION:
        return ACTION_TERMS.get(program.source.name(int(each["name"])), UNATTRIBUTED)
    return PHASE_TERMS.get(Phase(int(each["phase"])), UNATTRIBUTED)
