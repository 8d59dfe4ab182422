"""Activity of one job of a workflow: its waits for other jobs, and when its ranks worked or waited.

It holds all that a comparison with the other jobs needs, without the records.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.attribution.terms import JOB_WAIT
from traincope.analysis.communication.job_waits import job_waits, ranks_of, timed_waits, waits
from traincope.analysis.communication.rank_time import Activities
from traincope.analysis.ledger.ledger import Ledger
from traincope.arrays import Ints
from traincope.events import Kind
from traincope.timeline import RankTimeline, Timeline
from traincope.timeline.intervals.union import Union

AT_WORK = (Kind.STEP, Kind.PHASE, Kind.ACTION, Kind.COLLECTIVE, Kind.STALL, Kind.SPAN)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankActivity:
    """Activity of a rank's training thread, as unions of intervals. Times are ns since the epoch."""

    recorded: Union
    """From its first record to its last instant."""
    working: Union
    """In a step or any other record, waits for jobs included."""
    waiting: Union
    activities: Activities
    """What the thread did -> when. They add up to `recorded`."""

    def shares_ns(self, starts_ns: Ints, ends_ns: Ints) -> tuple[int, int, int]:
        """Return how much of the intervals was recorded, at work without waits, and in waits for jobs."""
        within = [
            int(each.covered_ns(starts_ns, ends_ns).sum()) for each in (self.recorded, self.working, self.waiting)
        ]
        return within[0], within[1] - within[2], within[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsFor:
    """Waits of a job for one role, over its ranks and timed steps."""

    ns: int
    """Its part of the ledger's `job_wait`."""
    starts_ns: Ints
    ends_ns: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class JobActivity:
    workflow: str | None
    role: str | None
    """None: it has declared none."""
    run_id: str
    num_ranks: int
    num_steps: int
    """Timed steps: those of the ledger's shares."""
    waited_ns: int
    """Waits for other jobs, over ranks and timed steps."""
    wall_ns: int
    """The step time that they are a part of."""
    waits: Mapping[str, WaitsFor]
    """By the awaited role, the largest first."""
    ranks: tuple[RankActivity, ...]
    has_groups_between_jobs: bool
    """A rank is in a group with members in other jobs."""


def is_job_of_a_workflow(timeline: Timeline) -> bool:
    """True if the run has declared a workflow or a role, or recorded a wait for another job or a group with one."""
    info = timeline.run.info
    declared = bool(info.workflow or info.role)
    return declared or _has_groups_between_jobs(timeline) or any(len(waits(rank)) for rank in timeline.ranks)


def _has_groups_between_jobs(timeline: Timeline) -> bool:
    return any(group.between_jobs for rank in timeline.ranks for group in rank.groups)


def job_activity(timeline: Timeline, ledger: Ledger, done: Mapping[int, Activities]) -> JobActivity:
    """Collect the activity of a run. Pure; `ledger` and `done`, the activities of each rank, are of the timeline.

    Without the activities, a rank has none.
    """
    info, known = timeline.run.info, [rank.known(JOB_WAIT) for rank in ledger.ranks]
    return JobActivity(
        workflow=info.workflow,
        role=info.role,
        run_id=info.id,
        num_ranks=info.world_size,
        num_steps=len({number for rank in ledger.ranks for number in rank.numbers[rank.timed].tolist()}),
        waited_ns=sum(ns for ns, _ in known),
        wall_ns=sum(wall_ns for _, wall_ns in known),
        waits=dict(_waits(timeline, ledger)),
        ranks=tuple(_activity(rank, done.get(rank.rank, {})) for rank in timeline.ranks),
        has_groups_between_jobs=_has_groups_between_jobs(timeline),
    )


def _waits(timeline: Timeline, ledger: Ledger) -> Iterator[tuple[str, WaitsFor]]:
    for awaited, ns in job_waits(timeline, ledger).items():
        found = []
        for own, waiting in zip(ledger.ranks, ranks_of(timeline, ledger), strict=True):
            records = timed_waits(waiting, own)
            is_for = np.array([waiting.name(number) == awaited for number in records["name"].tolist()], dtype=bool)
            found.append(records[is_for])
        named = np.concatenate(found)
        starts, ends = (named[side].astype(np.int64) for side in ("start_ns", "end_ns"))
        yield awaited, WaitsFor(ns=ns, starts_ns=starts, ends_ns=ends)


def _activity(rank: RankTimeline, done: Activities) -> RankActivity:
    records, waiting = rank.closed(rank.of_kind(*AT_WORK)), waits(rank)
    first = np.array([rank.main["start_ns"].min()] if len(rank.main) else [], dtype=np.int64)
    return RankActivity(
        recorded=Union.of(first, np.full_like(first, rank.last_ns)),
        working=_union(np.concatenate([records, waiting])),
        waiting=_union(waiting),
        activities=done,
    )


def _union(records: NDArray[np.void]) -> Union:
    return Union.of(records["start_ns"].astype(np.int64), records["end_ns"].astype(np.int64))
