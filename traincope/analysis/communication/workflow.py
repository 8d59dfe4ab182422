"""Jobs that work together, trainer and actor for example: how long each waits for the others, and what they do then.

Times of all jobs are ns since the epoch, by the clocks of their hosts.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.attribution.terms import JOB_WAIT
from traincope.analysis.communication.job_waits import job_waits, ranks_of, timed_waits, waits
from traincope.analysis.ledger.ledger import Ledger
from traincope.arrays import Ints
from traincope.errors import UsageError
from traincope.events import Kind
from traincope.timeline import RankTimeline, Timeline
from traincope.timeline.intervals.union import Union

AT_WORK = (Kind.STEP, Kind.PHASE, Kind.ACTION, Kind.COLLECTIVE, Kind.STALL, Kind.SPAN)
WORKFLOW, ROLE = "workflow", "role"
"""Settings of a run: the name that jobs share, and the name of this one among them."""


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
    """Compare runs that worked together, in the given order. Pure. Raises UsageError if their names differ."""
    roles = _roles(runs)
    names = {str(name) for run in runs if (name := run.timeline.run.info.settings.get(WORKFLOW))}
    if len(names) > 1:
        raise UsageError(f"the runs belong to different workflows: {', '.join(sorted(names))}; report each by itself")
    busy = {role: tuple(map(_busy, run.timeline.ranks)) for role, run in zip(roles, runs, strict=True)}
    found = [wait for role, run in zip(roles, runs, strict=True) for wait in _waits(role, run, busy)]
    return Workflow(
        name=names.pop() if names else None,
        jobs=tuple(_job(role, run) for role, run in zip(roles, runs, strict=True)),
        waits=tuple(sorted(found, key=lambda wait: -wait.ratio)),
    )


def _roles(runs: Sequence[Analysed]) -> tuple[str, ...]:
    """Return the role of each run; its id if it has none. A role that several runs have gets their ids."""
    infos = [run.timeline.run.info for run in runs]
    roles = [str(info.settings.get(ROLE) or info.id) for info in infos]
    counts = Counter(roles)
    return tuple(role if counts[role] == 1 else f"{role} ({info.id})" for role, info in zip(roles, infos, strict=True))


def _known(ledger: Ledger) -> tuple[int, int]:
    known = [rank.known(JOB_WAIT) for rank in ledger.ranks]
    return sum(ns for ns, _ in known), sum(wall_ns for _, wall_ns in known)


def _job(role: str, run: Analysed) -> Job:
    waited_ns, wall_ns = _known(run.ledger)
    return Job(
        role=role,
        run_id=run.timeline.run.info.id,
        num_ranks=run.timeline.run.info.world_size,
        num_steps=max((len(rank.numbers) for rank in run.ledger.ranks), default=0),
        wait_ratio=waited_ns / wall_ns if wall_ns else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Busy:
    """Activity of a rank's training thread, as unions of intervals."""

    recorded: Union
    """From its first record to its last instant."""
    working: Union
    """In a step or any other record, waits for jobs included."""
    waiting: Union

    def shares_ns(self, starts_ns: Ints, ends_ns: Ints) -> tuple[int, int, int]:
        """Return how much of the intervals was recorded, at work without waits, and in waits for jobs."""
        within = [
            int(each.covered_ns(starts_ns, ends_ns).sum()) for each in (self.recorded, self.working, self.waiting)
        ]
        return within[0], within[1] - within[2], within[2]


def _busy(rank: RankTimeline) -> _Busy:
    records, waiting = rank.closed(rank.of_kind(*AT_WORK)), waits(rank)
    first = np.array([rank.main["start_ns"].min()] if len(rank.main) else [], dtype=np.int64)
    return _Busy(
        recorded=Union.of(first, np.full_like(first, rank.last_ns)),
        working=_union(np.concatenate([records, waiting])),
        waiting=_union(waiting),
    )


def _union(records: NDArray[np.void]) -> Union:
    return Union.of(records["start_ns"].astype(np.int64), records["end_ns"].astype(np.int64))


def _waits(role: str, run: Analysed, busy: Mapping[str, tuple[_Busy, ...]]) -> Iterator[JobWait]:
    _, wall_ns = _known(run.ledger)
    for awaited, ns in job_waits(run.timeline, run.ledger).items():
        worked, waited = _meanwhile(run, awaited, busy.get(awaited, ()))
        yield JobWait(
            waiting=role, awaited=awaited, ns=ns, ratio=ns / wall_ns, worked_ratio=worked, waited_ratio=waited
        )


def _meanwhile(run: Analysed, awaited: str, ranks: Sequence[_Busy]) -> tuple[float | None, float | None]:
    """Shares of the waits for a job in which its ranks worked, and in which they waited for jobs themselves.

    It costs as much as there are waits, times the ranks of the awaited job: each needs one search for all waits.
    """
    found = []
    for ledger, waiting in zip(run.ledger.ranks, ranks_of(run.timeline, run.ledger), strict=True):
        records = timed_waits(waiting, ledger)
        is_for = np.array([waiting.name(number) == awaited for number in records["name"].tolist()], dtype=bool)
        found.append(records[is_for])
    named = np.concatenate(found)
    starts, ends = (named[side].astype(np.int64) for side in ("start_ns", "end_ns"))
    within = [each.shares_ns(starts, ends) for each in ranks]
    recorded, worked, waited = (sum(shares) for shares in zip(*within, strict=True)) if within else (0, 0, 0)
    return (worked / recorded, waited / recorded) if recorded else (None, None)
