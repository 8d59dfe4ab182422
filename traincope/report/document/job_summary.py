"""JSON of a job summary (`traincope report RUN --detail rows --format json`)."""

from typing import TypedDict

from traincope.report import schema
from traincope.report.document.parts import finding_of
from traincope.summaries import JobSummary

STANDS_ON = "rows and last records"


class SummaryDocument(TypedDict):
    """What rows and last records show of a job."""

    stands_on: str
    """Always `rows and last records`: the events of the run are not read. `--detail all` reads them."""
    run_id: str
    world_size: int
    mesh_axes: dict[str, int]
    ranks: int
    """Ranks with a readable directory."""
    missing: list[int]
    rows: int
    """Rows that the means stand on: the newest ones of each rank, without the warm-up step."""
    first_step: int | None
    last_step: int | None
    """First and last step of all rows."""
    mean_step_ns: float | None
    terms_ns: dict[str, float]
    """Ledger term -> mean ns per rank and step, over steps with detail. Transfers may contain waits for other hosts."""
    compared_steps: int
    """Steps in which stragglers were looked for."""
    compared_steps_needed: int
    verdict: list[schema.Finding]
    problems: list[str]


def summary_document(job: JobSummary) -> SummaryDocument:
    """Convert a job summary to JSON values."""
    summaries = job.summaries
    first, last = job.steps or (None, None)
    return SummaryDocument(
        stands_on=STANDS_ON,
        run_id=summaries.info.id,
        world_size=summaries.info.world_size,
        mesh_axes=summaries.info.mesh,
        ranks=len(summaries.ranks),
        missing=list(summaries.missing),
        rows=job.num_rows,
        first_step=first,
        last_step=last,
        mean_step_ns=job.mean_step_ns,
        terms_ns=dict(job.terms_ns),
        compared_steps=job.slow.steps,
        compared_steps_needed=job.slow.steps_needed,
        verdict=[finding_of(finding, wall_ns=0) for finding in job.verdict],
        problems=list(summaries.problems),
    )
