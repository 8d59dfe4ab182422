"""Owner of each instant of a GPU: a compute kernel before communication, this before a copy, and the host if it idles.

Of several works of one class, the one that began last owns the instant. Idle time is a wait of the GPU itself if its
next work was launched before the GPU had nothing to do. Otherwise it belongs to what the host did before it launched
the next work: to the activity of the launching thread, otherwise to the launching itself.
"""

from dataclasses import dataclass

import numpy as np

from traincope.arrays import AFTER_ALL_NS, Bools, Ints
from traincope.events import Phase
from traincope.store.side_tables.traces import Trace
from traincope.timeline.device.phases import phases
from traincope.timeline.device.ranges import Ranges, activity_ranges
from traincope.timeline.device.works import NO_CALL, Works
from traincope.timeline.intervals.painting import ABSENT, owners
from traincope.timeline.intervals.union import Union


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """Consecutive pieces of a GPU's time, one entry each. Neighbours have different owners, or lie in two steps."""

    start_ns: Ints
    end_ns: Ints
    phase: Ints
    """`Phase` that owns the piece; NONE: exposed communication, or nothing known."""
    work: Ints
    """The communication that owns the piece; ABSENT: another owner."""


def owned(trace: Trace, works: Works, *, borders_ns: Ints) -> Owned:
    """Divide the time from the first to the last of the borders, which lie between pieces."""
    activities = activity_ranges(trace)
    times = (works.start_ns, works.end_ns, works.launched_ns, activities.start_ns, activities.end_ns, borders_ns)
    borders = np.unique(np.concatenate(times))
    borders = borders[(borders >= borders_ns.min()) & (borders <= borders_ns.max())]
    start_ns = borders[:-1]
    phase = np.full(len(start_ns), Phase.NONE, dtype=np.int64)
    launched_in = phases(trace, works)
    launched_in[works.memory & (launched_in != Phase.EVALUATION)] = Phase.EXPOSED_MEMORY
    computes = _owner(borders, works, works.compute)
    sends = np.where(computes == ABSENT, _owner(borders, works, works.communication), ABSENT)
    copies = np.where((computes == ABSENT) & (sends == ABSENT), _owner(borders, works, works.memory), ABSENT)
    for owner in (computes, copies):
        phase = np.where(owner == ABSENT, phase, np.append(launched_in, 0)[owner])
    evaluating = np.append(launched_in == Phase.EVALUATION, False)[sends] & (sends != ABSENT)
    phase = np.where(evaluating, Phase.EVALUATION, phase)
    idle = (computes == ABSENT) & (sends == ABSENT) & (copies == ABSENT)
    phase[idle] = _idle(works, activities, start_ns[idle])
    return _joined(start_ns, borders[1:], phase, np.where(evaluating, ABSENT, sends), at=borders_ns)


def _owner(borders: Ints, works: Works, chosen: Bools) -> Ints:
    """Return the chosen work that owns each piece; ABSENT without one."""
    rows = np.flatnonzero(chosen)
    starts, ends = (np.clip(times[rows], borders[0], borders[-1]) for times in (works.start_ns, works.end_ns))
    owner = owners(borders, starts, ends)
    return np.where(owner == ABSENT, ABSENT, np.append(rows, ABSENT)[owner])


def _idle(works: Works, activities: Ranges, times_ns: Ints) -> Ints:
    """Return the phase that owns idle time from each instant on.

    NONE: no work follows, or one without its launch, or a thread without a GPU does something unknown.
    """
    following = works.next_from(times_ns)
    last_thread, last_ns = (works.thread[0], AFTER_ALL_NS) if works.on_host else (NO_CALL, 0)
    thread = np.append(works.thread, last_thread)[following]
    launched_ns = np.append(works.launched_ns, last_ns)[following]
    result = np.where(np.append(works.call, NO_CALL)[following] == NO_CALL, Phase.NONE, Phase.LAUNCH_GAP)
    for lane in np.unique(thread[thread != NO_CALL]).tolist():
        before = np.flatnonzero((thread == lane) & (times_ns < launched_ns))
        at = activities.innermost(lane, times_ns[before])
        result[before] = np.where(at == ABSENT, result[before], np.append(activities.phase, 0)[at])
    queued = np.append(works.returned_ns, AFTER_ALL_NS)[following] <= works.latest_end_ns(times_ns)
    result[queued] = Phase.KERNEL_WAIT
    evaluation = activities.only((Phase.EVALUATION,))
    evaluated = Union.of(evaluation.start_ns, evaluation.end_ns).covered_ns(times_ns, times_ns + 1) > 0
    return np.where(evaluated, Phase.EVALUATION, result)


def _joined(start_ns: Ints, end_ns: Ints, phase: Ints, work: Ints, *, at: Ints) -> Owned:
    """Join neighbours with one owner, except at the borders `at`."""
    begins = np.ones(len(start_ns), dtype=bool)
    begins[1:] = (np.diff(phase) != 0) | (np.diff(work) != 0) | np.isin(start_ns[1:], at)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(start_ns)) - 1
    return Owned(start_ns=start_ns[first], end_ns=end_ns[last], phase=phase[first], work=work[first])
