"""A recorded pipeline step beside its theory, and what each gap in it is.

In theory every stage takes the mean of the stages' median times, and messages no time: what idles then
the schedule itself leaves idle. With the stages' own medians, what idles before an action beyond that is
imbalance. Of a recorded gap so much is schedule as theory leaves idle before the same action, then so much
imbalance as uneven stages add, and the rest jitter and transfers. That is a drawing of one step; the
ledger's bubble is of whole steps and of all of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from traincope.analysis.schedule import Replica, mean_over_stages
from traincope.plan.actions import Action
from traincope.plan.schedule import Key, Ns, Ran, Timetable, finish

SCHEDULE, IMBALANCE, JITTER = "bubble.schedule", "bubble.imbalance", "bubble.jitter"
"""Terms of the ledger; transfers are not told from jitter here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Idle time of one rank of the pipeline, ns from the step's begin."""

    term: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One step of a pipeline to be drawn: what ran, and what was not running."""

    timetable: Timetable
    gaps: Mapping[int, tuple[Gap, ...]]
    """Rank -> its gaps, in order."""


def recorded_schedule(ran: Timetable) -> Schedule | None:
    """None where the recorded order cannot be replayed."""
    even, uneven = _replayed(ran, even=True), _replayed(ran, even=False)
    if even is None or uneven is None:
        return None
    gaps = {
        rank: tuple(_split(row, even.rows[rank], uneven.rows[rank], spans=(ran.span, even.span, uneven.span)))
        for rank, row in ran.rows.items()
    }
    return Schedule(timetable=ran, gaps=gaps)


def theoretical_schedule(ran: Timetable) -> Schedule | None:
    """The same order with equal stages and free messages; None where it cannot be replayed."""
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
    orders = {rank: tuple(one.action for one in row) for rank, row in ran.rows.items()}
    durations: dict[Action, Ns] = {one.action: one.end - one.start for row in ran.rows.values() for one in row}
    medians: Mapping[Key, Ns] = Replica(orders=orders, durations_ns=durations).medians()
    times = mean_over_stages(medians) if even else medians
    ends = finish(orders, times, {})
    if ends is None:
        return None
    rows = {
        rank: tuple(Ran(a, int(ends[a]) - int(times[a.kind, a.stage]), int(ends[a])) for a in order)
        for rank, order in orders.items()
    }
    return Timetable(rows=rows, span=max(row[-1].end for row in rows.values()))


def _idle(row: tuple[Ran, ...], span: int) -> Iterator[tuple[int, int]]:
    """From nothing to the first action, between each two, and from the last to the span; some are empty."""
    borders = ((0, 0), *((ran.start, ran.end) for ran in row), (span, span))
    for (_, end), (start, _) in pairwise(borders):
        yield end, start


def _split(
    row: tuple[Ran, ...], even: tuple[Ran, ...], uneven: tuple[Ran, ...], *, spans: tuple[int, int, int]
) -> Iterator[Gap]:
    """`spans` of the recorded step and of the two replays."""
    lengths = [
        [end - start for start, end in _idle(of, span)] for of, span in zip((even, uneven), spans[1:], strict=True)
    ]
    for (start, end), by_theory, by_stages in zip(_idle(row, spans[0]), *lengths, strict=True):
        first = min(start + by_theory, end)
        second = min(first + max(by_stages - by_theory, 0), end)
        for term, begin, stop in ((SCHEDULE, start, first), (IMBALANCE, first, second), (JITTER, second, end)):
            if stop > begin:
                yield Gap(term=term, start_ns=begin, end_ns=stop)
