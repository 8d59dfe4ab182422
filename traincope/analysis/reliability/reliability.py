"""Reliability of a job: the sum of the analyses of this folder."""

from collections.abc import Sequence
from dataclasses import dataclass

from traincope.analysis.efficiency.background_saves import BackgroundSaves
from traincope.analysis.efficiency.goodput import Goodput
from traincope.analysis.faults.faults import Fault
from traincope.analysis.faults.hangs.hang import Hang
from traincope.analysis.reliability.badput import (
    Badput,
    CauseCount,
    badput_of_job,
    badput_of_logbook,
    counts_by_cause,
)
from traincope.analysis.reliability.cadence import Cadence, Saves, cadence, recorded_saves
from traincope.analysis.reliability.interruptions import (
    Interruption,
    end_of_job,
    recorded_interruptions,
    restarts_by_cause,
)
from traincope.analysis.reliability.logbooks import (
    logged_interruptions,
    logged_ratio,
    logged_stretches,
    running_ns,
)
from traincope.analysis.reliability.mtbf import Mtbf, mtbf
from traincope.analysis.reliability.rolling import Rolling, job_stretches, rolling
from traincope.store import LauncherNote, Logbook
from traincope.timeline import Timeline
from traincope.units import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Interruptions of a job, and what they cost."""

    elapsed_ns: int
    """From the first start to the end, over all attempts; of a logbook, the observed period."""
    running_ns: int | None
    """Time in which an attempt ran, from its first record to its last; None: unknown."""
    productive_ratio: float | None
    """The same number as in goodput. Of a logbook, by its steps and times."""
    productive_low_ratio: float | None = None
    """Limits of the productive ratio of a logbook, which may have days only. None for a recorded job."""
    productive_high_ratio: float | None = None
    reason: str | None
    """Reason for an unknown productive ratio."""
    interruptions: tuple[Interruption, ...]
    causes: tuple[CauseCount, ...]
    badput: tuple[Badput, ...]
    """The largest first. Of a recorded job, they sum to the elapsed time without the productive time."""
    mtbf: Mtbf | None
    mtbf_reason: str | None = None
    """Reason for an unknown mean time between interruptions."""
    rolling: tuple[Rolling, ...]
    """Rolling goodput; of a logbook, the share of time in which a run ran."""
    saves: Saves | None = None
    """None: the last attempt saved no checkpoint."""
    cadence: Cadence | None = None
    """None: there was no interruption, or fewer than two saves."""

    @property
    def num_interruptions(self) -> int:
        return sum(each.count for each in self.interruptions)

    @property
    def running_ratio(self) -> float | None:
        return None if self.running_ns is None or not self.elapsed_ns else self.running_ns / self.elapsed_ns

    @property
    def mean_restart_ns(self) -> float | None:
        """Mean time to restart, over the interruptions where it is known."""
        return _mean([each.restart_ns for each in self.interruptions])

    @property
    def mean_detect_ns(self) -> float | None:
        """Mean time until an interruption was noticed, over those where it is known."""
        return _mean([each.detect_ns for each in self.interruptions])


def reliability(
    timeline: Timeline,
    job: Goodput | None,
    *,
    ends: Sequence[Fault] = (),
    hangs: Sequence[Hang] = (),
    background: BackgroundSaves | None = None,
) -> Reliability | None:
    """Reliability of a run. None if no attempt made a step, and for imported traces and tables."""
    if timeline.run.logbook is not None:
        return of_logbook(timeline.run.logbook)
    if job is None:
        return None
    last = end_of_job(timeline, job, ends, hangs)
    saves = recorded_saves(timeline, background)
    return of_job(job, timeline.run.launcher, last=last, saves=saves, timeline=timeline)


def of_job(
    job: Goodput,
    notes: Sequence[LauncherNote] = (),
    *,
    last: Interruption | None = None,
    saves: Saves | None = None,
    timeline: Timeline | None = None,
) -> Reliability:
    """Reliability of a recorded job, which may still run.

    `last`: the failure that ended it. `timeline`: of its last attempt; without, there is no rolling goodput.
    """
    found = recorded_interruptions(job, notes, last=last)
    ran_ns = sum(attempt.last_ns - attempt.began_ns for attempt in job.attempts)
    between = mtbf(ran_ns, sum(each.count for each in found), running=True)
    stretches = None if timeline is None else job_stretches(job, timeline)
    began_ns = job.attempts[0].began_ns
    restart_ns = _mean([each.restart_ns for each in found])
    return Reliability(
        elapsed_ns=job.elapsed_ns,
        running_ns=ran_ns,
        productive_ratio=job.productive_ratio,
        reason=job.reason,
        interruptions=found,
        causes=counts_by_cause(found),
        badput=badput_of_job(job, restarts_by_cause(job, notes)),
        mtbf=between,
        mtbf_reason=None if between is not None else "no time passed between its first and its last record",
        rolling=() if stretches is None else rolling(stretches, start_ns=began_ns, end_ns=began_ns + job.elapsed_ns),
        saves=saves,
        cadence=cadence(saves, between, restart_ns=restart_ns or 0.0),
    )


def of_logbook(book: Logbook) -> Reliability:
    """Reliability of a job by its logbook, with None where the logbook says nothing."""
    found, ran_ns = logged_interruptions(book), running_ns(book)
    ratio = logged_ratio(book)
    number = sum(each.count for each in found)
    base_ns = book.elapsed_ns if ran_ns is None else ran_ns
    stretches = logged_stretches(book)
    start_ns = book.start_ns or 0
    return Reliability(
        elapsed_ns=book.elapsed_ns,
        running_ns=ran_ns,
        productive_ratio=None if ratio is None else ratio.estimate,
        productive_low_ratio=None if ratio is None else ratio.low,
        productive_high_ratio=None if ratio is None else ratio.high,
        reason=_why_unknown(book, found) if ratio is None else None,
        interruptions=found,
        causes=counts_by_cause(found),
        badput=badput_of_logbook(found),
        mtbf=mtbf(base_ns, number, running=ran_ns is not None) if book.complete else None,
        mtbf_reason=None if book.complete else "the list does not have all interruptions of its period",
        rolling=rolling(stretches, start_ns=start_ns, end_ns=start_ns + book.elapsed_ns) if stretches else (),
    )


def _why_unknown(book: Logbook, found: Sequence[Interruption]) -> str:
    if not book.runs:
        return "the list has no two dated steps with a step time"
    unknown = sum(each.count for each in found if each.lost_ns is None)
    total = count(sum(each.count for each in found), "interruption")
    return f"the list has no time of the lost steps for {unknown} of {total}"


def _mean(times_ns: Sequence[int | None]) -> float | None:
    known = [ns for ns in times_ns if ns is not None]
    return sum(known) / len(known) if known else None
