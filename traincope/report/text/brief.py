"""A brief of a run, as its training ends: what it was, the first finding, the five largest terms, and the MFU.

At most 16 lines of at most 100 columns. The full report has every finding, term and number whole.
"""

import textwrap
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from traincope.analysis import Analysis, FaultKind, FindingKind, Utilization
from traincope.lines import Trimmed, text
from traincope.report.document.document import to_document
from traincope.report.schema import Document, Fault, Finding, Ledger
from traincope.report.sections.faults import real_faults, step_of
from traincope.report.sections.ledger import bars as of_terms
from traincope.report.sections.values import plain
from traincope.report.sections.verdict import ENDINGS, saves
from traincope.report.text.bars import bars
from traincope.report.text.first_screen import five_numbers, sampled
from traincope.units import count, numbers, share

MAX_WIDTH = 100
MAX_LINES = 5
"""Lines of the verdict."""
MAX_TERMS = 5
MORE = " ..."
SLOW = (FaultKind.SLOW_STEP, FaultKind.STEP_TIME_CHANGE)
KNOWN = ("tokens/s", "goodput", "recorder overhead")
"""Numbers that follow the step time, if they are known."""


def render_brief(analysis: Analysis, console: Console) -> None:
    """Write the brief of `analysis` to `console`."""
    document, width = to_document(analysis), min(console.width, MAX_WIDTH)
    for line in _wrapped(_head(document, analysis), width):
        console.print(text(line, style="bold"))
    for finding in _verdict(document, width):
        console.print(finding)
    ledger = document["ledger"]
    if ledger is not None:
        table = bars(of_terms(ledger, joined=_small_terms(ledger)), document)
        table.width = width
        console.print(Trimmed(table), end="")
        for line in _wrapped(_utilization(analysis.utilization), width):
            console.print(text(line))


def brief_document(analysis: Analysis) -> dict[str, Any]:
    """The parts of the JSON report that a list of runs shows."""
    job = analysis.goodput
    return {
        "utilization": {"mfu": analysis.utilization.ratios.mfu},
        "goodput": None if job is None else {"productive_ratio": job.productive_ratio},
        "verdict": to_document(analysis)["verdict"][:1],
    }


def _head(document: Document, analysis: Analysis) -> str:
    run, found = document["run"], dict(five_numbers(document, analysis))
    steps = count(run["steps"], "step")
    speed = "" if document["ledger"] is None else f" of {found['mean step']}"
    known = [f"{name} {found[name]}" for name in KNOWN if found[name] != "unknown"]
    what = f"{count(run['world_size'], 'rank')}, {steps}{speed}"
    return f"{run['id']}: " + ", ".join((what, *known, *sampled(document, analysis.sampling)))


def _verdict(document: Document, width: int) -> Iterator[Text]:
    """At most `MAX_LINES` lines: the first fault, the first finding with its evidence, and what to do.

    That the job was stopped says nothing about its steps, so the next finding follows.
    """
    shown = [f"fault{on}: {fault['what']}" for fault, on in _first_fault(document)]
    first, *others = (*document["verdict"][:2], None)
    finding = first
    if first is not None and first["kind"] == FindingKind.STOPPED_JOB and others[0] is not None:
        shown.append(f"{_title(first)}: {first['evidence']}")
        finding = others[0]
    if finding is not None:
        shown.append(f"{_title(finding)}: {finding['evidence']}")
        shown += [f"do: {finding['advice']}"] if finding["advice"] else []
    room = MAX_LINES
    for index, sentence in enumerate(shown):
        lines = _wrapped(sentence, width, lines=room - (len(shown) - 1 - index))
        room -= len(lines)
        yield from map(text, lines)


def _first_fault(document: Document) -> Iterator[tuple[Fault, str]]:
    """The first fault with its place, unless the first finding is about an end. Slow steps are in the findings."""
    if any(finding["kind"] in ENDINGS for finding in document["verdict"][:1]):
        return
    for fault in [fault for fault in real_faults(document) if fault["kind"] not in SLOW][:1]:
        step = f" in step {step_of(fault)}" if step_of(fault) else ""
        ranks = f" on {numbers(fault['ranks'], 'rank')}" if fault["ranks"] else ""
        yield fault, ranks + step


def _title(finding: Finding) -> str:
    gain = "" if finding["estimated_gain_ratio"] is None else f" ({plain({'verdict': [finding]}, saves(finding, 0))})"
    ranks = f" on {numbers(finding['ranks'], 'rank')}" if finding["ranks"] else ""
    return f"{finding['kind'].replace('_', ' ')}{ranks}{gain}"


def _small_terms(ledger: Ledger) -> list[str]:
    """All terms but the largest."""
    taken = {term: ratio for term, ratio in ledger["waterfall"].items() if ratio}
    return sorted(taken, key=lambda term: -abs(taken[term]))[MAX_TERMS:]


def _utilization(used: Utilization) -> str:
    """The MFU, or why it is unknown and what makes it known."""
    return f"MFU unknown: {used.reason}" if used.ratios.mfu is None else f"MFU {share(used.ratios.mfu)}"


def _wrapped(sentence: str, width: int, *, lines: int | None = None) -> list[str]:
    """The sentence in lines, those after the first indented. What is beyond `lines` is left out between two words."""
    return textwrap.wrap(
        sentence,
        width,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
        max_lines=lines,
        placeholder=MORE,
    )
