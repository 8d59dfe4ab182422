"""Findings about restarts, and about the interval between checkpoints."""

from collections.abc import Iterator
from itertools import pairwise

from traincope.analysis.confidence import HIGH, MEDIUM
from traincope.analysis.efficiency.goodput import goodput
from traincope.analysis.faults.restarts import end_of_attempt, failed_rank
from traincope.analysis.reliability.reliability import Reliability
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, percent
from traincope.timeline import Timeline
from traincope.units import count, duration

MIN_GAIN = 0.01
"""Share of all time below which another interval is not worth a finding."""


def checkpoint_cadence(reliability: Reliability | None) -> Iterator[Finding]:
    """Advise another interval if it saves time at the measured rate of interruptions, and at both its limits."""
    found = None if reliability is None else reliability.cadence
    if reliability is None or found is None or not found.certain or found.gain_ratio < MIN_GAIN:
        return
    best, low, high = (duration(ns) for ns in (found.best_ns, found.best_low_ns, found.best_high_ns))
    yield Finding(
        kind=FindingKind.CHECKPOINT_CADENCE,
        confidence=MEDIUM,
        evidence=(
            f"a checkpoint after each {duration(found.interval_ns)} of training loses an expected "
            f"{percent(found.lost_ratio)} of all time, with {count(reliability.num_interruptions, 'interruption')} in "
            f"{duration(reliability.running_ns)}"
        ),
        advice=(
            f"Save after each {best} of training (Daly; {low} to {high}): the expected loss falls to "
            f"{percent(found.best_lost_ratio)} of all time."
        ),
    )


def lost_by_restarts(timeline: Timeline) -> Iterator[Finding]:
    """Finding about the time that restarts took, and that of the steps that had to be made again."""
    job = goodput(timeline)
    if job is None:
        return
    ended = [before for before, _ in pairwise(job.attempts) if not before.clean]
    lost_ns = job.restart_ns + (job.lost_ns or 0)
    share = lost_ns / max(job.elapsed_ns, 1)
    if not ended or share < MIN_SHARE:
        return
    last, notes = ended[-1], timeline.run.launcher
    rank, all_of_them = failed_rank(last, notes), "it" if len(ended) == 1 else "all of them"
    why = f"attempt {last.number}: {end_of_attempt(last, notes)[1]}"
    again = f", and {count(job.steps_lost, 'step')} were made again" if job.steps_lost else ""
    yield Finding(
        kind=FindingKind.RESTART,
        ranks=() if rank is None else (rank,),
        confidence=HIGH,
        evidence=(
            f"{count(len(ended), 'restart')} took {duration(job.restart_ns)} from the last record before to the next "
            f"step{again}: {percent(share)} of the run; {'the last ended ' if len(ended) > 1 else ''}{why}"
        ),
        advice=(
            f"Find why it ended: traincope report RUN --attempt {last.number}. Without {all_of_them}, {percent(share)} "
            "of the run are saved. Shorter intervals between checkpoints save steps that are made again."
        ),
        estimated_gain_ratio=share,
    )
