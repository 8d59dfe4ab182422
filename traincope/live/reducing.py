"""Records -> ledger rows and faults, by the same analyses as `report`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from traincope.analysis import Analysis, analyze
from traincope.analysis.coverage import LeftOut
from traincope.analysis.faults import ENDS, Fault, FaultKind
from traincope.analysis.findings import HIGH, MEDIUM
from traincope.analysis.ledger import RankLedger
from traincope.live.rank import RankTail
from traincope.live.slow import SlowSteps
from traincope.live.window import RankState, RankStatus
from traincope.store import Attempt, RunRecords
from traincope.store.attempts import read_attempt
from traincope.store.cards import RunInfo
from traincope.store.launcher import notes_of, read_notes
from traincope.store.layout import attempt_directory
from traincope.store.rows import Row
from traincope.timeline import Timeline, build_timeline

FOREVER_NS = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """What the new steps came to."""

    analysis: Analysis
    rows: tuple[Row, ...]
    faults: tuple[Fault, ...]
    earlier: tuple[Fault, ...]
    """The first time, what an agent before this one has told."""
    since_ns: int
    until_ns: int
    """What lies outside of steps is new where it began in between; on the timeline's axis."""


class Reducer:
    """Of one attempt, from its first window to its last."""

    def __init__(self, run: Path, *, attempt: int, before: Sequence[Row]) -> None:
        """`before`: the rows that an agent before this one has written."""
        self._run, self._attempt = run, attempt
        earlier = (read_attempt(attempt_directory(run, number)) for number in range(attempt))
        self._earlier: tuple[Attempt, ...] = tuple(one for one in earlier if one is not None)
        self.warm_up = min((row.step for row in before), default=None)
        longest: dict[int, int] = {}
        for row in (one for one in before if one.many is None):
            longest[row.step] = max(row.wall_ns, longest.get(row.step, 0))
        self._slow = SlowSteps(longest[step] for step in sorted(longest) if step != self.warm_up)
        self._told: set[tuple[object, ...]] = set()
        self.until_ns = self._told_ns = max((row.start_ns + row.wall_ns for row in before), default=0)
        """What an agent before this one was there for, it has told."""
        self.takes_over = bool(before)
        """Whether it is still to be heard what that was."""

    def reduce(
        self, tails: Sequence[RankTail], ranks: Sequence[RankStatus], *, info: RunInfo, until: int, last: bool
    ) -> Reduced:
        """The steps up to number `until` that have no row yet, and what is new of faults; of all, where it is the
        `last` time.
        """
        timeline = build_timeline(self._records(tails, info))
        done = {tail.rank: tail.done for tail in tails}
        numbers = {step.number for rank in timeline.ranks for step in rank.steps}
        if self.warm_up is None:
            self.warm_up = min((number for number in numbers if number <= until), default=None)
        new = {number for number in numbers if max(done.values()) < number <= until}
        left_out = LeftOut(
            warm_up=frozenset(number for number in numbers if number == self.warm_up), dropped=frozenset(numbers - new)
        )
        analysis = analyze(timeline, out=left_out)
        rows = [row for rank in analysis.ledger.ranks for row in _rows(rank, timeline, after=done[rank.rank])]
        rows = [row for row in rows if row.step <= until]
        since_ns, self.until_ns = self.until_ns, FOREVER_NS if last else max(self.until_ns, _end_ns(timeline, until))
        faults = (*self._slow_steps(rows), *self._new(analysis.faults, ranks, until=FOREVER_NS if last else until))
        odd = {fault.step for fault in faults if fault.is_fault}
        return Reduced(
            analysis=analysis,
            rows=tuple(replace(row, anomalous=row.step in odd) for row in rows),
            faults=tuple(sorted(faults, key=lambda fault: fault.at_ns)),
            earlier=self._earlier_faults(analysis.faults),
            since_ns=since_ns,
            until_ns=self.until_ns,
        )

    def _records(self, tails: Sequence[RankTail], info: RunInfo) -> RunRecords:
        return RunRecords(
            path=self._run,
            info=info,
            ranks=tuple(tail.records() for tail in tails),
            attempts=self._attempt + 1,
            missing=(),
            problems=(),
            earlier=self._earlier,
            launcher=read_notes(notes_of(self._run)),
        )

    def _slow_steps(self, rows: Sequence[Row]) -> Iterator[Fault]:
        longest: dict[int, Row] = {}
        for row in rows:
            if row.step != self.warm_up and row.wall_ns > getattr(longest.get(row.step), "wall_ns", -1):
                longest[row.step] = row
        steps = sorted(longest)
        judged = self._slow.judge([longest[step].wall_ns for step in steps])
        for step, times in zip(steps, judged, strict=True):
            if times is not None:
                yield Fault(
                    kind=FaultKind.SLOW_STEP,
                    at_ns=longest[step].start_ns,
                    ranks=(longest[step].rank,),
                    step=step,
                    what=f"took {times:.1f} times the median",
                    evidence=f"{longest[step].wall_ns / 1e6:.1f} ms on the rank where it took most",
                    confidence=MEDIUM,
                    lasted_ns=longest[step].wall_ns,
                )

    def _new(self, faults: Sequence[Fault], ranks: Sequence[RankStatus], *, until: int) -> Iterator[Fault]:
        """What nobody was told yet, up to that step; how a rank ended, once it is over."""
        states = {rank.rank: rank.state for rank in ranks}
        for fault in faults:
            end = fault.kind in ENDS and len(fault.ranks) == 1
            if end:
                chosen = states.get(fault.ranks[0]) is not RankState.ALIVE
            else:
                chosen = fault.kind is not FaultKind.SLOW_STEP and self._is_due(fault, until=until)
            key = ("end", fault.ranks) if end else (fault.kind, fault.at_ns, fault.what)
            if chosen and key not in self._told:
                self._told.add(key)
                yield _gone(fault) if end and states.get(fault.ranks[0]) is RankState.GONE else fault

    def _earlier_faults(self, faults: Sequence[Fault]) -> tuple[Fault, ...]:
        """Those of slow steps are judged by rows that are gone, and how ranks ended is told anew."""
        if not self.takes_over:
            return ()
        self.takes_over = False
        return tuple(
            fault
            for fault in faults
            if fault.at_ns <= self._told_ns and fault.kind is not FaultKind.SLOW_STEP and fault.kind not in ENDS
        )

    def _is_due(self, fault: Fault, *, until: int) -> bool:
        ended_ns = fault.at_ns + (fault.lasted_ns or 0)
        return self._told_ns < fault.at_ns and ended_ns <= self.until_ns and (fault.step is None or fault.step <= until)


def _rows(rank: RankLedger, timeline: Timeline, *, after: int) -> Iterator[Row]:
    """The complete steps of one rank that come after the one of that number."""
    (own,) = (one for one in timeline.ranks if one.rank == rank.rank)
    terms: Mapping[str, list[int]] = {
        term: values.tolist() for term, values in rank.terms.items() if values is not None
    }
    walls = rank.wall_ns.tolist()
    for at, step in enumerate(own.steps):
        if step.number > after:
            yield Row(
                rank=rank.rank,
                step=step.number,
                start_ns=step.start_ns,
                wall_ns=walls[at],
                own_ns=step.own_ns,
                anomalous=False,
                terms={term: values[at] for term, values in terms.items() if values[at]},
            )


def _end_ns(timeline: Timeline, step: int) -> int:
    """When the last rank finished it, or one before it."""
    return max((one.end_ns for rank in timeline.ranks for one in rank.steps if one.number <= step), default=0)


def _gone(end: Fault) -> Fault:
    """What records alone leave open: whether its process is still there, the agent has seen."""
    if end.kind is not FaultKind.NO_END:
        return end
    return replace(end, kind=FaultKind.KILLED, what="its process is gone, without a word", confidence=HIGH)
