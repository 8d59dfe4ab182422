"""All time of one rank by what its training thread did, from its first record to its last instant.

Unlike the ledger's terms it covers the time outside of steps too, and waits inside parts that are not training are
waits. So the times of the ranks of all roles add up to the elapsed time.
"""

from collections.abc import Mapping

import numpy as np

from traincope.analysis.attribution.stalls import SPLIT, StallSplit
from traincope.analysis.attribution.terms import COMPUTE, HOST_TERMS, JOB_WAIT, PHASE_TERMS, UNATTRIBUTED
from traincope.analysis.attribution.thread_slices import ThreadSlices
from traincope.arrays import Ints
from traincope.events import Phase
from traincope.timeline import RankTimeline
from traincope.timeline.intervals.union import Union

TRAIN = "train"
"""Compute of the trained model: forward, backward, recomputation, optimizer."""
TRANSFER = "transfer"
"""Communication that stops the thread, of which the records show no wait."""
MAY_WAIT = "transfer or wait"
"""Communication of which the records do not show whether it waits."""
RANK_WAIT = "wait for ranks"
"""Wait for other ranks of the job; ` in PART` follows where it is inside a part that is not training."""
GROUP_WAIT = "wait for other groups"
"""Wait for other jobs to join a collective."""
OUTSIDE = "outside of steps"
"""Time that no record covers, outside of steps."""

WAITS = [HOST_TERMS.index(PHASE_TERMS[phase]) for phase in (Phase.JOB_WAIT, Phase.DATA_WAIT)]
"""Codes of waits, which stay waits inside parts that are not training."""
Activities = Mapping[str, Union]
"""What the thread did -> when, in ns on the axis of the run. No two of them overlap."""


def activities(rank: RankTimeline, slices: ThreadSlices, split: StallSplit, *, recorded: RankTimeline) -> Activities:
    """Divide a rank's recorded time among what its training thread did. Empty without a record.

    `recorded`: the rank as its host recorded it, if the slices are of its GPU.
    """
    if not len(recorded.main):
        return {}
    first_ns, last_ns = int(recorded.main["start_ns"].min()), recorded.last_ns
    named = np.array([_activity(term) for term in slices.terms], dtype=object)
    found: dict[str, list[tuple[Ints, Ints]]] = {}

    def add(name: str, starts: Ints, ends: Ints) -> None:
        found.setdefault(name, []).append((np.clip(starts, first_ns, last_ns), np.clip(ends, first_ns, last_ns)))

    own = np.flatnonzero(~slices.stalled)
    code = np.where(np.isin(slices.inside, WAITS), slices.inside, slices.code)[own]
    names = named[code]
    names[(names == UNATTRIBUTED) & (slices.step[own] < 0)] = OUTSIDE
    of_jobs = np.flatnonzero(names == JOB_WAIT)
    roles = slices.intervals["name"][slices.owner[own[of_jobs]]]
    names[of_jobs] = [job_wait(rank.name(number)) for number in roles.tolist()]
    for name in np.unique(names.astype(str)).tolist():
        add(name, slices.start_ns[own[names == name]], slices.end_ns[own[names == name]])
    between_jobs = np.array([group.between_jobs for group in rank.groups] + [False])
    groups = slices.intervals["group"][slices.owner[split.at]]
    beyond = between_jobs[np.minimum(groups, len(rank.groups))]
    starts, ends = slices.start_ns[split.at], slices.end_ns[split.at]
    parts = slices.part[split.at]
    for part in np.unique(parts).tolist():
        inside = "" if part < 0 else f" in {slices.terms[part]}"
        here = parts == part
        for name, chosen in ((f"{RANK_WAIT}{inside}", here & ~beyond), (GROUP_WAIT, here & beyond)):
            add(name, starts[chosen], starts[chosen] + split.wait_ns[chosen])
        unsplit = split.cause != SPLIT
        for name, chosen in ((TRANSFER, here & ~unsplit), (MAY_WAIT, here & unsplit)):
            add(name, starts[chosen] + split.wait_ns[chosen], ends[chosen])
    covered = [int(slices.start_ns[0]), int(slices.end_ns[-1])] if len(slices.start_ns) else [last_ns, last_ns]
    add(OUTSIDE, np.array([first_ns, covered[1]]), np.array([covered[0], last_ns]))
    return {name: union for name, spans in found.items() if (union := _union(spans)).length_ns}


def job_wait(role: str) -> str:
    """Return the activity of a wait for the job with this role."""
    return f"{JOB_WAIT}[{role}]"


def awaited_by(activity: str) -> str | None:
    """Return the role that an activity waits for; None if it is no wait for a job."""
    return activity[len(JOB_WAIT) + 1 : -1] if activity.startswith(f"{JOB_WAIT}[") else None


def _activity(term: str) -> str:
    return TRAIN if term in COMPUTE else term


def _union(spans: list[tuple[Ints, Ints]]) -> Union:
    starts, ends = (np.concatenate(side).astype(np.int64) for side in zip(*spans, strict=True))
    kept = ends > starts
    return Union.of(starts[kept], ends[kept])
