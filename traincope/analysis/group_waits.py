"""Who stood still in which group until its last member joined."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traincope.analysis.host import Bools, Pieces
from traincope.analysis.stalls import StallSplit
from traincope.timeline import Instances, Timeline
from traincope.timeline.numbering import UNKNOWN
from traincope.topology import Group, axis_order


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWait:
    """One process group, summed over the counted steps."""

    axis: str
    ranks: tuple[int, ...]
    """Its members."""
    waits_ns: tuple[int | None, ...]
    """Beside `ranks`: how long each stood still for its peers, the pipeline's own waiting among it; None: no record."""


def rank_waits(pieces: Pieces, split: StallSplit, *, counted: Bools, instances: Instances) -> Mapping[str, int]:
    """Key of a group -> ns that one rank stood still in it for others, in its counted steps."""
    inside = np.append(counted, False)[pieces.step[split.at]] & (split.instance != UNKNOWN)
    channel = instances.channel[split.instance[inside]]
    sums = np.zeros(len(instances.channels), dtype=np.int64)
    np.add.at(sums, channel, split.wait_ns[inside])
    waits: dict[str, int] = defaultdict(int)
    for number in np.flatnonzero(sums).tolist():
        waits[instances.channels[number].group] += int(sums[number])
    return waits


def group_waits(timeline: Timeline, waited: Mapping[int, Mapping[str, int]]) -> tuple[GroupWait, ...]:
    """Every group of several ranks in which any of them waited, by axis; `waited` is `rank_waits` of each rank."""
    groups: dict[str, Group] = {group.key: group for rank in timeline.ranks for group in rank.groups}
    rows = (_row(group, waited) for group in groups.values() if len(group.ranks) > 1)
    return tuple(sorted((row for row in rows if any(row.waits_ns)), key=lambda row: (axis_order(row.axis), row.ranks)))


def _row(group: Group, waited: Mapping[int, Mapping[str, int]]) -> GroupWait:
    return GroupWait(
        axis=group.axis,
        ranks=group.ranks,
        waits_ns=tuple(waited[rank].get(group.key, 0) if rank in waited else None for rank in group.ranks),
    )
