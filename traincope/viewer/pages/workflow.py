"""Jobs page: the open runs that work together, who waits for whom, and each run's own ledger."""

from collections.abc import Iterator, Sequence
from functools import partial

from dash import dcc, html
from dash.development.base_component import Component

from traincope.analysis import Ledger
from traincope.analysis.communication.job_activity import JobActivity
from traincope.analysis.communication.workflow import Workflow, workflow_of
from traincope.figures.run.job_ledgers import job_ledgers
from traincope.figures.run.job_waits import job_waits
from traincope.report.text.workflow import part_name, sentences, workflow_document
from traincope.viewer.components import absent, plain, section, table
from traincope.viewer.numbers import number
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.view import RUN

JOBS = "workflow"
"""Name in the numbers' sources: the object of `traincope report RUN RUN --format json`."""


def render(asked: Asked) -> Sequence[Component]:
    chosen, reading = _jobs(asked)
    if len(asked.library) < 2:
        return [absent("Only one run is open. Open the runs that work together: traincope view RUN RUN.")]
    waiting = [absent(f"Reading {name}. The page is complete when it is ready.") for name in reading]
    if len(chosen) < 2:
        return waiting or [absent(_alone(asked.analysis.job_activity))]
    together = workflow_of(list(chosen.values()))
    ledgers = dict(_ledgers(asked, together, list(chosen)))
    return [
        *waiting,
        section("Jobs", _table(asked, together, list(chosen)), note=together.name or "without a common name"),
        section("Who waits for whom", *_waits(asked, together)),
        *([section("Where each job's time went", asked.graph(job_ledgers(ledgers, together)))] if ledgers else []),
        *([section("GPU time by role", _role_times(together))] if together.roles else []),
    ]


def _jobs(asked: Asked) -> tuple[dict[int, JobActivity], list[str]]:
    """Position -> activity of the open runs of the shown run's workflow, and the names of runs that are being read."""
    shown, known = asked.analysis.job_activity, {at: asked.library[at] for at in range(len(asked.library))}
    jobs = {at: opened.analysis.job_activity for at, opened in known.items() if opened.analysis is not None}
    chosen = {
        at: job for at, job in jobs.items() if shown is not None and job is not None and job.workflow == shown.workflow
    }
    return chosen, [opened.name for opened in known.values() if opened.analysis is None and opened.problem is None]


def _alone(job: JobActivity | None) -> str:
    if job is not None and job.workflow is not None:
        return f"No other open run belongs to the workflow {job.workflow}."
    what = "names no workflow" if job is not None else "names no workflow, and waits for no other job"
    return (
        f"This run {what}. Start the jobs with TRAINCOPE_WORKFLOW and TRAINCOPE_ROLE, and put their waits into "
        "traincope.wait_for(role)."
    )


def _ledgers(asked: Asked, together: Workflow, positions: Sequence[int]) -> Iterator[tuple[str, Ledger]]:
    """Role -> ledger of the jobs with a step."""
    for job, at in zip(together.jobs, positions, strict=True):
        analysis = asked.library[at].analysis
        if analysis is not None and analysis.ledger.rank_steps:
            yield job.role, analysis.ledger


def _table(asked: Asked, together: Workflow, positions: Sequence[int]) -> Component:
    value = partial(number, workflow_document(together, ()), command=JOBS)
    rows = [
        [
            dcc.Link(plain(job.role), href=asked.view.on("ledger", **{RUN: at}).address),
            value("jobs", place, "num_ranks", form="count"),
            value("jobs", place, "num_steps", form="count"),
            value("jobs", place, "wait_ratio", form="share"),
        ]
        for place, (job, at) in enumerate(zip(together.jobs, positions, strict=True))
    ]
    return table(("job", "ranks", "steps", "waits for other jobs"), rows)


def _role_times(together: Workflow) -> Component:
    """The parts of each role's time, which sum to the elapsed time of its ranks."""
    value = partial(number, workflow_document(together, ()), command=JOBS)
    rows = [
        [
            plain(role.role),
            plain(part_name(part)),
            value("roles", place, "parts", at, "ns", form="duration"),
            value("roles", place, "parts", at, "ratio", form="share"),
        ]
        for place, role in enumerate(together.roles)
        for at, part in enumerate(role.parts)
    ]
    return table(("role", "what", "rank time", "share"), rows)


def _waits(asked: Asked, together: Workflow) -> list[Component]:
    listed = html.Ul([html.Li(plain(sentence)) for sentence in sentences(together)])
    return [asked.graph(job_waits(together.waits)), listed] if together.waits else [listed]


PAGE = Page(slug="jobs", title="Jobs", needs=Needs.ANALYSIS, render=render)
