"""Findings as text and as JSON: facts first, then instructions."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from traincope.doctor.finding import Examination, Finding, Section, State
from traincope.lines import INDENT, Trimmed, text
from traincope.palette import GOOD, SEVERE

SCHEMA_VERSION = 2

STYLES = {State.OK: GOOD, State.NOTE: "dim", State.BAD: f"bold {SEVERE}"}


def to_document(examination: Examination) -> dict[str, Any]:
    """JSON of an examination: `healthy`, and every finding under its section."""
    return {
        "schema_version": SCHEMA_VERSION,
        "subject": examination.subject,
        "healthy": examination.healthy,
        "sections": [
            {"title": section.title.lower(), "findings": [_plain(finding) for finding in section.findings]}
            for section in examination.sections
        ],
    }


def render(examination: Examination, console: Console) -> None:
    """Write an examination to `console`."""
    width = max(len(finding.name) for finding in examination.findings)
    console.print(Trimmed(text(examination.subject, style="bold")), end="")
    for section in examination.sections:
        console.print()
        console.print(Trimmed(Text(section.title, style="bold")), end="")
        console.print(Trimmed(_rows(section, width=width)), end="")
    console.print()
    for renderable in _to_do(examination):
        console.print(Trimmed(renderable), end="")


def _plain(finding: Finding) -> dict[str, str | None]:
    return {"name": finding.name, "state": finding.state, "fact": finding.fact, "advice": finding.advice}


def _rows(section: Section, *, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=INDENT - 2)
    grid.add_column(width=width, no_wrap=True)
    grid.add_column(width=max(map(len, State)))
    grid.add_column(ratio=1, overflow="fold")
    for finding in section.findings:
        grid.add_row("", text(finding.name), Text(finding.state, style=STYLES[finding.state]), text(finding.fact))
    return grid


def _to_do(examination: Examination) -> Iterator[RenderableType]:
    """Instructions, the most severe first. Findings with the same instruction share one line."""
    by_advice: dict[str, list[Finding]] = {}
    for finding in sorted(examination.findings, key=lambda finding: finding.state is not State.BAD):
        if finding.advice is not None:
            by_advice.setdefault(finding.advice, []).append(finding)
    if not by_advice:
        yield Text("TO DO  ", style="bold").append("nothing", style=f"not bold {GOOD}")
        return
    optional = "  all optional" if examination.healthy else ""
    yield Text("TO DO", style="bold").append(optional, style="not bold dim")
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", width=3)
    grid.add_column(ratio=1, overflow="fold")
    for number, (advice, findings) in enumerate(by_advice.items(), start=1):
        names = text(", ".join(dict.fromkeys(finding.name for finding in findings)), style=STYLES[findings[0].state])
        grid.add_row(f"{number}.", names.append_text(text(f": {advice}", style="not bold not dim default")))
    yield grid
