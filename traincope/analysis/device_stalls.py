"""How long the compute streams of GPUs stood still for communication, as pairs of events on them tell.

The ledger's phases are the host's, which queues work and goes on: there, a wait for a collective on a
GPU costs next to nothing. What it costs the GPU is between the event before the wait and the one after.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from traincope.analysis.ledger import Ledger
from traincope.events import Flag, Kind
from traincope.timeline import Timeline
from traincope.timeline.evidence import waits_on_the_host


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStall:
    """On one mesh axis; sums over the ranks and the counted steps."""

    axis: str
    count: int
    total_ns: int


def device_stalls(timeline: Timeline, ledger: Ledger) -> tuple[DeviceStall, ...] | None:
    """The longest first; None where nobody computed on a GPU. Stalls of one stream never overlap: they sum."""
    if waits_on_the_host(timeline.run.info.versions):
        return None
    counted = {rank.rank: rank.numbers[rank.counted] for rank in ledger.ranks}
    counts: dict[str, int] = defaultdict(int)
    total_ns: dict[str, int] = defaultdict(int)
    for rank in timeline.ranks:
        for records in rank.threads.values():
            stalls = records[(records["kind"] == Kind.STALL) & (records["flags"] & Flag.DEVICE != 0)]
            stalls = stalls[np.isin(stalls["step"], counted.get(rank.rank, ()))]
            for group in np.unique(stalls["group"]).tolist():
                own, axis = stalls[stalls["group"] == group], rank.axis(group)
                counts[axis] += len(own)
                total_ns[axis] += int((own["end_ns"] - own["start_ns"]).sum())
    if not counts and not any("uuid" in rank.info.device for rank in timeline.run.ranks):
        return None  # it trained on the host of a machine with GPUs
    found = [DeviceStall(axis=axis, count=counts[axis], total_ns=total_ns[axis]) for axis in counts]
    return tuple(sorted(found, key=lambda one: (-one.total_ns, one.axis)))
