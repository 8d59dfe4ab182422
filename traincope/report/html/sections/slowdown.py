"""Slowdown section: what stragglers cost a job that was imported from a table of operations."""

from traincope.report.html.markup import tag
from traincope.report.html.section import Section, notes, table
from traincope.report.html.source import Source
from traincope.report.sections.forms import Form
from traincope.report.text.sections.slowdown import lines

TITLE = "Slowdown"
HEADS = ("what", "number")
MISSING = "The run was not imported from a table of operations."
NUMBERS: tuple[tuple[str, str, Form], ...] = (
    ("S: step time over that with average operations", "ratio", "ratio"),
    ("share of the loss due to the slowest 3 % of the workers (M_W)", "worker_share", "share"),
    ("share of the loss due to the last stage (M_S)", "last_stage_share", "share"),
    ("share of the loss that remains if only microbatches differ", "sequence_length_share", "share"),
)


def slowdown(source: Source) -> Section:
    job = source.analysis.slowdown
    if job is None:
        return Section(name="slowdown", title=TITLE, missing=MISSING)
    rows = [[tag("span", what), source.number("slowdown", key, form=form)] for what, key, form in NUMBERS]
    return Section(
        name="slowdown",
        title=TITLE,
        lead=f"cause: {job.cause}",
        body=(table("Loss and its parts", HEADS, rows), notes(lines(job))),
    )
