"""What let a rank go on that stood still: which rank had joined the collective last, and when.

Until then it waited for that rank, from then on for the wire. Nobody is named where it would be a guess: where the
records do not split the stall (`unsplit`); where what was waited for had come before the rank stood still, as a message
that is sent and looked after later; and where this rank's part was done before the last one joined.
"""

from dataclasses import dataclass

import numpy as np

from traincope.analysis.host import Bools, Ints, Pieces
from traincope.analysis.stalls import StallSplit
from traincope.analysis.transfers import Transfers
from traincope.analysis.unsplit import SPLIT
from traincope.timeline import Instances, RankTimeline
from traincope.timeline.comparing import highest
from traincope.timeline.painting import NOBODY


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """One entry a piece that a stall owns, as in `StallSplit`."""

    rank: Ints
    """Who joined last, perhaps this rank itself; NOBODY where that is not told."""
    since_ns: Ints
    """When that was. Between hosts whose clocks tell it no better, the own part's end less the shortest transfer."""


def releases(
    rank: RankTimeline, pieces: Pieces, split: StallSplit, *, instances: Instances, wire: Transfers, last: Ints
) -> Releases:
    """Of one rank. `last` says of each instance which rank joined it last, -1 where nothing tells."""
    stalls = pieces.intervals[pieces.owner[split.at]]
    seen, joined_ns = _own(rank, instances)
    since_ns = np.append(joined_ns, 0)[split.instance]
    error_ns = np.append(np.where(instances.starts_compare, instances.clock_error_ns, 0), 0)[split.instance]
    joined = np.append(last, NOBODY)[split.instance]
    joined_meanwhile = (since_ns - error_ns > stalls["start_ns"]) & (joined != rank.rank)
    there_ns = since_ns + np.append(wire.ns, 0)[split.instance]
    came_meanwhile = np.append(seen & wire.measured, False)[split.instance] & (there_ns + error_ns > stalls["start_ns"])
    told = (split.cause == SPLIT) & (joined_meanwhile | came_meanwhile) & (since_ns - error_ns <= stalls["end_ns"])
    return Releases(
        rank=np.where(told, joined, NOBODY),
        since_ns=np.minimum(since_ns, stalls["end_ns"]),
    )


def _own(rank: RankTimeline, instances: Instances) -> tuple[Bools, Ints]:
    """Of each instance: whether this rank saw its end, and when the last rank joined."""
    mine = instances.parts_of[rank.rank]
    number = instances.number[mine]
    seen, turned_ns = np.zeros(len(instances), dtype=bool), np.zeros(len(instances), dtype=np.int64)
    seen[number] = ~instances.parts.bounded[mine]
    turned_ns[number] = instances.parts.end_ns[mine] - instances.transfer_ns[number]
    started_ns = highest(instances.parts.start_ns, instances.number, len(instances))
    return seen, np.where(instances.starts_compare, started_ns, turned_ns)
