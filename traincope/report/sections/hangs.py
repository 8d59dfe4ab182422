"""Hangs: who caused each, who waited for it and in what, where it stood, since when, and what to do."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from traincope.analysis import Hang
from traincope.report.schema import Finding
from traincope.report.sections.faults import MAX_LINKED_RANKS, job_ns
from traincope.report.sections.section import (
    Findings,
    Item,
    Link,
    Listing,
    Part,
    Section,
    Table,
    Words,
    number,
    rows,
)
from traincope.report.sections.source import Source
from traincope.report.sections.verdict import item
from traincope.units import duration, numbers

NAME, TITLE = "hangs", "Hangs"
NOTHING = "No rank hangs, and no collective mismatches, as far as the records show."
MAX_FRAMES = 30


def hangs(source: Source) -> Section:
    found, verdict = source.analysis.hangs, source.document["verdict"]
    judged = [next(_judged(hang, verdict), None) for hang in found]
    items = tuple(each for each in judged if each is not None)
    return Section(
        name=NAME,
        title=TITLE,
        lead="the first cause first",
        parts=(
            *((Findings(items),) if items else ()),
            *(part for at in range(len(found)) for part in _about(at, source, judged=judged[at] is not None)),
        ),
        missing=None if found else NOTHING,
    )


def stack(title: str, whose: str, frames: Sequence[str]) -> Section:
    """A stack of a rank, as a section of its own."""
    lead = f"of {whose}, innermost first"
    return Section(
        name="stack", title=title, lead=lead, parts=(Listing(caption=f"{title} {lead}", lines=tuple(frames)),)
    )


def _judged(hang: Hang, verdict: Sequence[Finding]) -> Iterator[Item]:
    """Its finding, whose evidence may add the error that a culprit raised."""
    for at, finding in enumerate(verdict):
        if finding["kind"] == hang.fault_kind and finding["evidence"].startswith(hang.evidence):
            yield replace(item(finding, at, cost=None), evidence_in="")


def _about(at: int, source: Source, *, judged: bool) -> Iterator[Part]:
    hang, (began_ns, _) = source.analysis.hangs[at], job_ns(source.analysis)
    facts = rows([*(() if judged else (("evidence", hang.evidence),)), *_facts(at, hang, began_ns=began_ns)])
    yield Table(caption="Ranks and times", heads=("fact", "value"), rows=facts, left=frozenset({0, 1}))
    if hang.stack:
        yield from stack("Stack", numbers(hang.culprits[:1], "rank"), hang.stack[:MAX_FRAMES]).parts


def _facts(at: int, hang: Hang, *, began_ns: int) -> Iterator[tuple[str, Words]]:
    """Name -> value of what is known."""
    since = f"{duration(hang.since_ns - began_ns)} after the first record"
    ranks = tuple(sorted([*hang.culprits, *hang.suspects, *hang.victims][:MAX_LINKED_RANKS]))
    noticed = ("after ", number("hangs", at, "detected_after_seconds", form="seconds"))
    lasted = (number("hangs", at, "lasted_ns", form="duration"), " at least")
    facts: tuple[tuple[str, Words | None], ...] = (
        ("kind", hang.kind.replace("_", " ")),
        ("culprits", _ranks(hang.culprits) or "unknown"),
        ("suspects", _ranks(hang.suspects)),
        ("victims", _ranks(hang.victims)),
        ("in", f"{hang.collective} on {hang.axis}" if hang.collective and hang.axis else hang.collective),
        ("stood at", hang.call_site),
        ("step", None if hang.step is None else number("hangs", at, "step", form="count")),
        ("since", Link(since, "timeline", at_ns=hang.since_ns, ranks=ranks)),
        ("lasted", "the run went on" if hang.lasted_ns is None else lasted),
        ("noticed by the agent", None if hang.detected_after_seconds is None else noticed),
    )
    yield from ((name, value) for name, value in facts if value is not None)


def _ranks(ranks: Sequence[int]) -> str | None:
    return numbers(ranks, "rank") if ranks else None
