"""The verdict: what is wrong, where, by which evidence, what to do, and what it buys."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from traincope.analysis import FindingKind
from traincope.palette import GOOD, SEVERE
from traincope.report.losses import saves
from traincope.report.plain import text
from traincope.report.schema import Cost, Finding
from traincope.units import numbers


def verdict(findings: list[Finding], *, cost: Cost | None) -> Iterator[RenderableType]:
    """Findings in the order of the analysis, the gravest first; `cost` is the ledger's."""
    head = Text("VERDICT", style="bold")
    savings = any(finding["estimated_gain_ratio"] is not None for finding in findings)
    yield head.append("  savings are shares of step time" if savings else "", style="not bold dim")
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", width=3)
    grid.add_column(ratio=1)
    for position, finding in enumerate(findings, start=1):
        for index, line in enumerate(_lines(finding, cost)):
            grid.add_row(f"{position}." if index == 0 else "", line)
    yield grid if findings else text("    nothing can be said: no complete step was recorded")


def _lines(finding: Finding, cost: Cost | None) -> Iterator[Text]:
    tone = GOOD if finding["kind"] == FindingKind.HEALTHY else SEVERE
    head = text(finding["kind"].replace("_", " "), style=f"bold {tone}")
    yield head.append_text(text("  " + "; ".join(_facts(finding, cost)), style="not bold dim"))
    yield text(finding["evidence"])
    if finding["advice"]:
        yield Text("do: ", style="bold").append_text(text(finding["advice"], style="not bold"))


def _facts(finding: Finding, cost: Cost | None) -> Iterator[str]:
    yield where(finding)
    yield f"confidence {finding['confidence']}"
    if finding["estimated_gain_ratio"] is not None:
        yield saves(finding, cost)


ENDINGS = (
    FindingKind.KILLED_RANK,
    FindingKind.FAILED_RANK,
    FindingKind.STOPPED_JOB,
    FindingKind.NO_END_RECORDED,
    FindingKind.MISSING_RANK,
)
"""Findings about one moment: without a step they lie in none, and not in all."""


def where(finding: Finding) -> str:
    """The ranks and steps of a finding, e.g. "rank 2, steps 17-40"."""
    ranks = _some("rank", finding["ranks"])
    if finding["kind"] in ENDINGS and not finding["steps"]:
        return ranks
    return f"{ranks}, {_some('step', finding['steps'])}"


def _some(noun: str, values: list[int]) -> str:
    return numbers(values, noun) if values else f"all {noun}s"
