"""Stalls of GPU compute streams for communication, measured by pairs of events on the streams.

The ledger's phases are the host's, which queues work and continues: there, a wait for a collective on a GPU costs
almost nothing. Its cost on the GPU is the time between the event before the wait and the event after it.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from traincope.analysis.ledger.ledger import Ledger
from traincope.events import Flag, Kind
from traincope.timeline import LedgerClock, Timeline
from traincope.timeline.device import why_not_on_device
from traincope.timeline.evidence import waits_on_the_host


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStall:
    """Stalls on one mesh axis, summed over the ranks and the counted steps."""

    axis: str
    count: int
    total_ns: int
    ratio: float
    """Share of the wall time of the counted steps."""


def device_stalls(timeline: Timeline, ledger: Ledger) -> tuple[DeviceStall, ...] | None:
    """Sum the stalls of GPUs by axis, the longest first; None if the ledger contains all stalls.

    Stalls of one stream never overlap, so their times add up.
    """
    if ledger.clock is LedgerClock.DEVICE or waits_on_the_host(timeline.run.info.versions):
        return None
    counted = {rank.rank: rank.numbers[rank.counted] for rank in ledger.ranks}
    counts: dict[str, int] = defaultdict(int)
    total_ns: dict[str, int] = defaultdict(int)
    for rank in timeline.ranks:
        for records in rank.threads.values():
            stalls = records[(records["kind"] == Kind.STALL) & (records["flags"] & Flag.DEVICE != 0)]
            stalls = stalls[np.isin(stalls["step"], counted.get(rank.rank, ()))]
            for group in np.unique(stalls["group"]).tolist():
                group_stalls, axis = stalls[stalls["group"] == group], rank.axis(group)
                counts[axis] += len(group_stalls)
                total_ns[axis] += int((group_stalls["end_ns"] - group_stalls["start_ns"]).sum())
    if not counts and not any("uuid" in rank.info.device for rank in timeline.run.ranks):
        return None  # the training ran on the host of a machine with GPUs
    totals = [
        DeviceStall(axis=axis, count=number, total_ns=total_ns[axis], ratio=total_ns[axis] / ledger.wall_ns)
        for axis, number in counts.items()
    ]
    return tuple(sorted(totals, key=lambda stall: (-stall.total_ns, stall.axis)))


def why_on_host(timeline: Timeline, stalls: tuple[DeviceStall, ...] | None) -> str | None:
    """Return why the hosts measured the ledger of a training on GPUs; None if they did not, or without GPUs.

    `stalls`: the result of `device_stalls`.
    """
    return None if stalls is None else why_not_on_device(timeline)
