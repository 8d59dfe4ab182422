"""Jobs that work together, trainer and actor for example: how long each waits for the others, and what they do then.

Times of all jobs are ns since the epoch, by the clocks of their hosts.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from traincope.analysis.communication.exchanges import Exchange, exchanges
from traincope.analysis.communication.job_activity import JobActivity, RankActivity, WaitsFor, job_activity
from traincope.analysis.communication.role_time import RoleTime, elapsed, role_times
from traincope.analysis.ledger.ledger import Ledger
from traincope.errors import UsageError
from traincope.timeline import JoinedGroup, Timeline
from traincope.timeline.intervals.union import Union


class Analysed(Protocol):
    """An analysed run; an `Analysis` is one."""

    @property
    def timeline(self) -> Timeline: ...

    @property
    def ledger(self) -> Ledger: ...

    @property
    def job_activity(self) -> JobActivity | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    role: str
    run_id: str
    num_ranks: int
    num_steps: int
    """Steps in the shares: the job's own report counts these too."""
    wait_ratio: float | None
    """Share of its step time in which its ranks wait for other jobs; None: it has no step."""
    alone: bool
    """No other of the jobs recorded while it did."""


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
    recorded_ratio: float
    """Share of these waits in which a run of the awaited role recorded."""
    worked_ratio: float | None
    """Share in which it worked: mean over its ranks that recorded then. None: it has no record of these waits."""
    waited_ratio: float | None
    """Share in which it waited for other jobs itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    name: str | None
    """None: the runs have no name in common."""
    jobs: tuple[Job, ...]
    waits: tuple[JobWait, ...]
    """The largest shares first."""
    exchanges: tuple[Exchange, ...] = ()
    """Collectives between the jobs, of runs that are read together."""
    has_groups_between_jobs: bool = False
    """A job has a group with members in other jobs, read here or not."""
    elapsed_ns: int = 0
    """From the first to the last recorded instant of all jobs."""
    roles: tuple[RoleTime, ...] = ()
    """Where the GPU time of each role went. Empty for runs that declare neither workflow nor role, and do not wait."""


def workflow(runs: Sequence[Analysed], joined: Sequence[JoinedGroup] = ()) -> Workflow:
    """Compare runs that worked together, in the given order. Pure. Raises as `workflow_of`.

    `joined`: the groups between these runs, by the runs' positions.
    """
    jobs = [run.job_activity or job_activity(run.timeline, run.ledger, {}) for run in runs]
    together = workflow_of(jobs)
    found = exchanges(joined, [job.role for job in together.jobs], [run.ledger for run in runs])
    return replace(together, jobs=tuple(_with_exchanges(job, found) for job in together.jobs), exchanges=found)


def _with_exchanges(job: Job, found: Sequence[Exchange]) -> Job:
    """Add the waits for other jobs in collectives with them."""
    waits = sum(each.wait_ratio or 0.0 for each in found if each.role == job.role)
    return replace(job, wait_ratio=(job.wait_ratio or 0.0) + waits) if waits else job


def workflow_of(jobs: Sequence[JobActivity]) -> Workflow:
    """Compare the activities of runs, in the given order. Pure. Raises UsageError if their names differ."""
    roles = _roles(jobs)
    names = {job.workflow for job in jobs if job.workflow}
    if len(names) > 1:
        raise UsageError(f"the runs belong to different workflows: {', '.join(sorted(names))}; report each by itself")
    ranks: dict[str, tuple[RankActivity, ...]] = {}
    for job in jobs:
        ranks[_declared(job)] = ranks.get(_declared(job), ()) + job.ranks
    found = [wait for role, job in zip(roles, jobs, strict=True) for wait in _waits(role, job, ranks)]
    known = all(rank.activities for job in jobs for rank in job.ranks)
    began_ns, ended_ns = elapsed(jobs)
    return Workflow(
        name=names.pop() if names else None,
        has_groups_between_jobs=any(job.has_groups_between_jobs for job in jobs),
        elapsed_ns=ended_ns - began_ns,
        roles=role_times(jobs, [_declared(job) for job in jobs]) if known else (),
        jobs=tuple(_jobs(roles, jobs)),
        waits=tuple(sorted(found, key=lambda wait: -wait.ratio)),
    )


def _roles(jobs: Sequence[JobActivity]) -> tuple[str, ...]:
    """Return the name of each run. A role that several runs have, because a job was relaunched, gets their ids."""
    roles = [_declared(job) for job in jobs]
    counts = Counter(roles)
    return tuple(role if counts[role] == 1 else f"{role} ({job.run_id})" for role, job in zip(roles, jobs, strict=True))


def _declared(job: JobActivity) -> str:
    """Return the name by which other jobs wait for it: its role, or its id."""
    return job.role or job.run_id


def _jobs(roles: Sequence[str], jobs: Sequence[JobActivity]) -> Iterator[Job]:
    recorded = [_recorded(job.ranks) for job in jobs]
    for role, job, own in zip(roles, jobs, recorded, strict=True):
        others = (other for other in recorded if other is not own)
        yield Job(
            role=role,
            run_id=job.run_id,
            num_ranks=job.num_ranks,
            num_steps=job.num_steps,
            wait_ratio=job.waited_ns / job.wall_ns if job.wall_ns else None,
            alone=not any(other.covered_ns(own.starts_ns, own.ends_ns).any() for other in others),
        )


def _waits(role: str, job: JobActivity, ranks: Mapping[str, tuple[RankActivity, ...]]) -> Iterator[JobWait]:
    for awaited, waits in job.waits.items():
        recorded, worked, waited = _meanwhile(waits, ranks.get(awaited, ()))
        yield JobWait(
            waiting=role,
            awaited=awaited,
            ns=waits.ns,
            ratio=waits.ns / job.wall_ns,
            recorded_ratio=recorded,
            worked_ratio=worked,
            waited_ratio=waited,
        )


def _meanwhile(waits: WaitsFor, ranks: Sequence[RankActivity]) -> tuple[float, float | None, float | None]:
    """Shares of the waits for a job in which it recorded, in which it worked, and in which it waited for jobs itself.

    `ranks`: those of all its runs. It costs as much as there are waits, times the ranks: each needs one search for all
    waits.
    """
    within = [each.shares_ns(waits.starts_ns, waits.ends_ns) for each in ranks]
    rank_ns, worked_ns, waited_ns = (sum(shares) for shares in zip(*within, strict=True)) if within else (0, 0, 0)
    if not rank_ns:
        return 0.0, None, None
    recorded_ns = int(_recorded(ranks).covered_ns(waits.starts_ns, waits.ends_ns).sum())
    recorded = recorded_ns / int((waits.ends_ns - waits.starts_ns).sum())
    return recorded, recorded * worked_ns / rank_ns, recorded * waited_ns / rank_ns


def _recorded(ranks: Sequence[RankActivity]) -> Union:
    """Return the time in which any of the ranks recorded."""
    never = np.empty(0, dtype=np.int64)
    starts_ns = np.concatenate([never, *(rank.recorded.starts_ns for rank in ranks)])
    return Union.of(starts_ns, np.concatenate([never, *(rank.recorded.ends_ns for rank in ranks)]))
