"""GPU time of every role of a workflow, in one exact sum: elapsed time times ranks = work + idle time.

Idle time is divided by what it waits for. A wait for another job is divided further by what that job did meanwhile.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traincope.analysis.attribution.terms import JOB_WAIT
from traincope.analysis.communication.job_activity import JobActivity, RankActivity
from traincope.analysis.communication.rank_time import GROUP_WAIT, OUTSIDE, RANK_WAIT, awaited_by
from traincope.arrays import Ints
from traincope.timeline.intervals.union import Union

NOT_STARTED, ENDED, NO_RECORDS = "not started", "ended", "no records"
"""Time of a rank before its first record, after its last one, and of a rank without records."""
NOTHING_RECORDED = "nothing recorded"
"""Time of a wait in which no rank of the awaited role recorded."""
DATA_WAIT = "data_wait"
IDLE = frozenset({JOB_WAIT, DATA_WAIT, OUTSIDE, GROUP_WAIT, NOT_STARTED, ENDED, NO_RECORDS})


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePart:
    """Part of a role's GPU time."""

    what: str
    """A term of the ledger, `train`, `transfer`, or what idle time is for: `job_wait`, `wait for ranks in reward`."""
    idle: bool
    ns: int
    """Sum over the role's ranks."""
    ratio: float
    """Share of the role's GPU time."""
    awaited: str | None = None
    """Role of the awaited job, of `job_wait`."""
    meanwhile: str | None = None
    """What the awaited job did then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTime:
    """GPU time of one role: of one run, or of the runs of a relaunched job, which follow each other."""

    role: str
    """With the first run's id where several jobs of the role ran at once."""
    num_ranks: int
    """The largest number of ranks of its runs."""
    total_ns: int
    """`elapsed_ns` of the workflow times ranks. The parts sum to it."""
    idle_ratio: float
    parts: tuple[TimePart, ...]
    """Work first, then idle time, each with the largest first."""


def is_idle(what: str) -> bool:
    """Return whether a rank waits, or does nothing, in an activity."""
    return what in IDLE or what.startswith(RANK_WAIT)


def elapsed(jobs: Sequence[JobActivity]) -> tuple[int, int]:
    """Return the first and the last recorded instant of all jobs, in ns since the epoch; twice 0 without records."""
    recorded = [rank.recorded for job in jobs for rank in job.ranks if len(rank.recorded.starts_ns)]
    if not recorded:
        return 0, 0
    return min(int(each.starts_ns[0]) for each in recorded), max(int(each.ends_ns[-1]) for each in recorded)


def role_times(jobs: Sequence[JobActivity], roles: Sequence[str]) -> tuple[RoleTime, ...]:
    """Divide the GPU time of each role. `roles`: the role of each job; runs of a relaunched job have one."""
    began_ns, ended_ns = elapsed(jobs)
    of_role: dict[str, list[JobActivity]] = {}
    for role, job in zip(roles, jobs, strict=True):
        of_role.setdefault(role, []).append(job)
    ranks = {role: [rank for job in those for rank in job.ranks] for role, those in of_role.items()}
    return tuple(
        _role(role if len(lanes) == 1 else f"{role} ({runs[0].run_id})", runs, ranks, began_ns, ended_ns)
        for role, those in of_role.items()
        for lanes in [_lanes(those, began_ns)]
        for runs in lanes
    )


def _lanes(jobs: Sequence[JobActivity], began_ns: int) -> list[list[JobActivity]]:
    """Group the runs of a role so that those of a group follow each other: a job and its relaunches."""
    lanes: list[list[JobActivity]] = []
    for job in sorted(jobs, key=lambda job: _bounds(job, began_ns)):
        free = (lane for lane in lanes if _bounds(lane[-1], began_ns)[1] <= _bounds(job, began_ns)[0])
        lane = next(free, None)
        if lane is None:
            lanes.append([job])
        else:
            lane.append(job)
    return lanes


Key = tuple[str, str | None, str | None]
"""What, awaited role, and what that role did meanwhile."""


def _role(
    role: str, runs: Sequence[JobActivity], ranks: Mapping[str, Sequence[RankActivity]], began_ns: int, ended_ns: int
) -> RoleTime:
    """Add up the ranks of runs that follow each other. Between two of them, a rank has not started."""
    num_ranks = max(job.num_ranks for job in runs)
    sums: dict[Key, int] = {}

    def add(what: str, ns: int, awaited: str | None = None, meanwhile: str | None = None) -> None:
        if ns:
            sums[what, awaited, meanwhile] = sums.get((what, awaited, meanwhile), 0) + ns

    for what, when in ((what, when) for job in runs for rank in job.ranks for what, when in rank.activities.items()):
        awaited = awaited_by(what)
        if awaited is None:
            add(what, when.length_ns)
        else:
            for meanwhile, ns in _meanwhile(when, ranks.get(awaited, ())).items():
                add(JOB_WAIT, ns, awaited, meanwhile)
    total_ns, last_ns = num_ranks * (ended_ns - began_ns), began_ns
    for job in runs:
        for rank in job.ranks:
            if len(rank.recorded.starts_ns):
                add(NOT_STARTED, int(rank.recorded.starts_ns[0]) - last_ns)
                end_ns = ended_ns if job is runs[-1] else _bounds(job, began_ns)[1]
                add(ENDED, end_ns - int(rank.recorded.ends_ns[-1]))
        last_ns = _bounds(job, began_ns)[1]
    add(NO_RECORDS, total_ns - sum(sums.values()))
    parts = [
        TimePart(what=what, idle=is_idle(what), ns=ns, ratio=ns / total_ns, awaited=awaited, meanwhile=meanwhile)
        for (what, awaited, meanwhile), ns in sums.items()
        if ns
    ]
    return RoleTime(
        role=role,
        num_ranks=num_ranks,
        total_ns=total_ns,
        idle_ratio=sum(part.ns for part in parts if part.idle) / total_ns if total_ns else 0.0,
        parts=tuple(sorted(parts, key=lambda part: (part.idle, -part.ns))),
    )


def _bounds(job: JobActivity, otherwise_ns: int) -> tuple[int, int]:
    recorded = [rank.recorded for rank in job.ranks if len(rank.recorded.starts_ns)]
    starts = [int(each.starts_ns[0]) for each in recorded] or [otherwise_ns]
    return min(starts), max([int(each.ends_ns[-1]) for each in recorded] or [otherwise_ns])


def _meanwhile(waits: Union, awaited: Sequence[RankActivity]) -> Mapping[str, int]:
    """Divide the waits for a role by what its ranks did then: the mean over those that recorded, in whole ns."""
    recorded = Union.of(*(_joined([rank.recorded for rank in awaited], side) for side in ("starts_ns", "ends_ns")))
    known_ns = int(recorded.covered_ns(waits.starts_ns, waits.ends_ns).sum())
    covered: dict[str, int] = {}
    for rank in awaited:
        for what, when in rank.activities.items():
            ns = int(when.covered_ns(waits.starts_ns, waits.ends_ns).sum())
            name = JOB_WAIT if awaited_by(what) else what
            covered[name] = covered.get(name, 0) + ns
    whole_ns = sum(covered.values())
    if not whole_ns:
        return {NOTHING_RECORDED: waits.length_ns}
    divided = {what: known_ns * ns // whole_ns for what, ns in covered.items() if ns}
    divided[max(divided, key=lambda what: divided[what])] += known_ns - sum(divided.values())
    return divided | ({NOTHING_RECORDED: waits.length_ns - known_ns} if waits.length_ns > known_ns else {})


def _joined(unions: Sequence[Union], side: str) -> Ints:
    return np.concatenate([np.empty(0, dtype=np.int64), *(getattr(each, side) for each in unions)])
