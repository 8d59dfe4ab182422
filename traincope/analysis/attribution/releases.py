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
from traincope.timeline.intervals.numbering import UNKNOWN
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
    known = split.instance != UNKNOWN
    instance = split.instance[known]
    compared = instances.comparable[instance] & (instances.lead_ns[instance] >= instances.clock_error_ns[instance])

    def at_stalls(values: Ints) -> Ints:
        """One entry per stall; 0 for those of unknown instances."""
        result = np.zeros(len(known), dtype=np.int64)
        result[known] = values
        return result

    end_seen, joined_ns = _last_joins(rank, instances, instance, compared=compared)
    since_ns = at_stalls(joined_ns)
    error_ns = at_stalls(np.where(compared, instances.clock_error_ns[instance], 0))
    joined = np.where(known, at_stalls(last[instance]), ABSENT)
    joined_during = (since_ns - error_ns > stalls["start_ns"]) & (joined != rank.rank)
    arrived_ns = since_ns + at_stalls(wire.ns[instance])
    measured = at_stalls(end_seen & wire.measured[instance]) > 0
    arrived_during = measured & (arrived_ns + error_ns > stalls["start_ns"])
    determined = (split.cause == SPLIT) & (joined_during | arrived_during) & (since_ns - error_ns <= stalls["end_ns"])
    return Releases(
        rank=np.where(determined, joined, ABSENT),
        since_ns=np.minimum(since_ns, stalls["end_ns"]),
    )


def _last_joins(rank: RankTimeline, instances: Instances, instance: Ints, *, compared: Bools) -> tuple[Bools, Ints]:
    """Return, for each of these instances, whether this rank saw its end, and when the last rank joined.

    `compared`: their starts compare.
    """
    part = instances.own_parts(rank.rank, instance)
    own, part = part != UNKNOWN, np.maximum(part, 0)
    end_seen, turned_ns = own.copy(), np.zeros(len(instance), dtype=np.int64)
    end_seen[own] = ~instances.parts.bounded[part[own]]
    turned_ns[own] = instances.parts.end_ns[part[own]] - instances.transfer_ns[instance[own]]
    return end_seen, np.where(compared, instances.last_start_ns[instance], turned_ns)
