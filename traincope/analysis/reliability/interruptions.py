"""Interruptions of a recorded job: attempts that did not end well.

The last attempt counts if it failed or hung for good, not if it was stopped from outside or has no known end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from traincope.analysis.efficiency.goodput import AttemptLoss, Goodput, restart_gap_ns
from traincope.analysis.faults.endings import first_end
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.faults.hangs.hang import Hang
from traincope.analysis.faults.restarts import end_of_attempt, noticed_after_ns
from traincope.store import Attempt, LauncherNote
from traincope.store.job.hang_notices import StopState
from traincope.timeline import Timeline

CLEAN_END = "clean_end"
"""Cause of a restart that follows no interruption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """An end of an attempt, or several of one cause that a logbook lists as a total. None is unknown."""

    attempt: str
    """Number of the attempt that it ended; of a logbook, the name of its run, or empty."""
    cause: str
    """Kind of the fault (`FaultKind`); of a logbook, its own word."""
    what: str
    count: int = 1
    """Interruptions that the entry stands for; more than 1 only for a total of a logbook."""
    at_ns: int | None
    """Wall time, ns since the epoch: the begin of a hang, otherwise the last record of the rank that failed, or of the
    attempt.
    """
    to_the_day: bool = False
    """True if only the day is known."""
    detect_ns: int | None = None
    """Time from `at` until the launcher, or for a hang the agent, noticed it."""
    restart_ns: int | None
    """Time from the attempt's last record to the first step of the next, or to its end if it made no step; None also if
    no other followed. Of a logbook, the time without a run.
    """
    lost_steps: int | None
    lost_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The begin of an attempt after another one, and what it cost."""

    cause: str
    restart_ns: int
    lost: AttemptLoss | None
    """None: nothing could be lost."""


def recorded_interruptions(
    job: Goodput, notes: Sequence[LauncherNote], *, last: Interruption | None = None
) -> tuple[Interruption, ...]:
    """Interruptions in order. `last`: the end of the last attempt, if that is one."""
    earlier = (_interruption(before, after, job, notes) for before, after in pairwise(job.attempts) if not before.clean)
    return (*earlier, *([] if last is None else [last]))


def restarts_by_cause(job: Goodput, notes: Sequence[LauncherNote]) -> Iterator[Restart]:
    """All restarts, those after clean ends too: their times sum to the job's restart and lost time."""
    for before, after in pairwise(job.attempts):
        yield Restart(
            cause=CLEAN_END if before.clean else end_of_attempt(before, notes)[0].value,
            restart_ns=restart_gap_ns(before, after),
            lost=_loss(job, before),
        )


def end_of_job(timeline: Timeline, job: Goodput, ends: Sequence[Fault], hangs: Sequence[Hang]) -> Interruption | None:
    """The end of the last attempt, if it failed or hung. The work after its last checkpoint may be lost later."""
    hang = next((hang for hang in hangs if hang.lasted_ns is not None and hang.state is StopState.HANG), None)
    number = str(job.attempts[-1].number)
    if hang is not None:
        detected = hang.detected_after_seconds
        return Interruption(
            attempt=number,
            cause=FaultKind.HANG.value,
            what=hang.evidence,
            at_ns=hang.since_ns,
            detect_ns=None if detected is None else round(detected * 1e9),
            restart_ns=None,
            lost_steps=None,
            lost_ns=None,
        )
    end = first_end(ends)
    if end is None or end.kind is FaultKind.STOPPED:
        return None
    return Interruption(
        attempt=number,
        cause=end.kind.value,
        what=end.what,
        at_ns=end.at_ns,
        detect_ns=_detected_after_ns(end, timeline),
        restart_ns=None,
        lost_steps=None,
        lost_ns=None,
    )


def _detected_after_ns(end: Fault, timeline: Timeline) -> int | None:
    for note in timeline.run.launcher:
        noticed = note.attempt == timeline.run.last_attempt and note.first and note.rank in end.ranks
        if noticed and note.noticed_wall_ns is not None:
            return max(note.noticed_wall_ns - end.at_ns, 0)
    return None


def _interruption(before: Attempt, after: Attempt, job: Goodput, notes: Sequence[LauncherNote]) -> Interruption:
    kind, what = end_of_attempt(before, notes)
    loss = _loss(job, before)
    none_lost = None if before.num_steps else 0  # the next attempt made no step, so nothing shows what was lost
    at_ns, detect_ns = _hang_noticed(before) if kind is FaultKind.HANG else _end_noticed(before, notes)
    return Interruption(
        attempt=str(before.number),
        cause=kind.value,
        what=what,
        at_ns=at_ns,
        detect_ns=detect_ns,
        restart_ns=restart_gap_ns(before, after),
        lost_steps=none_lost if loss is None else loss.steps,
        lost_ns=none_lost if loss is None else loss.ns,
    )


def _end_noticed(before: Attempt, notes: Sequence[LauncherNote]) -> tuple[int, int | None]:
    """The last record of the rank that failed, and the time from it until the launcher noticed the end."""
    noticed = noticed_after_ns(before, notes)
    return (before.last_ns, None) if noticed is None else (before.rank_last_ns[noticed[0]], noticed[1])


def _hang_noticed(before: Attempt) -> tuple[int, int | None]:
    """Begin of the hang in which an attempt ended, and the time from it until the agent knew.

    A notice of an earlier version may lack the begin. Then it is the culprit's last record, unless that is later than
    the notice: its exception was recorded when the hang ended.
    """
    notice = before.hang
    begins_ns = [] if notice is None else [notice.since_ns, *map(before.rank_last_ns.get, notice.culprits[:1])]
    for began_ns in begins_ns:
        if notice is not None and began_ns and began_ns <= notice.at_wall_ns:
            return began_ns, notice.at_wall_ns - began_ns
    return before.last_ns, None


def _loss(job: Goodput, before: Attempt) -> AttemptLoss | None:
    return next((loss for loss in job.losses if loss.attempt == before.number), None)
