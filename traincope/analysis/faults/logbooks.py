"""Interruptions and notes of a logbook as faults and marks."""

from collections.abc import Iterator
from dataclasses import replace

from traincope.analysis.confidence import MEDIUM
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.store import Logbook
from traincope.store.logbook import UNKNOWN_CAUSE
from traincope.units import count, duration

DAY = "only the day is known"
NO_TIME = "the time is unknown"


def logged_history(book: Logbook) -> tuple[Fault, ...]:
    """All entries with a cause or a text, by time. Those without a time follow."""
    entries = [*_interruptions(book), *_notes(book)]
    timed = sorted((entry for entry in entries if entry.timed), key=lambda entry: entry.at_ns)
    last_ns = timed[-1].at_ns if timed else book.start_ns or 0
    return (*timed, *(replace(entry, at_ns=last_ns) for entry in entries if not entry.timed))


def _interruptions(book: Logbook) -> Iterator[Fault]:
    ends = {run.label: run.end_ns for run in book.runs if run.label}
    for each in book.interruptions:
        at_ns = ends.get(each.label, each.at_ns)
        of_run = f"run {each.label} ended" if each.label in ends else count(each.count, "interruption")
        lost = [] if each.lost_steps is None else [count(each.lost_steps, "lost step")]
        lost += [] if each.lost_ns is None else [f"{duration(each.lost_ns)} of lost steps"]
        yield Fault(
            kind=FaultKind.INTERRUPTION,
            at_ns=at_ns or 0,
            timed=at_ns is not None,
            what=f"{of_run}: {_cause(each.cause, each.note)}",
            evidence="; ".join([*lost, *_precision(at_ns, day=each.to_the_day and each.label not in ends)]),
            confidence=MEDIUM,
            lasted_ns=each.down_ns,
        )


def _notes(book: Logbook) -> Iterator[Fault]:
    for each in book.notes:
        yield Fault(
            kind=FaultKind.NOTE,
            at_ns=each.at_ns or 0,
            timed=each.at_ns is not None,
            what=": ".join(filter(None, (f"run {each.label}" if each.label else "", _cause(each.cause, each.note)))),
            evidence="; ".join(_precision(each.at_ns, day=each.to_the_day)),
            confidence=MEDIUM,
        )


def _cause(cause: str, note: str) -> str:
    """The cause and the text of the list, once if they are the same words."""
    named = f"cause {cause or UNKNOWN_CAUSE}".replace("_", " ")
    return f"{named} ({note})" if note and note.replace(" ", "_") != cause else named


def _precision(at_ns: int | None, *, day: bool) -> Iterator[str]:
    if at_ns is None:
        yield NO_TIME
    elif day:
        yield DAY
