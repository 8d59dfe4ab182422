"""Jobs that work together, as a document and as text: who waits for whom, and what the awaited job did then."""

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from traincope.analysis.communication.workflow import JobWait, Workflow
from traincope.lines import INDENT, Trimmed, indented, table, text
from traincope.report import schema
from traincope.units import MISSING, share

NO_WAIT = "No wait is recorded: put the waits of the training loops into traincope.wait_for(role)."
MOSTLY = 2 / 3
"""Share of a wait from which one thing that the awaited job did then explains it: twice all others."""
NAMED = 0.01
"""Share of step time from which a wait is explained, and share of the wait from which time without records is named.
"""


def workflow_document(workflow: Workflow, reports: Sequence[schema.Document]) -> schema.Workflow:
    """Return the workflow as the object that `--format json` prints."""
    return schema.Workflow(
        name=workflow.name,
        jobs=schema.plain(workflow.jobs),
        waits=schema.plain(workflow.waits),
        reports=list(reports),
    )


def render_workflow(workflow: Workflow, console: Console) -> None:
    """Print the jobs and their waits for each other. The report of each job is printed by `render`."""
    head = Text("JOBS THAT WORK TOGETHER", style="bold")
    console.print(head.append_text(text(f"  {workflow.name}" if workflow.name else "", style="not bold dim")))
    for renderable in (_jobs(workflow), indented(map(text, sentences(workflow)))):
        console.print(Trimmed(renderable), end="")


def _jobs(workflow: Workflow) -> RenderableType:
    rows = table("job", "ranks", "steps", "waits for other jobs")
    for job in workflow.jobs:
        waits = MISSING if job.wait_ratio is None else share(job.wait_ratio)
        rows.add_row(text(f"{' ' * INDENT}{job.role}"), f"{job.num_ranks:,}", f"{job.num_steps:,}", waits)
    return rows


def sentences(workflow: Workflow) -> Iterator[str]:
    """The waits, and the jobs that have none of the others to compare with. One sentence each."""
    if not workflow.waits:
        yield NO_WAIT
    yield from map(_wait_sentence, workflow.waits)
    if len(workflow.jobs) > 1:
        yield from (f"{job.role} ran while no other of these jobs did." for job in workflow.jobs if job.alone)


def _wait_sentence(wait: JobWait) -> str:
    """The share of the wait; what the awaited job did then and what to do, if the share is worth it."""
    waits = f"{wait.waiting} waits for {wait.awaited} {share(wait.ratio)} of its step time"
    return f"{waits}: {_meanwhile(wait)}." if wait.ratio >= NAMED else f"{waits}."


def _meanwhile(wait: JobWait) -> str:
    if wait.worked_ratio is None or wait.waited_ratio is None:
        return f"{wait.awaited} has no records of that time here"
    absent = 1 - wait.recorded_ratio
    did = f"{wait.awaited} then works {share(wait.worked_ratio)} and waits for other jobs {share(wait.waited_ratio)}"
    if absent >= NAMED:
        did = f"{did}, and has no records of {share(absent)}"
    if wait.worked_ratio >= MOSTLY:
        return f"{did}. Its work takes the time: give it more GPUs, or let {wait.waiting} work ahead"
    if wait.waited_ratio >= MOSTLY:
        return f"{did}. Both wait: look at which job {wait.awaited} waits for, and at what passes between the jobs"
    if absent >= MOSTLY:
        return f"{did}. Look at whether {wait.awaited} ran then"
    if wait.recorded_ratio - wait.worked_ratio - wait.waited_ratio >= MOSTLY:
        return f"{did}. Look at what {wait.awaited} does outside of its steps"
    return f"{did}. None of these takes most of the wait"
