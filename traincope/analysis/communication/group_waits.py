"""Exposed wait of each rank in each process group, until the group's last member joined."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traincope.analysis.attribution.stalls import StallSplit
from traincope.analysis.attribution.thread_slices import ThreadSlices
from traincope.arrays import Bools
from traincope.timeline import Instances, Timeline
from traincope.timeline.intervals.numbering import UNKNOWN
from traincope.topology import Group, axis_order


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWait:
    """Waits in one process group, summed over the counted steps."""

    axis: str
    ranks: tuple[int, ...]
    """Members of the group."""
    waits_ns: tuple[int | None, ...]
    """Exposed wait of each of `ranks`, including the pipeline's own; None if the rank has no record."""


def rank_waits(slices: ThreadSlices, split: StallSplit, *, counted: Bools, instances: Instances) -> Mapping[str, int]:
    """Sum one rank's wait in its counted steps: group key -> ns."""
    inside = np.append(counted, False)[slices.step[split.at]] & (split.instance != UNKNOWN)
    channel = instances.channel[split.instance[inside]]
    sums = np.zeros(len(instances.channels), dtype=np.int64)
    np.add.at(sums, channel, split.wait_ns[inside])
    waits: dict[str, int] = defaultdict(int)
    for number in np.flatnonzero(sums).tolist():
        waits[instances.channels[number].group] += int(sums[number])
    return waits


def group_waits(timeline: Timeline, waited: Mapping[int, Mapping[str, int]]) -> tuple[GroupWait, ...]:
    """List the groups of several ranks in which some rank waited, by axis. `waited` is `rank_waits` of each rank."""
    groups: dict[str, Group] = {group.key: group for rank in timeline.ranks for group in rank.groups}
    rows = (_row(group, waited) for group in groups.values() if len(group.ranks) > 1)
    return tuple(sorted((row for row in rows if any(row.waits_ns)), key=lambda row: (axis_order(row.axis), row.ranks)))


def _row(group: Group, waited: Mapping[int, Mapping[str, int]]) -> GroupWait:
    return GroupWait(
        axis=group.axis,
        ranks=group.ranks,
        waits_ns=tuple(waited[rank].get(group.key, 0) if rank in waited else None for rank in group.ranks),
    )
