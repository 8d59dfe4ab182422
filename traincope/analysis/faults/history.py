"""Faults of all attempts of a job, each with its attempt and the training's own number of its step.

An attempt numbers its steps anew. The steps of the state from which it continued give the training's number.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from traincope.analysis.faults.anomalies.bad_steps import rollbacks, skipped_steps
from traincope.analysis.faults.anomalies.hardware import hardware_faults
from traincope.analysis.faults.anomalies.logged_values import logged_faults
from traincope.analysis.faults.anomalies.traced_values import first_not_finite
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.faults.logbooks import logged_history
from traincope.analysis.faults.marks import marks
from traincope.store import Attempt
from traincope.store.job.attempts import continued_from
from traincope.timeline import Timeline


def with_history(faults: Sequence[Fault], timeline: Timeline, attempts: Sequence[Attempt]) -> tuple[Fault, ...]:
    """The faults of the last attempt and those of the attempts before, by time.

    `attempts`: all of them, in order. How an earlier attempt ended is in the restart after it.
    """
    if timeline.run.logbook is not None:
        return logged_history(timeline.run.logbook)
    last = timeline.run.last_attempt
    earlier = [replace(fault, attempt=each.run.last_attempt) for each in timeline.earlier for fault in _own(each)]
    current = [replace(fault, attempt=last) for fault in faults]
    every = sorted((*earlier, *current), key=lambda fault: fault.at_ns)
    if timeline.run.attempts < 2 and all(attempt.resumed_step is None for attempt in attempts):
        return tuple(every)
    by_number, starts = {attempt.number: attempt for attempt in attempts}, continued_from(attempts)
    return tuple(
        replace(fault, training_step=_training_step(fault, by_number.get(fault.attempt or 0), starts))
        for fault in every
    )


def training_step_offset(attempts: Sequence[Attempt]) -> int | None:
    """The training's own number of a step of the last attempt minus the number in its records. None: unknown."""
    if not attempts:
        return None
    start, first = continued_from(attempts)[attempts[-1].number], attempts[-1].first_number
    return None if start is None or first is None else start + 1 - first


def _own(attempt: Timeline) -> Iterator[Fault]:
    yield from logged_faults(attempt)
    yield from first_not_finite(attempt)
    yield from skipped_steps(attempt)
    yield from rollbacks(attempt)
    yield from hardware_faults(attempt)
    yield from (mark for mark in marks(attempt) if mark.kind != FaultKind.RECORDER_LEVEL)


def _training_step(fault: Fault, attempt: Attempt | None, starts: dict[int, int | None]) -> int | None:
    start = None if attempt is None else starts[attempt.number]
    made = None if attempt is None or fault.step is None else attempt.steps_until(fault.step)
    return None if start is None or made is None else start + made
