"""Badput: the elapsed time of a job that was not productive, by part and by the cause of the interruption."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from traincope.analysis.efficiency.goodput import Goodput
from traincope.analysis.reliability.interruptions import Interruption, Restart

RESTART, LOST, PRODUCTIVE = "restart", "lost", "productive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Badput:
    """Time of one part and cause."""

    part: str
    """A part of goodput other than `productive`."""
    cause: str | None
    """Cause of the interruption; None: none caused it."""
    ns: int | None
    """None: unknown. A lower bound if `unknown` is not 0."""
    unknown: int = 0
    """Interruptions whose time is unknown and not in `ns`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseCount:
    """Interruptions of one cause."""

    cause: str
    count: int
    ratio: float
    """Share of all interruptions."""


def counts_by_cause(interruptions: Sequence[Interruption]) -> tuple[CauseCount, ...]:
    """Count interruptions, the most common cause first; equal ones in order of their first."""
    counts: dict[str, int] = {}
    for each in interruptions:
        counts[each.cause] = counts.get(each.cause, 0) + each.count
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return tuple(CauseCount(cause=cause, count=count, ratio=count / total) for cause, count in ordered)


def badput_of_job(job: Goodput, restarts: Iterable[Restart]) -> tuple[Badput, ...]:
    """Split a recorded job. All entries sum to the elapsed time without the productive time."""
    restarts = list(restarts)
    gone = [*_of(RESTART, [(each.cause, each.restart_ns, 1) for each in restarts])]
    gone += _of(LOST, [(each.cause, each.lost.ns, 1) for each in restarts if each.lost is not None])
    others = {part: ns for part, ns in job.parts.items() if part not in (PRODUCTIVE, RESTART, LOST)}
    gone += [Badput(part=part, cause=None, ns=ns) for part, ns in others.items()]
    return _largest_first(gone)


def badput_of_logbook(interruptions: Iterable[Interruption]) -> tuple[Badput, ...]:
    """Split what the list of a job has: the time without a run after each interruption, and its lost steps."""
    listed = list(interruptions)
    down = [(each.cause, each.restart_ns, each.count) for each in listed]
    lost = [(each.cause, each.lost_ns, each.count) for each in listed]
    return _largest_first([*_of(RESTART, down), *_of(LOST, lost)])


def _of(part: str, times: Sequence[tuple[str, int | None, int]]) -> Iterator[Badput]:
    """Sum times by cause. `times`: cause, time, and the number of interruptions that it is the time of."""
    for cause in dict.fromkeys(cause for cause, _, _ in times):
        known = [ns for of, ns, _ in times if of == cause and ns is not None]
        unknown = sum(number for of, ns, number in times if of == cause and ns is None)
        yield Badput(part=part, cause=cause, ns=sum(known) if known else None, unknown=unknown)


def _largest_first(entries: Iterable[Badput]) -> tuple[Badput, ...]:
    shown = (entry for entry in entries if entry.ns != 0 or entry.unknown)
    return tuple(sorted(shown, key=lambda entry: -(entry.ns or 0)))
