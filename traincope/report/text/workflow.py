"""Jobs that work together, as a document and as text: who waits for whom, and what the awaited job did then."""

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from traincope.analysis.attribution.terms import is_part
from traincope.analysis.communication.exchanges import Exchange
from traincope.analysis.communication.role_time import RoleTime, TimePart
from traincope.analysis.communication.workflow import JobWait, Workflow
from traincope.lines import INDENT, Trimmed, indented, table, text
from traincope.report import schema
from traincope.units import MISSING, count, duration, share

NO_WAIT = "No wait is recorded: put the waits of the training loops into traincope.wait_for(role)."
NOT_JOINED = (
    "The jobs have groups with members in other jobs: `traincope report` of the runs of all members shows who waits in "
    "their collectives."
)
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
        exchanges=schema.plain(workflow.exchanges),
        elapsed_ns=workflow.elapsed_ns,
        sentences=[*sentences(workflow)],
        roles=schema.plain(workflow.roles),
        reports=list(reports),
    )


def render_workflow(workflow: Workflow, console: Console) -> None:
    """Print the jobs and their waits for each other. The report of each job is printed by `render`."""
    head = Text("JOBS THAT WORK TOGETHER", style="bold")
    console.print(head.append_text(text(f"  {workflow.name}" if workflow.name else "", style="not bold dim")))
    for renderable in (_jobs(workflow), indented(map(text, sentences(workflow)))):
        console.print(Trimmed(renderable), end="")
    if workflow.roles:
        head = Text("GPU TIME BY ROLE", style="bold")
        console.print(head.append_text(text(f"  {duration(workflow.elapsed_ns)} elapsed", style="not bold dim")))
        console.print(Trimmed(_role_times(workflow.roles)), end="")


def _jobs(workflow: Workflow) -> RenderableType:
    rows = table("job", "ranks", "steps", "waits for other jobs")
    for job in workflow.jobs:
        waits = MISSING if job.wait_ratio is None else share(job.wait_ratio)
        rows.add_row(text(f"{' ' * INDENT}{job.role}"), f"{job.num_ranks:,}", f"{job.num_steps:,}", waits)
    return rows


def _role_times(roles: Sequence[RoleTime]) -> RenderableType:
    """The parts of each role's time. They sum to the elapsed time of its ranks, without a rest."""
    rows = table("role", "rank time", "share")
    for role in roles:
        name = f"{' ' * INDENT}{role.role}, {count(role.num_ranks, 'rank')}"
        rows.add_row(text(name, style="bold"), duration(role.total_ns), share(1.0))
        for part in role.parts:
            rows.add_row(text(f"{' ' * 2 * INDENT}{part_name(part)}"), duration(part.ns), share(part.ratio))
    return rows


def part_name(part: TimePart) -> str:
    """Return what a part of a role's time is, in words."""
    if part.awaited is None:
        return f"idle: {part.what}" if part.idle else part.what
    return f"idle: waits for {part.awaited}, in {part.meanwhile}"


def _exchange_sentences(found: Sequence[Exchange]) -> Iterator[str]:
    """How long each job waits in the collectives between the jobs, and for which of them."""
    for axis in dict.fromkeys(each.axis for each in found):
        jobs = [each for each in found if each.axis == axis]
        for each in jobs:
            waits = MISSING if each.wait_ratio is None else share(each.wait_ratio)
            sends = MISSING if each.transfer_ratio is None else share(each.transfer_ratio)
            yield (
                f"{each.role} waits {waits} of its step time for the other jobs on {axis}, and transfers {sends}, in "
                f"{count(each.num_collectives, 'collective')}; {share(each.awaited_ratio or 0.0)} of all waits in them "
                "are for it."
            )
        yield from _late_sentence(jobs, axis)


def _late_sentence(jobs: Sequence[Exchange], axis: str) -> Iterator[str]:
    """The job for which the others wait. One that only began last is not late."""
    began, latest = max(jobs, key=lambda each: each.begun_ns), max(jobs, key=lambda each: each.awaited_ns)
    begun_ns, awaited_ns = (sum(ns) for ns in zip(*((each.begun_ns, each.awaited_ns) for each in jobs), strict=True))
    named = began if begun_ns > awaited_ns else latest
    waiting = max((each.wait_ratio or 0.0 for each in jobs if each is not named), default=0.0)
    if waiting < NAMED:
        return
    if begun_ns > awaited_ns:
        begun = share(begun_ns / (begun_ns + awaited_ns))
        yield f"{began.role} began last: {begun} of the waits on {axis} are in the first step that all share."
    elif (latest.awaited_ratio or 0.0) >= MOSTLY:
        yield (
            f"{latest.role} is late: the other jobs wait for it up to {share(waiting)} of their step time. Look at "
            "what its ledger has more than theirs."
        )
    else:
        yield f"Most waits on {axis} are for no single job: their steps vary. Let them exchange less often."


def sentences(workflow: Workflow) -> Iterator[str]:
    """The waits, and the jobs that have none of the others to compare with. One sentence each."""
    if workflow.has_groups_between_jobs and not workflow.exchanges:
        yield NOT_JOINED
    elif not workflow.waits and not workflow.exchanges:
        yield NO_WAIT
    yield from _exchange_sentences(workflow.exchanges)
    yield from (_wait_sentence(wait, _mostly_in(wait, workflow.roles)) for wait in workflow.waits)
    if len(workflow.jobs) > 1:
        yield from (f"{job.role} ran while no other of these jobs did." for job in workflow.jobs if job.alone)


def _mostly_in(wait: JobWait, roles: Sequence[RoleTime]) -> str | None:
    """Return the part of a step in which the awaited job spends most of the wait; None without one."""
    parts = [part for role in roles if role.role == wait.waiting for part in role.parts if part.awaited == wait.awaited]
    longest = max(parts, key=lambda part: part.ns, default=None)
    if longest is None or 2 * longest.ns < sum(part.ns for part in parts):
        return None
    return longest.meanwhile if is_part(longest.meanwhile or "") else None


def _wait_sentence(wait: JobWait, part: str | None) -> str:
    """The share of the wait; what the awaited job did then and what to do, if the share is worth it.

    `part`: the part of a step in which the awaited job was for most of the wait.
    """
    waits = f"{wait.waiting} waits for {wait.awaited} {share(wait.ratio)} of its step time"
    return f"{waits}: {_meanwhile(wait, part)}." if wait.ratio >= NAMED else f"{waits}."


def _meanwhile(wait: JobWait, part: str | None) -> str:
    if wait.worked_ratio is None or wait.waited_ratio is None:
        return f"{wait.awaited} has no records of that time here"
    absent = 1 - wait.recorded_ratio
    mostly = "" if part is None else f", mostly in {part},"
    works = f"{wait.awaited} then works {share(wait.worked_ratio)}{mostly}"
    did = f"{works} and waits for other jobs {share(wait.waited_ratio)}"
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
