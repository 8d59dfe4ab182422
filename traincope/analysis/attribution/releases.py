"""Releases of stalls: the rank that joined the collective last, and the time at which it joined.

Until that time the stalled rank waits for the last rank; after it, for the wire. No rank is named if that would be a
guess: if the records cannot split the stall (`AmbiguousWait`); if the data arrived before the stall began, as a message
does that its receiver waits for late; and if this rank's part ended before the last rank joined.
"""

from dataclasses import dataclass

import numpy as np

from traincope.analysis.attribution.stalls import SPLIT, StallSplit
from traincope.analysis.attribution.thread_slices import ThreadSlices
from traincope.analysis.attribution.transfers import Transfers
from traincope.arrays import Bools, Ints
from traincope.timeline import Instances, RankTimeline
from traincope.timeline.collectives.comparing import highest
from traincope.timeline.intervals.painting import ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """Releasing rank and time: one entry per slice that a stall owns, as in `StallSplit`."""

    rank: Ints
    """The rank that joined last, possibly this rank itself; ABSENT if unknown."""
    since_ns: Ints
    """Time at which it joined. If the hosts' clocks do not resolve it: end of this rank's part - shortest transfer."""


def releases(
    rank: RankTimeline, slices: ThreadSlices, split: StallSplit, *, instances: Instances, wire: Transfers, last: Ints
) -> Releases:
    """Find the releases of one rank's stalls. `last` is the rank that joined each instance last, -1 if unknown."""
    stalls = slices.intervals[slices.owner[split.at]]
    end_seen, joined_ns = _last_joins(rank, instances)
    since_ns = np.append(joined_ns, 0)[split.instance]
    error_ns = np.append(np.where(instances.starts_compare, instances.clock_error_ns, 0), 0)[split.instance]
    joined = np.append(last, ABSENT)[split.instance]
    joined_during = (since_ns - error_ns > stalls["start_ns"]) & (joined != rank.rank)
    arrived_ns = since_ns + np.append(wire.ns, 0)[split.instance]
    arrived_during = np.append(end_seen & wire.measured, False)[split.instance] & (
        arrived_ns + error_ns > stalls["start_ns"]
    )
    determined = (split.cause == SPLIT) & (joined_during | arrived_during) & (since_ns - error_ns <= stalls["end_ns"])
    return Releases(
        rank=np.where(determined, joined, ABSENT),
        since_ns=np.minimum(since_ns, stalls["end_ns"]),
    )


def _last_joins(rank: RankTimeline, instances: Instances) -> tuple[Bools, Ints]:
    """Return, for each instance, whether this rank saw its end, and when the last rank joined."""
    rank_parts = instances.parts_of[rank.rank]
    number = instances.number[rank_parts]
    end_seen, transfer_start_ns = np.zeros(len(instances), dtype=bool), np.zeros(len(instances), dtype=np.int64)
    end_seen[number] = ~instances.parts.bounded[rank_parts]
    transfer_start_ns[number] = instances.parts.end_ns[rank_parts] - instances.transfer_ns[number]
    started_ns = highest(instances.parts.start_ns, instances.number, len(instances))
    return end_seen, np.where(instances.starts_compare, started_ns, transfer_start_ns)
