"""Verdict section: the findings with evidence, advice and estimated gain."""

from collections.abc import Iterator, Mapping

from traincope.analysis import FindingKind
from traincope.report.document.costs import shows_costs
from traincope.report.html.markup import Html, tag
from traincope.report.html.section import Section
from traincope.report.html.sections.explained import link
from traincope.report.html.source import Source
from traincope.report.schema import Finding
from traincope.report.text.sections.loss_table import bound
from traincope.report.text.sections.verdict import GOOD_KINDS, where

EVIDENCE: Mapping[str, str] = {
    FindingKind.KILLED_RANK: "faults",
    FindingKind.FAILED_RANK: "faults",
    FindingKind.STOPPED_JOB: "faults",
    FindingKind.FAULTS: "faults",
    FindingKind.HANG: "faults",
    FindingKind.STALL: "faults",
    FindingKind.MISMATCH: "faults",
    FindingKind.RUNNING: "recording",
    FindingKind.NO_END_RECORDED: "recording",
    FindingKind.MISSING_RANK: "recording",
    FindingKind.NO_STEPS: "recording",
    FindingKind.PIPELINE_BUBBLE: "pipeline",
    FindingKind.EXPOSED_WAIT: "communication",
    FindingKind.EXPOSED_TRANSFER: "communication",
    FindingKind.EXPOSED_COMMUNICATION: "kernels",
    FindingKind.GPU_IDLE: "kernels",
    FindingKind.EXPOSED_MEMORY: "kernels",
    FindingKind.UNFUSED_KERNELS: "kernels",
    FindingKind.STRAGGLER: "ranks",
    FindingKind.SLOWDOWN: "slowdown",
    FindingKind.HOT_EXPERT: "experts",
    FindingKind.MEMORY_GROWTH: "memory",
    FindingKind.GPU_MEMORY: "memory",
    FindingKind.EVALUATION: "goodput",
    FindingKind.CHECKPOINT_CADENCE: "reliability",
    FindingKind.INTERRUPTIONS: "reliability",
}
"""Kind of finding -> the section with its evidence; the ledger shows all others."""
NOTHING = "No verdict: no complete step was recorded."


def verdict(source: Source) -> Section:
    findings = source.document["verdict"]
    savings = any(finding["estimated_gain_ratio"] is not None for finding in findings)
    items = [tag("li", *_item(source, at, finding), class_=_tone(finding)) for at, finding in enumerate(findings)]
    return Section(
        name="verdict",
        title="Verdict",
        lead="estimated gains are shares of step time; they overlap and do not add up" if savings else "",
        body=(tag("ol", *items, class_="findings"),),
        missing=None if findings else NOTHING,
    )


def _tone(finding: Finding) -> str:
    return "good" if finding["kind"] in GOOD_KINDS else "bad"


def _item(source: Source, at: int, finding: Finding) -> Iterator[Html]:
    yield tag("h3", link(finding["kind"]), *_saves(source, at, finding))
    yield tag("p", f"{where(finding)}; confidence {finding['confidence']}", class_="where")
    shown = tag("a", "evidence", href=f"#{EVIDENCE.get(finding['kind'], 'ledger')}")
    yield tag("p", finding["evidence"], " (", shown, ")")
    if finding["advice"]:
        yield tag("p", tag("strong", "Do: "), finding["advice"], class_="advice")


def _saves(source: Source, at: int, finding: Finding) -> Iterator[Html]:
    if finding["estimated_gain_ratio"] is not None:
        gain = source.number("verdict", at, "estimated_gain_ratio", form="share")
        yield tag("span", "estimated gain ", bound(finding), gain, *_worth(source, at), class_="saves")


def _worth(source: Source, at: int) -> Iterator[str]:
    """The gain in rank-hours and money; empty for runs that cost little."""
    ledger = source.document["ledger"]
    if ledger is None or not shows_costs(ledger["cost"]):
        return
    yield from (" (", source.number("verdict", at, "estimated_gain_rank_hours", form="hours"), " rank-hours")
    if ledger["cost"]["money"] is not None:
        gain = source.number("verdict", at, "estimated_gain_money", form="money")
        yield from (", ", gain, f" {ledger['cost']['currency']}")
    yield ")"
