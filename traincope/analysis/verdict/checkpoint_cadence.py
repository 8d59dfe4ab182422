"""Finding about the interval between checkpoints."""

from collections.abc import Iterator

from traincope.analysis.confidence import MEDIUM
from traincope.analysis.reliability.reliability import Reliability
from traincope.analysis.verdict.findings import Finding, FindingKind, percent
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
