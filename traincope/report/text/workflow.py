"""Jobs that work together, as a document and as text: who waits for whom, and what the awaited job did then."""

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from traincope.analysis.communication.workflow import JobWait, Workflow
from traincope.report import schema
from traincope.report.text.layout.lines import INDENT, Trimmed, indented, table, text
from traincope.units import MISSING, share

NO_WAIT = "No wait is recorded: put the waits of the training loops into traincope.wait_for(role)."
MOSTLY = 0.5
"""Share of a wait from which what the awaited job did then explains it."""


def workflow_document(workflow: Workflow, reports: Sequence[schema.Document]) -> schema.Workflow:
    """Return the workflow as the object that `--format json` prints."""
    return schema.Workflow(
        name=workflow.name,
        jobs=[schema.convert(job, schema.WorkflowJob) for job in workflow.jobs],
        waits=[schema.convert(wait, schema.JobWait) for wait in workflow.waits],
        reports=list(reports),
    )


def render_workflow(workflow: Workflow, console: Console) -> None:
    """Print the jobs and their waits for each other. The report of each job is printed by `render`."""
    head = Text("JOBS THAT WORK TOGETHER", style="bold")
    console.print(head.append_text(text(f"  {workflow.name}" if workflow.name else "", style="not bold dim")))
    for renderable in (_jobs(workflow), indented(_lines(workflow))):
        console.print(Trimmed(renderable), end="")


def _jobs(workflow: Workflow) -> RenderableType:
    rows = table("job", "ranks", "steps", "waits for other jobs")
    for job in workflow.jobs:
        waits = MISSING if job.wait_ratio is None else share(job.wait_ratio)
        rows.add_row(text(f"{' ' * INDENT}{job.role}"), f"{job.num_ranks:,}", f"{job.num_steps:,}", waits)
    return rows


def _lines(workflow: Workflow) -> Iterator[Text]:
    if not workflow.waits:
        yield text(NO_WAIT)
    for wait in workflow.waits:
        yield text(wait_sentence(wait))


def wait_sentence(wait: JobWait) -> str:
    """One sentence: the share of the wait, what the awaited job did then, and what to do."""
    return f"{wait.waiting} waits for {wait.awaited} {share(wait.ratio)} of its step time: {_meanwhile(wait)}"


def _meanwhile(wait: JobWait) -> str:
    if wait.worked_ratio is None or wait.waited_ratio is None:
        return f"{wait.awaited} has no records of that time here"
    did = f"{wait.awaited} then works {share(wait.worked_ratio)} and waits for other jobs {share(wait.waited_ratio)}"
    if wait.worked_ratio >= MOSTLY:
        return f"{did}. It sets the pace: give it more GPUs, or let {wait.waiting} work ahead"
    if wait.waited_ratio >= MOSTLY:
        return f"{did}. Both wait: what passes between them takes the time"
    return f"{did}. Look at what {wait.awaited} does outside of its steps"
