"""VERDICT: each finding with its ranks and steps, confidence, estimated gain, evidence and advice."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from traincope.analysis import FaultKind, FindingKind
from traincope.lines import text
from traincope.palette import GOOD, SEVERE
from traincope.report.schema import Cost, Fault, Finding
from traincope.report.text.sections.loss_table import saves
from traincope.units import numbers

GOOD_KINDS = (FindingKind.HEALTHY, FindingKind.RUNNING)
"""Findings that name neither a fault nor a loss."""
SAVINGS = "by saving (share of step time) x confidence; savings do not add up"


def verdict(findings: list[Finding], *, cost: Cost | None, faults: Sequence[Fault] = ()) -> Iterator[RenderableType]:
    """The findings in the order of the analysis, and the command that explains them and `faults`.

    `cost` is the ledger's.
    """
    head = Text("VERDICT", style="bold")
    savings = any(finding["estimated_gain_ratio"] is not None for finding in findings)
    yield head.append(f"  {SAVINGS}" if savings else "", style="not bold dim")
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", width=3)
    grid.add_column(ratio=1, overflow="fold")
    for position, finding in enumerate(findings, start=1):
        for index, line in enumerate(_lines(finding, cost)):
            grid.add_row(f"{position}." if index == 0 else "", line)
    kinds = explained(findings, faults)
    if kinds:
        grid.add_row("", text(f"meaning, remedy, check: traincope explain {' '.join(kinds)}", style="dim"))
    yield grid if findings else text("    unknown: no complete step was recorded")


def explained(findings: Sequence[Finding], faults: Sequence[Fault]) -> list[str]:
    """The kinds of findings and faults that are worth an explanation, one per entry of docs/findings."""
    listed = [finding for finding in findings if finding["kind"] not in (*GOOD_KINDS, FindingKind.FAULTS)]
    went_wrong = [fault for fault in faults if not fault["mark"] and not fault["follows"]]
    places: dict[str, str] = {}
    for each in (*listed, *(fault for fault in went_wrong if fault["kind"] != FaultKind.NO_END)):
        places.setdefault(each["page"], each["kind"])
    return list(places.values())


def _lines(finding: Finding, cost: Cost | None) -> Iterator[Text]:
    tone = GOOD if finding["kind"] in GOOD_KINDS else SEVERE
    head = text(finding["kind"].replace("_", " "), style=f"bold {tone}")
    yield head.append_text(text("  " + "; ".join(facts(finding, cost=cost)), style="not bold dim"))
    yield text(finding["evidence"])
    if finding["advice"]:
        yield Text("do: ", style="bold").append_text(text(finding["advice"], style="not bold"))


def facts(finding: Finding, *, cost: Cost | None) -> Iterator[str]:
    """Ranks and steps, confidence and gain of a finding. `cost` is the ledger's."""
    yield where(finding)
    yield f"confidence {finding['confidence']}"
    if finding["estimated_gain_ratio"] is not None:
        yield saves(finding, cost)


ENDINGS = (
    FindingKind.HANG,
    FindingKind.STALL,
    FindingKind.MISMATCH,
    FindingKind.LOST_HOST,
    FindingKind.KILLED_RANK,
    FindingKind.FAILED_RANK,
    FindingKind.STOPPED_JOB,
    FindingKind.RUNNING,
    FindingKind.NO_END_RECORDED,
    FindingKind.MISSING_RANK,
)
"""Findings about one moment. Without a step they lie outside every step, not in all steps."""


def running(findings: Sequence[Finding]) -> str | None:
    """E.g. "running: step 405, last record 2.1 s ago"; None if the first finding does not say that the job runs."""
    first = next(iter(findings), None)
    return f"running: {first['evidence']}" if first is not None and first["kind"] == FindingKind.RUNNING else None


def where(finding: Finding) -> str:
    """The ranks and steps of a finding, e.g. "rank 2, steps 17-40"."""
    ranks = _some("rank", finding["ranks"])
    if finding["kind"] in ENDINGS and not finding["steps"]:
        return ranks
    return f"{ranks}, {_some('step', finding['steps'])}"


def _some(noun: str, values: list[int]) -> str:
    return numbers(values, noun) if values else f"all {noun}s"
