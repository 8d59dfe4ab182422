"""Gaps of one recorded pipeline step, and the same step in theory.

In theory every stage takes the mean of the stages' median times, and messages take no time: the idle time that remains
is the schedule's. With the stages' own medians, the additional idle time before an action is imbalance. A recorded gap
consists of the schedule's idle time before the same action, then the imbalance, and then jitter and transfers. This is
for the drawing of one step; the ledger's bubble covers all steps.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from traincope.analysis.pipeline.schedule import Replica, mean_over_stages
from traincope.plan.pipeline.actions import Action
from traincope.plan.pipeline.schedule import Key, Ns, TimedAction, Timetable, finish

SCHEDULE, IMBALANCE, JITTER = "bubble.schedule", "bubble.imbalance", "bubble.jitter"
"""Terms of the ledger. Here jitter includes transfers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Idle time of one rank of the pipeline, ns from the step's begin."""

    term: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One step of a pipeline to draw: its actions and its gaps."""

    timetable: Timetable
    gaps: Mapping[int, tuple[Gap, ...]]
    """Rank -> its gaps, in order."""


def recorded_schedule(ran: Timetable) -> Schedule | None:
    """Find the gaps of a recorded step; None if its order cannot be replayed."""
    even, uneven = _replayed(ran, even=True), _replayed(ran, even=False)
    if even is None or uneven is None:
        return None
    gaps = {
        rank: tuple(_split(row, even.rows[rank], uneven.rows[rank], spans=(ran.span, even.span, uneven.span)))
        for rank, row in ran.rows.items()
    }
    return Schedule(timetable=ran, gaps=gaps)


def theoretical_schedule(ran: Timetable) -> Schedule | None:
    """Replay the same order with equal stages and free messages; None if it cannot be replayed."""
    even = _replayed(ran, even=True)
    if even is None:
        return None
    gaps = {
        rank: tuple(
            Gap(term=SCHEDULE, start_ns=start, end_ns=end) for start, end in _idle(row, even.span) if end > start
        )
        for rank, row in even.rows.items()
    }
    return Schedule(timetable=even, gaps=gaps)


def _replayed(ran: Timetable, *, even: bool) -> Timetable | None:
    orders = {rank: tuple(run.action for run in row) for rank, row in ran.rows.items()}
    durations: dict[Action, Ns] = {run.action: run.end - run.start for row in ran.rows.values() for run in row}
    medians: Mapping[Key, Ns] = Replica(orders=orders, durations_ns=durations).medians()
    times = mean_over_stages(medians) if even else medians
    ends = finish(orders, times, {})
    if ends is None:
        return None
    rows = {
        rank: tuple(TimedAction(a, int(ends[a]) - int(times[a.kind, a.stage]), int(ends[a])) for a in order)
        for rank, order in orders.items()
    }
    return Timetable(rows=rows, span=max(row[-1].end for row in rows.values()))


def _idle(row: tuple[TimedAction, ...], span: int) -> Iterator[tuple[int, int]]:
    """Yield the times before the first action, between actions, and after the last one; some are empty."""
    borders = ((0, 0), *((ran.start, ran.end) for ran in row), (span, span))
    for (_, end), (start, _) in pairwise(borders):
        yield end, start


def _split(
    row: tuple[TimedAction, ...],
    even: tuple[TimedAction, ...],
    uneven: tuple[TimedAction, ...],
    *,
    spans: tuple[int, int, int],
) -> Iterator[Gap]:
    """Split a rank's gaps by term. `spans` are the lengths of the recorded step and of the two replays."""
    lengths = [
        [end - start for start, end in _idle(of, span)] for of, span in zip((even, uneven), spans[1:], strict=True)
    ]
    for (start, end), by_theory, by_stages in zip(_idle(row, spans[0]), *lengths, strict=True):
        first = min(start + by_theory, end)
        second = min(first + max(by_stages - by_theory, 0), end)
        for term, begin, stop in ((SCHEDULE, start, first), (IMBALANCE, first, second), (JITTER, second, end)):
            if stop > begin:
                yield Gap(term=term, start_ns=begin, end_ns=stop)
