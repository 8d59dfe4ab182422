"""The verdict on a running job so far: that of the report, from events, or from rows where there are many events."""

import time
from dataclasses import dataclass
from pathlib import Path

from traincope.analysis import FindingKind, analyze
from traincope.analysis.stragglers.stragglers import late_so_far
from traincope.report.document.document import to_document
from traincope.report.document.job_summary import summary_document
from traincope.report.schema import Finding
from traincope.store.layout import record_files
from traincope.summaries import job_summary, read_summaries
from traincope.summaries.reading import is_for_rows
from traincope.timeline import open_run

ENDS = (FindingKind.RUNNING, FindingKind.NO_END_RECORDED)
"""Findings about the end of a job. Who asks for a verdict so far knows that it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictSoFar:
    """The report at one instant."""

    findings: tuple[Finding, ...]
    """Without ENDS."""
    late: str | None
    """The latest rank with its chance to be noise, if the steps are too few to name a rank."""
    steps: int
    """Steps that the findings are about."""
    last_step: int | None
    mfu: float | None
    goodput: float | None
    by_rows: bool
    """True if rows of steps and last records were read, not all events."""
    at_ns: int
    """Time at which the run was read, by `time.monotonic_ns()`."""


def verdict_so_far(run: Path, *, max_bytes: int) -> VerdictSoFar:
    """Judge the run as `traincope report` does. `max_bytes`: most bytes of records of which events are read.

    Raises TraincopeError where the run cannot be read.
    """
    at_ns = time.monotonic_ns()
    if is_for_rows(run) or _size(run) > max_bytes:
        summary = summary_document(job_summary(read_summaries(run)))
        first, last = summary["first_step"], summary["last_step"]
        return VerdictSoFar(
            findings=_judged(summary["verdict"]),
            late=None,
            steps=0 if first is None or last is None else last - first + 1,
            last_step=last,
            mfu=None,
            goodput=None,
            by_rows=True,
            at_ns=at_ns,
        )
    analysis = analyze(open_run(run))
    document = to_document(analysis)
    return VerdictSoFar(
        findings=_judged(document["verdict"]),
        late=late_so_far(analysis.stragglers),
        steps=document["run"]["steps"],
        last_step=max((int(rank.numbers[-1]) for rank in analysis.ledger.ranks if len(rank.numbers)), default=None),
        mfu=analysis.utilization.ratios.mfu,
        goodput=None if analysis.goodput is None else analysis.goodput.productive_ratio,
        by_rows=False,
        at_ns=at_ns,
    )


def _judged(findings: list[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding["kind"] not in ENDS)


def _size(run: Path) -> int:
    """Bytes of all records. A file that is compacted meanwhile counts as nothing."""
    total = 0
    for rank in run.glob("attempt-*/rank-*"):
        for path in record_files(rank):
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                continue
    return total
