"""Reduction of events to ledger rows and faults, with the analyses of `report`."""

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from traincope.analysis import Analysis, analyze
from traincope.analysis.confidence import MEDIUM
from traincope.analysis.faults.anomalies.corruption import axis_of
from traincope.analysis.faults.anomalies.data_order import data_faults, data_order_of
from traincope.analysis.faults.faults import ENDS, Fault, FaultKind
from traincope.analysis.ledger.coverage import ExcludedSteps, undetailed_steps
from traincope.errors import TraincopeError
from traincope.events import END_OF_TIME_NS
from traincope.live.node.noticing.remembered import ChangedSteps, GrowingMemory, SlowSteps
from traincope.live.node.noticing.state_watch import StateWatch
from traincope.live.node.rank import MAIN, RankTail
from traincope.live.window import CopiedRank, RankState, RankStatus
from traincope.metrics.values import step_rows
from traincope.store import Attempt, RunRecords
from traincope.store.job.attempts import read_attempt, read_attempts
from traincope.store.job.batches import read_batches
from traincope.store.job.launcher import notes_path, read_notes
from traincope.store.job.manifests import RunInfo
from traincope.store.job.requests import read_requests
from traincope.store.layout import attempt_directory, rank_directory, record_files
from traincope.store.side_tables.rows import Row
from traincope.timeline import Timeline, build_timeline, with_peers
from traincope.timeline.collectives.elsewhere import Elsewhere
from traincope.timeline.device import on_device
from traincope.units import size as size_of

logger = logging.getLogger(__name__)

DATA_STEPS = 3
"""Steps of an attempt after which the order of its data is compared with the attempts before."""
DATA_FAULTS = (FaultKind.DATA_FED_AGAIN, FaultKind.DATA_SKIPPED)
MAX_DATA_BYTES = 512 << 20
"""Most bytes that are read for it, of the records of all attempts of the node's ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """Result of reducing the new steps."""

    analysis: Analysis
    rows: tuple[Row, ...]
    faults: tuple[Fault, ...]
    earlier: tuple[Fault, ...]
    """Faults that an earlier agent reported. Only the first result has them."""
    since_ns: int
    until_ns: int
    """Bounds on the timeline's axis. An interval outside of steps is new if it began between them."""


class Reducer:
    """Reducer of one attempt, from its first window to its last."""

    def __init__(self, run: Path, *, attempt: int, before: Sequence[Row]) -> None:
        """`before`: rows that an earlier agent wrote."""
        self._run, self._attempt = run, attempt
        directories = [attempt_directory(run, number) for number in range(attempt + 1)]
        self._earlier: tuple[Attempt, ...] = tuple(read_attempts(directories))
        self.warm_up = min((row.step for row in before), default=None)
        longest: dict[int, int] = {}
        for row in (row for row in before if row.merged is None):
            longest[row.step] = max(_without_own_ns(row), longest.get(row.step, 0))
        self._changed, self._growing = ChangedSteps(), GrowingMemory()
        self._slow = SlowSteps(longest[step] for step in sorted(longest) if step != self.warm_up)
        self._reported: set[tuple[object, ...]] = set()
        self._state = StateWatch(run, attempt=attempt)
        self._data: tuple[Fault, ...] | None = None if attempt else ()
        """Faults in the order of the data; None: it is not compared yet."""
        self._compared_before = any(self._is_comparable(row.step) for row in before)
        """An earlier agent has compared it."""
        self.until_ns = self._reported_until_ns = max((row.start_ns + row.wall_ns for row in before), default=0)
        """An earlier agent reported all faults up to this time."""
        self.takes_over = bool(before)
        """True until the earlier agent's faults have been passed on."""

    def reduce(
        self,
        tails: Sequence[RankTail],
        ranks: Sequence[RankStatus],
        *,
        info: RunInfo,
        until: int,
        last: bool,
        copied: Sequence[CopiedRank] = (),
        elsewhere: Elsewhere | None = None,
    ) -> Reduced:
        """Reduce the steps up to `until` that have no row yet, and find new faults. `last`: include all faults.

        `copied`: ranks whose copies split the waits in groups that span hosts. `elsewhere` splits those in groups with
        hosts without copies.
        """
        timeline = build_timeline(self._records(tails, info))
        members = with_peers(timeline, [rank.records for rank in copied]) if copied else None
        members = members if elsewhere is None else replace(members or timeline, elsewhere=elsewhere)
        measured = on_device(timeline, until=None if last else until)
        done = {tail.rank: tail.done for tail in tails}
        numbers = {step.number for rank in measured.ranks for step in rank.steps}
        if self.warm_up is None:
            self.warm_up = min((number for number in numbers if number <= until), default=None)
        new = {number for number in numbers if max(done.values()) < number <= until}
        excluded_steps = ExcludedSteps(
            warm_up=frozenset(number for number in numbers if number == self.warm_up),
            dropped=frozenset(numbers - new),
            unwatched=(undetailed_steps(measured) | undetailed_steps(members or timeline)) & new,
        )
        analysis = analyze(timeline, excluded_steps=excluded_steps, members=members, measured=measured)
        ledgers = {rank.rank: rank for rank in analysis.ledger.ranks}
        light = excluded_steps.unwatched
        rows = [
            row
            for rank in measured.ranks
            for row in step_rows(ledgers[rank.rank], rank, light=light, after=done[rank.rank])
        ]
        rows = [row for row in rows if row.step <= until]
        since_ns = self.until_ns
        self.until_ns = END_OF_TIME_NS if last else max(self.until_ns, _end_ns(timeline, until))
        bad_state = self._state.look(done, to_axis=axis_of(timeline.clocks), last=last)
        found = (*analysis.faults, *self._data_faults(tails, until=until, last=last), *bad_state)
        earlier = self._earlier_faults(found)
        faults = (
            *self._odd_steps([row for row in rows if not _is_delayed(row, timeline)]),
            *self._growing_memory(timeline),
            *self._new_faults(found, ranks, until=END_OF_TIME_NS if last else until),
        )
        odd = {fault.step for fault in faults if fault.is_fault}
        return Reduced(
            analysis=analysis,
            rows=tuple(replace(row, anomalous=row.step in odd) for row in rows),
            faults=tuple(sorted(faults, key=lambda fault: fault.at_ns)),
            earlier=earlier,
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
            requests=read_requests(self._run, attempt=self._attempt),
            launcher=read_notes(notes_path(self._run)),
        )

    def _odd_steps(self, rows: Sequence[Row]) -> Iterator[Fault]:
        """Slow steps, and a step time that rose for good."""
        longest: dict[int, Row] = {}
        for row in rows:
            if row.step != self.warm_up and (
                row.step not in longest or _without_own_ns(row) > _without_own_ns(longest[row.step])
            ):
                longest[row.step] = row
        steps = sorted(longest)
        multiples = self._slow.judge([_without_own_ns(longest[step]) for step in steps])
        for step, times in zip(steps, multiples, strict=True):
            if times is not None:
                yield Fault(
                    kind=FaultKind.SLOW_STEP,
                    at_ns=longest[step].start_ns,
                    ranks=(longest[step].rank,),
                    step=step,
                    what=f"took {times:.1f} times the median",
                    evidence=f"{longest[step].wall_ns / 1e6:.1f} ms on its slowest rank",
                    confidence=MEDIUM,
                    lasted_ns=longest[step].wall_ns,
                )
        rise = self._changed.judge((step, _without_own_ns(longest[step])) for step in steps)
        if rise is not None:
            yield Fault(
                kind=FaultKind.STEP_TIME_CHANGE,
                at_ns=longest[steps[-1]].start_ns,
                step=rise.step,
                what=f"the median step rose from {rise.before_ns / 1e6:.1f} to {rise.after_ns / 1e6:.1f} ms",
                evidence="the length of the latest steps on their slowest ranks",
                confidence=MEDIUM,
            )

    def _growing_memory(self, timeline: Timeline) -> Iterator[Fault]:
        for growth in self._growing.judge(timeline):
            yield Fault(
                kind=FaultKind.MEMORY_GROWTH,
                at_ns=growth.at_ns,
                ranks=(growth.rank,),
                step=growth.step,
                what=f"{growth.measure} memory grows by {size_of(100 * growth.bytes_per_step)} per 100 steps",
                evidence=f"{size_of(growth.last_bytes)} after the latest step",
                confidence=MEDIUM,
            )

    def _data_faults(self, tails: Sequence[RankTail], *, until: int, last: bool) -> tuple[Fault, ...]:
        """Batches that the attempt was fed again, or was not fed. They are looked for once, after its first steps."""
        if self._data is None and self.warm_up is not None and (last or self._is_comparable(until)):
            try:
                self._data = tuple(self._compare_data([tail.rank for tail in tails]))
            except (TraincopeError, OSError) as error:
                logger.warning("the order of the data after the restart is not compared: %s", error)
                self._data = ()
        return self._data or ()

    def _is_comparable(self, step: int) -> bool:
        return self.warm_up is not None and step >= self.warm_up + DATA_STEPS - 1

    def _compare_data(self, ranks: Collection[int]) -> Iterator[Fault]:
        """Compare the attempt with those before. The records of its first steps may be released, so they are read."""
        directories = {number: attempt_directory(self._run, number) for number in range(self._attempt + 1)}
        paths = [rank_directory(self._run, attempt=number, rank=rank) for number in directories for rank in ranks]
        size = sum(path.stat().st_size for rank in paths for path in record_files(rank, thread=MAIN))
        if size > MAX_DATA_BYTES:
            logger.warning(
                "the order of the data after the restart is not compared: %d MiB of records; the report compares it",
                size >> 20,
            )
            return
        this = read_attempt(directories[self._attempt])
        attempts = self._earlier if this is None else (*self._earlier, this)
        order = data_order_of(attempts, lambda number: read_batches(directories[number], ranks=ranks))
        if order is not None:
            latest = tuple(each for each in order.continuations if each.attempt == self._attempt)
            yield from data_faults(replace(order, continuations=latest))

    def _new_faults(self, faults: Sequence[Fault], ranks: Sequence[RankStatus], *, until: int) -> Iterator[Fault]:
        """Faults up to step `until` that were not reported yet. A rank's end is reported once the rank is over."""
        states = {rank.rank: rank.state for rank in ranks}
        for fault in faults:
            if fault.kind in (FaultKind.HANG, FaultKind.STALL):
                continue  # the watchdog's
            is_end = fault.kind in ENDS and len(fault.ranks) == 1
            if is_end:
                is_reportable = states.get(fault.ranks[0]) is not RankState.ALIVE
            else:
                is_reportable = fault.kind is not FaultKind.SLOW_STEP and self._is_due(fault, until=until)
            key = ("end", fault.ranks) if is_end else _key(fault)
            if is_reportable and key not in self._reported:
                self._reported.add(key)
                yield fault

    def _earlier_faults(self, faults: Sequence[Fault]) -> tuple[Fault, ...]:
        """Faults of an earlier agent.

        Slow steps are left out because their rows are gone; ends of ranks are reported again.
        """
        if not self.takes_over:
            return ()
        self.takes_over = False
        earlier = tuple(
            fault
            for fault in faults
            if fault.at_ns <= self._reported_until_ns
            and fault.kind is not FaultKind.SLOW_STEP
            and fault.kind not in ENDS
            and (self._compared_before or fault.kind not in DATA_FAULTS)
        )
        self._reported.update(map(_key, earlier))
        return earlier

    def _is_due(self, fault: Fault, *, until: int) -> bool:
        # Data is compared some steps after the restart. An earlier agent may have ended before.
        is_new = self._reported_until_ns < fault.at_ns or fault.kind in DATA_FAULTS
        return is_new and fault.until_ns <= self.until_ns and (fault.step is None or fault.step <= until)


def _key(fault: Fault) -> tuple[object, ...]:
    return fault.kind, fault.at_ns, fault.what


def _is_delayed(row: Row, timeline: Timeline) -> bool:
    """Return whether a requested kernel trace made the step longer."""
    return any(request.delays(row.step) for request in timeline.run.requests)


def _without_own_ns(row: Row) -> int:
    """Time of a step without the recorder's own."""
    return row.wall_ns - row.own_ns


def _end_ns(timeline: Timeline, step: int) -> int:
    """End of this step, or of the last one before it, on the last rank."""
    return max((ended.end_ns for rank in timeline.ranks for ended in rank.steps if ended.number <= step), default=0)
