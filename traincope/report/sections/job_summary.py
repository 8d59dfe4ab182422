"""What rows and last records show of a job: its findings, its mean step, and what could not be read."""

from collections.abc import Iterator
from dataclasses import replace

from traincope.report.document.job_summary import SummaryDocument
from traincope.report.sections.ledger import NAME, TITLE
from traincope.report.sections.recording import problems
from traincope.report.sections.section import Lines, Section, Table, Term, number, rows
from traincope.report.sections.verdict import verdict
from traincope.units import count, share

NOTHING = "Rows and last records show no hang, no failed rank and no straggler."
CONTAINED = "a transfer contains the waits for ranks of other hosts"


def job_summary(document: SummaryDocument) -> Iterator[Section]:
    """The verdict, the mean step if there is one, and problems if there are any."""
    yield _verdict(document)
    if document["mean_step_ns"]:
        yield _steps(document)
    if document["problems"]:
        listed = Lines(tuple(problems(document["problems"])), facts=True)
        yield Section(name="problems", title="Problems", parts=(listed,))


def _verdict(document: SummaryDocument) -> Section:
    judged = verdict(document["verdict"], cost=None)
    compared, needed = document["compared_steps"], document["compared_steps_needed"]
    few = f"too few steps to name a straggler: {compared:,} of {needed:,}" if compared < needed else ""
    if judged.missing is not None:
        return replace(judged, missing=f"No hang and no failed rank; {few}." if few else NOTHING)
    return replace(judged, parts=(*judged.parts, Lines((few,) if few else ())))


def _steps(document: SummaryDocument) -> Section:
    terms = document["terms_ns"]
    total_ns = sum(terms.values())
    found = (
        (Term(term), share(ns / total_ns), number("terms_ns", term, form="milliseconds")) for term, ns in terms.items()
    )
    table = Table(caption=TITLE, heads=("term", "share", "ms per step"), rows=rows(found))
    lead = ("mean step ", number("mean_step_ns", form="duration"))
    return Section(name=NAME, title=TITLE, lead=lead, parts=(table, Lines((CONTAINED,))) if terms else ())


def stands_on(document: SummaryDocument) -> str:
    """A sentence that says what the summary was computed from."""
    rows = "no row of a step"
    if document["first_step"] is not None:
        steps = f"steps {document['first_step']:,}-{document['last_step']:,}"
        rows = f"{count(document['rows'], 'row')} of {steps}, the newest ones of each rank"
    return f"This stands on {rows}, and on each rank's last records."
