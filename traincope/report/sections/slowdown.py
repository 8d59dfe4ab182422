"""Slowdown: what stragglers cost a job, from replays of its table of operations."""

from collections.abc import Iterator

from traincope.analysis.stragglers.slowdown import Slowdown
from traincope.report.sections.forms import Form
from traincope.report.sections.section import Lines, On, Section, Table, number, rows
from traincope.report.sections.source import Source
from traincope.units import duration, numbers, share

NAME, TITLE = "slowdown", "Slowdown"
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
        return Section(name=NAME, title=TITLE, missing=MISSING)
    return Section(
        name=NAME,
        title=TITLE,
        lead="unknown" if job.ratio is None else f"S = {job.ratio:.3f}, cause: {job.cause}",
        parts=(
            Table(
                caption="Loss and its parts",
                heads=("what", "number"),
                rows=rows((what, number("slowdown", key, form=form)) for what, key, form in NUMBERS),
                on=On.SCREEN,
            ),
            Lines(tuple(_lines(job))),
        ),
    )


def _lines(job: Slowdown) -> Iterator[str]:
    """One line per fact."""
    if job.replayed_ns is not None:
        yield (
            f"step {duration(job.step_ns)} as recorded, {duration(job.replayed_ns)} without delays before "
            f"operations, {duration(job.ideal_ns)} with average operations"
        )
    if job.reason is not None:
        yield job.reason
    if job.worker_share is not None:
        slowest, worker, last = (
            numbers(job.slowest, "rank"),
            share(job.worker_share),
            share(job.last_stage_share),
        )
        yield f"{worker} of the loss is due to {slowest} (the slowest 3 % of the workers), {last} to the last stage"
        yield f"{share(job.sequence_length_share)} of the loss remains if only microbatches differ"
    if job.correlation is not None:
        along = "" if job.stage_correlation is None else f", along the stages {job.stage_correlation:.2f}"
        yield f"correlation of a microbatch's forward and backward times {job.correlation:.2f}{along}"
