"""The same collective on all its ranks: transfer is the shortest, the rest of each is waiting.

An instance is a group and its member's own count of collectives on it; of point-to-point
operations a group, source, destination, tag and count. Durations only are compared, so that no
clock is needed. The shortest duration is a lower bound of the wire's time: the last rank to
arrive waits for nobody.

Sends and receives are posted ahead and often waited for much later, on the sending side at the end
of the step: no side's duration is the wire's time. Where the ranks share a clock their transfer
runs from the later posting to the earlier end.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.events import OPEN, SEND_OPERATIONS, Flag, Kind
from traincope.timeline.timeline import RankTimeline, Timeline

KEY = np.dtype(
    [("group", "i8"), ("source", "i8"), ("destination", "i8"), ("tag", "i8"), ("sequence", "i8")],
)
NOBODY = -1

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """All closed collectives of a run, one row a rank's part; `number` names the instance.

    All arrays but the last four have one entry a part, those one entry an instance.
    """

    rank: Ints
    axis: NDArray[np.object_]
    operation: NDArray[np.object_]
    step: Ints
    num_bytes: Ints
    start_ns: Ints
    end_ns: Ints
    group_size: Ints
    bounded: NDArray[np.bool_]
    """The end is only an upper bound: it was complete before anybody waited for it."""
    number: Ints

    keys: NDArray[np.void]
    """Sorted KEYs of the instances."""
    transfer_ns: Ints
    exact: NDArray[np.bool_]
    """At least one part's end is exact."""
    complete: NDArray[np.bool_]
    """All members of the group are there."""

    @property
    def duration_ns(self) -> Ints:
        return self.end_ns - self.start_ns

    @property
    def wait_ns(self) -> Ints:
        """Each part's waiting for others, 0 where its end is only bounded."""
        waits: Ints = np.where(self.bounded, 0, self.duration_ns - self.transfer_ns[self.number])
        return waits

    def find(self, keys: NDArray[np.void]) -> Ints:
        """Number of the instance of each key, -1 where it is not known."""
        if not len(self.keys):
            return np.full(len(keys), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, at, -1)


def group_numbers(timeline: Timeline) -> dict[str, int]:
    """A number for every group of the run, by the name its members share."""
    names = sorted({group.key for rank in timeline.ranks for group in rank.groups})
    return {name: number for number, name in enumerate(names)}


def instance_keys(rank: RankTimeline, records: NDArray[np.void], groups: dict[str, int]) -> NDArray[np.void]:
    """KEY of each COLLECTIVE or STALL record of a rank."""
    keys = np.zeros(len(records), dtype=KEY)
    own = np.array([groups[group.key] for group in rank.groups] or [0], dtype=np.int64)
    keys["group"] = own[np.minimum(records["group"], len(own) - 1)]
    keys["sequence"] = records["sequence"]
    keys["source"] = keys["destination"] = NOBODY
    direct = records["flags"] & Flag.POINT_TO_POINT > 0
    sends = direct & np.isin(records["name"], [n for n, name in enumerate(rank.names) if name in SEND_OPERATIONS])
    receives = direct & ~sends
    keys["tag"][direct] = records["tag"][direct]
    keys["source"][sends] = keys["destination"][receives] = rank.rank
    keys["destination"][sends] = records["peer"][sends]
    keys["source"][receives] = records["peer"][receives]
    return keys


def match_instances(timeline: Timeline) -> Instances:
    """Match every rank's closed COLLECTIVE records."""
    groups = group_numbers(timeline)
    parts = [_parts(rank, groups) for rank in timeline.ranks]
    table = np.concatenate(parts) if parts else np.empty(0, dtype=_PART)
    keys, number = np.unique(table["key"], return_inverse=True)
    number = number.reshape(-1).astype(np.int64)
    duration = table["end_ns"] - table["start_ns"]
    transfer = _lowest(duration, number, len(keys))
    if all(clock.bound_ns == 0 for clock in timeline.clocks):
        meeting = _lowest(table["end_ns"], number, len(keys)) + _lowest(-table["start_ns"], number, len(keys))
        direct = keys["source"] != NOBODY
        transfer = np.where(direct, np.minimum(transfer, np.maximum(meeting, 0)), transfer)
    exact = np.zeros(len(keys), dtype=bool)
    np.logical_or.at(exact, number, ~table["bounded"])
    present = np.bincount(number, minlength=len(keys))
    size = np.zeros(len(keys), dtype=np.int64)
    size[number] = table["size"]
    return Instances(
        rank=table["rank"],
        axis=table["axis"],
        operation=table["operation"],
        step=table["step"],
        num_bytes=table["bytes"],
        start_ns=table["start_ns"],
        end_ns=table["end_ns"],
        group_size=table["size"],
        bounded=table["bounded"],
        number=number,
        keys=keys,
        transfer_ns=transfer,
        exact=exact,
        complete=present >= size,
    )


def _lowest(values: Ints, number: Ints, count: int) -> Ints:
    """The least of the values of each instance."""
    lowest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(lowest, number, values)
    return lowest


_PART = np.dtype(
    [
        ("key", KEY),
        ("rank", "i8"),
        ("axis", "O"),
        ("operation", "O"),
        ("step", "i8"),
        ("bytes", "i8"),
        ("start_ns", "i8"),
        ("end_ns", "i8"),
        ("size", "i8"),
        ("bounded", "?"),
    ]
)


def _parts(rank: RankTimeline, groups: dict[str, int]) -> NDArray[np.void]:
    everything = np.concatenate(list(rank.threads.values()))
    chosen = (everything["kind"] == Kind.COLLECTIVE) & (everything["end_ns"] != OPEN)
    records = everything[chosen & (everything["flags"] & Flag.RAISED == 0)]
    direct = records["flags"] & Flag.POINT_TO_POINT > 0
    axes = np.array([group.axis for group in rank.groups] or [""], dtype=object)
    sizes = np.array([len(group.ranks) for group in rank.groups] or [1], dtype=np.int64)
    names = np.array(rank.names or [""], dtype=object)
    at = np.minimum(records["group"], len(axes) - 1)
    table = np.empty(len(records), dtype=_PART)
    table["key"] = instance_keys(rank, records, groups)
    table["rank"] = rank.rank
    table["axis"] = axes[at]
    table["operation"] = names[np.minimum(records["name"], len(names) - 1)]
    table["step"] = records["step"]
    table["bytes"] = records["value"]
    table["start_ns"], table["end_ns"] = records["start_ns"], records["end_ns"]
    table["size"] = np.where(direct, 2, sizes[at])
    table["bounded"] = records["flags"] & Flag.DONE_BEFORE_WAIT > 0
    return table
