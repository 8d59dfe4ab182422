"""Findings about a step time that changed between windows."""

from collections.abc import Iterator

from traincope.analysis.confidence import MEDIUM
from traincope.analysis.faults.anomalies.step_changes import StepChange, step_changes
from traincope.analysis.ledger.ledger import Ledger
from traincope.analysis.verdict.findings import Finding, FindingKind, percent, with_gain
from traincope.timeline import Timeline

ADVICE = "Find what changed at that step (data, host, clocks): compare the windows around it in traincope view RUN"


def changed_steps(timeline: Timeline, ledger: Ledger) -> Iterator[Finding]:
    """One finding per change, in order of steps."""
    for change in step_changes(timeline, ledger):
        slower = change.after_ns > change.before_ns
        yield Finding(
            kind=FindingKind.STEP_TIME_CHANGE,
            ranks=() if change.growth is None else (change.growth.rank,),
            steps=(change.step,),
            confidence=MEDIUM,
            evidence=_evidence(change),
            advice=with_gain(ADVICE, change.lost_ratio) if slower else "",
            estimated_gain_ratio=change.lost_ratio if slower else None,
        )


def _evidence(change: StepChange) -> str:
    moved = "rose" if change.after_ns > change.before_ns else "fell"
    by = percent(abs(change.after_ns / change.before_ns - 1))
    return (
        f"the median step {moved} from {_ms(change.before_ns)} to {_ms(change.after_ns)} ms (by {by}) at step "
        f"{change.step}, {_where(change)}{_growth(change)}"
    )


def _where(change: StepChange) -> str:
    before, after = (None if window is None else f"steps {window[0]} to {window[1]}" for window in change.windows)
    if before is None or after is None:
        return f"{'before the first' if before is None else 'after the last'} window ({before or after})"
    return f"between the windows of {before} and {after}"


def _growth(change: StepChange) -> str:
    growth = change.growth
    if growth is None:
        return "; the terms that every step records show no single rank as its cause"
    grew = f"{growth.term} of rank {growth.rank} grew from {_ms(growth.before_ns)} to {_ms(growth.after_ns)} ms"
    return f"; by the terms that every step records, {grew}"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.1f}"
