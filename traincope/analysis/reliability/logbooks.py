"""Interruptions and stretches of a job by its logbook."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from traincope.analysis.reliability.interruptions import Interruption
from traincope.analysis.reliability.rolling import Stretch
from traincope.store import Logbook
from traincope.store.logbook import DAY_NS


def logged_interruptions(book: Logbook) -> tuple[Interruption, ...]:
    """Convert the entries. The end of a run dates its interruption, and the begin of the next one ends it."""
    return tuple(_converted(book))


def _converted(book: Logbook) -> Iterator[Interruption]:
    ends = {run.label: run.end_ns for run in book.runs if run.label}
    gaps = {before.label: after.start_ns - before.end_ns for before, after in pairwise(book.runs) if before.label}
    for each in book.interruptions:
        dated = each.label in ends
        yield Interruption(
            attempt=each.label,
            cause=each.cause,
            what=each.note,
            count=each.count,
            at_ns=ends[each.label] if dated else each.at_ns,
            to_the_day=each.to_the_day and not dated,
            restart_ns=gaps.get(each.label, each.down_ns),
            lost_steps=each.lost_steps,
            lost_ns=each.lost_ns,
        )


def logged_stretches(book: Logbook) -> tuple[Stretch, ...]:
    """The runs, as if all of their time were productive: an upper bound."""
    return tuple(
        Stretch(start_ns=run.start_ns, end_ns=run.end_ns, productive_ns=run.end_ns - run.start_ns) for run in book.runs
    )


def running_ns(book: Logbook) -> int | None:
    """Time of all runs; None if the list has no runs."""
    return sum(run.end_ns - run.start_ns for run in book.runs) if book.runs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRatio:
    """Productive share of the time; `low` and `high` are its limits if only days are known, otherwise equal to it."""

    estimate: float
    low: float
    high: float


def logged_ratio(book: Logbook) -> LoggedRatio | None:
    """Productive share of the time, as far as the list has it; otherwise None.

    With two known steps and a step time: the time of the steps between them, which all survived, over the time between
    them. Without, but with runs: the time of the runs without the lost time, if that of every interruption is known.
    """
    if len(book.progress) > 1 and book.step_ns is not None:
        first, last = book.progress[0], book.progress[-1]
        productive_ns, elapsed_ns = (last.step - first.step) * book.step_ns, last.at_ns - first.at_ns
        earliest, latest = DAY_NS * last.to_the_day, DAY_NS * first.to_the_day
        high = min(productive_ns / (elapsed_ns - latest), 1.0) if elapsed_ns > latest else 1.0
        return LoggedRatio(
            estimate=min(productive_ns / elapsed_ns, high),
            low=productive_ns / (elapsed_ns + earliest),
            high=high,
        )
    ran_ns, lost_ns = running_ns(book), [each.lost_ns for each in book.interruptions]
    if ran_ns is None or not book.complete or None in lost_ns:
        return None
    ratio = (ran_ns - sum(ns or 0 for ns in lost_ns)) / book.elapsed_ns
    return LoggedRatio(estimate=ratio, low=ratio, high=ratio)
