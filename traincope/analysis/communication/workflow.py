"""Jobs that work together, trainer and actor for example: how long each waits for the others, and what they do then.

Times of all jobs are ns since the epoch, by the clocks of their hosts.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from traincope.analysis.communication.job_activity import JobActivity, RankActivity, WaitsFor, job_activity
from traincope.analysis.ledger.ledger import Ledger
from traincope.errors import UsageError
from traincope.timeline import Timeline


class Analysed(Protocol):
    """An analysed run; an `Analysis` is one."""

    @property
    def timeline(self) -> Timeline: ...

    @property
    def ledger(self) -> Ledger: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    role: str
    run_id: str
    num_ranks: int
    num_steps: int
    wait_ratio: float | None
    """Share of its step time in which its ranks wait for other jobs; None: it has no step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWait:
    """Waits of one job for another."""

    waiting: str
    awaited: str
    """Roles."""
    ns: int
    """Sum over the waiting job's ranks and steps."""
    ratio: float
    """Share of the waiting job's step time."""
    worked_ratio: float | None
    """Share of these waits in which the awaited job worked: mean over its ranks. None: it is not among the runs, or it
    has no record of that time.
    """
    waited_ratio: float | None
    """Share in which it waited for other jobs itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    name: str | None
    """None: the runs have no name in common."""
    jobs: tuple[Job, ...]
    waits: tuple[JobWait, ...]
    """The largest shares first."""


def workflow(runs: Sequence[Analysed]) -> Workflow:
    """Compare runs that worked together, in the given order. Pure. Raises as `workflow_of`."""
    return workflow_of([job_activity(run.timeline, run.ledger) for run in runs])


def workflow_of(jobs: Sequence[JobActivity]) -> Workflow:
    """Compare the activities of runs, in the given order. Pure. Raises UsageError if their names differ."""
    roles = _roles(jobs)
    names = {job.workflow for job in jobs if job.workflow}
    if len(names) > 1:
        raise UsageError(f"the runs belong to different workflows: {', '.join(sorted(names))}; report each by itself")
    ranks = {role: job.ranks for role, job in zip(roles, jobs, strict=True)}
    found = [wait for role, job in zip(roles, jobs, strict=True) for wait in _waits(role, job, ranks)]
    return Workflow(
        name=names.pop() if names else None,
        jobs=tuple(_job(role, job) for role, job in zip(roles, jobs, strict=True)),
        waits=tuple(sorted(found, key=lambda wait: -wait.ratio)),
    )


def _roles(jobs: Sequence[JobActivity]) -> tuple[str, ...]:
    """Return the role of each run; its id if it has none. A role that several runs have gets their ids."""
    roles = [job.role or job.run_id for job in jobs]
    counts = Counter(roles)
    return tuple(role if counts[role] == 1 else f"{role} ({job.run_id})" for role, job in zip(roles, jobs, strict=True))


def _job(role: str, job: JobActivity) -> Job:
    return Job(
        role=role,
        run_id=job.run_id,
        num_ranks=job.num_ranks,
        num_steps=job.num_steps,
        wait_ratio=job.waited_ns / job.wall_ns if job.wall_ns else None,
    )


def _waits(role: str, job: JobActivity, ranks: Mapping[str, tuple[RankActivity, ...]]) -> Iterator[JobWait]:
    for awaited, waits in job.waits.items():
        worked, waited = _meanwhile(waits, ranks.get(awaited, ()))
        yield JobWait(
            waiting=role,
            awaited=awaited,
            ns=waits.ns,
            ratio=waits.ns / job.wall_ns,
            worked_ratio=worked,
            waited_ratio=waited,
        )


def _meanwhile(waits: WaitsFor, ranks: Sequence[RankActivity]) -> tuple[float | None, float | None]:
    """Shares of the waits for a job in which its ranks worked, and in which they waited for jobs themselves.

    It costs as much as there are waits, times the ranks of the awaited job: each needs one search for all waits.
    """
    within = [each.shares_ns(waits.starts_ns, waits.ends_ns) for each in ranks]
    recorded, worked, waited = (sum(shares) for shares in zip(*within, strict=True)) if within else (0, 0, 0)
    return (worked / recorded, waited / recorded) if recorded else (None, None)
