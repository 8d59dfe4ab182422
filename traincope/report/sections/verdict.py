"""The verdict: each finding with its ranks and steps, confidence, gain, evidence and advice."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from traincope.analysis import FaultKind, FindingKind
from traincope.report.document.costs import shows_costs
from traincope.report.schema import Cost, Fault, Finding
from traincope.report.sections.forms import Form
from traincope.report.sections.section import Findings, Item, Kind, Lines, On, Section, Words, number, separated
from traincope.report.sections.source import Source
from traincope.units import numbers

NAME, TITLE = "verdict", "Verdict"
SAVINGS = "by saving (share of step time) x confidence; savings do not add up"
NOTHING = "Unknown: no complete step was recorded."
GOOD_KINDS = (FindingKind.HEALTHY, FindingKind.RUNNING)
"""Findings that name neither a fault nor a loss."""
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
EVIDENCE: Mapping[str, str] = {
    FindingKind.KILLED_RANK: "faults",
    FindingKind.FAILED_RANK: "faults",
    FindingKind.STOPPED_JOB: "faults",
    FindingKind.FAULTS: "faults",
    FindingKind.LOST_HOST: "faults",
    FindingKind.HANG: "hangs",
    FindingKind.STALL: "hangs",
    FindingKind.MISMATCH: "hangs",
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
    FindingKind.UNCLASSIFIED_KERNELS: "kernels",
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


def verdict_of(source: Source) -> Section:
    """The verdict of a run, with its costs."""
    document, ledger = source.document, source.document["ledger"]
    cost = None if ledger is None else ledger["cost"]
    return verdict(document["verdict"], cost=cost, faults=document["faults"])


def verdict(findings: Sequence[Finding], *, cost: Cost | None, faults: Sequence[Fault] = ()) -> Section:
    """The findings in the order of the analysis, and the command that explains them and `faults`.

    `cost` is the ledger's. Numbers are places in any document that has these findings as `verdict`.
    """
    savings = any(finding["estimated_gain_ratio"] is not None for finding in findings)
    kinds = explained(findings, faults)
    explain = (f"meaning, remedy, check: traincope explain {' '.join(kinds)}",) if kinds else ()
    return Section(
        name=NAME,
        title=TITLE,
        lead=SAVINGS if savings else "",
        parts=(
            Findings(tuple(item(finding, at, cost=cost) for at, finding in enumerate(findings))),
            Lines(explain, on=On.CONSOLE),
        ),
        missing=None if findings else NOTHING,
    )


def item(finding: Finding, at: int, *, cost: Cost | None) -> Item:
    """The finding at position `at` of its verdict."""
    return Item(
        kind=Kind(finding["kind"]),
        good=finding["kind"] in GOOD_KINDS,
        facts=separated(facts(finding, at, cost=cost), "; "),
        evidence=finding["evidence"],
        evidence_in=EVIDENCE.get(finding["kind"], "ledger"),
        advice=finding["advice"],
    )


def facts(finding: Finding, at: int, *, cost: Cost | None) -> Iterator[Words]:
    """Ranks and steps, confidence and gain of a finding."""
    yield where(finding)
    yield f"confidence {finding['confidence']}"
    if finding["estimated_gain_ratio"] is not None:
        yield saves(finding, at, cost=cost)


def saves(finding: Finding, at: int, *, cost: Cost | None = None) -> Words:
    """The gain, e.g. "saves 8.9 %" or, where costs are shown, "saves 8.9 % (1.2 rank-hours, 3.00 USD)"."""
    gain = ("saves ", "at most " if finding["gain_at_most"] else "", _gain(at, "ratio", "share"))
    if cost is None or not shows_costs(cost):
        return gain
    money: tuple[Words, ...] = (", ", _gain(at, "money", "money"), f" {cost['currency']}")
    return (
        *gain,
        " (",
        _gain(at, "rank_hours", "hours"),
        " rank-hours",
        *(() if cost["money"] is None else money),
        ")",
    )


def _gain(at: int, of: Literal["ratio", "rank_hours", "money"], form: Form) -> Words:
    return number("verdict", at, f"estimated_gain_{of}", form=form)


def explained(findings: Sequence[Finding], faults: Sequence[Fault]) -> list[str]:
    """The kinds of findings and faults that are worth an explanation, one per entry of docs/findings."""
    listed = [finding for finding in findings if finding["kind"] not in (*GOOD_KINDS, FindingKind.FAULTS)]
    went_wrong = [fault for fault in faults if not fault["mark"] and not fault["follows"]]
    places: dict[str, str] = {}
    for each in (*listed, *(fault for fault in went_wrong if fault["kind"] != FaultKind.NO_END)):
        places.setdefault(each["page"], each["kind"])
    return list(places.values())


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
