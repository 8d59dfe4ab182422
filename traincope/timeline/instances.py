"""The same collective on all its ranks: transfer is the shortest, the rest of each is waiting.

An instance is a group and its member's own count of collectives on it; of point-to-point
operations a group, source, destination, tag and count. Durations only are compared, so that no
clock is needed. The shortest duration is a lower bound of the wire's time: the last rank to
arrive waits for nobody.

Sends and receives are posted ahead and often waited for much later, and so are asynchronous
collectives whose end is only bounded: then no side's duration is the wire's time. Where the ranks
share a clock their transfer runs from the latest start to the earliest end.
"""

from dataclasses import dataclass
from itertools import pairwise

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

    Arrays from `rank` to `number` have one entry a part, those after it one entry an instance.
    """

    parts_of: dict[int, slice]
    """Rank -> its parts."""

    axes: tuple[str, ...]
    """What `axis_code` counts."""
    operations: tuple[str, ...]
    """What `operation_code` counts."""

    rank: Ints
    axis_code: Ints
    operation_code: Ints
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

    splits: NDArray[np.bool_]
    """Its waiting can be told from its transfer: all parts are there, and their ends exact or on one clock."""
    shared_clock: bool
    """Whether starts and ends compare across ranks."""
    codes: Ints
    """The keys, packed; sorted."""
    packing: "Packing"

    @property
    def axis(self) -> NDArray[np.object_]:
        """Mesh axis of each part."""
        return np.array(self.axes, dtype=object)[self.axis_code]

    @property
    def operation(self) -> NDArray[np.object_]:
        """Operation of each part."""
        return np.array(self.operations, dtype=object)[self.operation_code]

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
        return _position(self.codes, self.packing.pack(keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """KEYs as single integers in the same order: these sort many times faster than records of five."""

    num_ranks: int
    num_sequences: int
    tags: Ints
    channels: Ints
    """Packed (group, source, destination, tag) of all keys, sorted."""

    def pack(self, keys: NDArray[np.void]) -> Ints:
        """One integer a key; -1 for a key that is none of those this was made for."""
        tag = _position(self.tags, keys["tag"])
        channel = _position(self.channels, _channel(keys, tag, num_ranks=self.num_ranks, num_tags=len(self.tags)))
        beyond = np.maximum(keys["source"], keys["destination"]) >= self.num_ranks
        unknown = (tag < 0) | (channel < 0) | beyond | (keys["sequence"] >= self.num_sequences)
        return np.where(unknown, -1, channel * self.num_sequences + keys["sequence"])


def packing(keys: NDArray[np.void]) -> Packing:
    """The packing for these keys."""
    num_ranks = int(max(keys["source"].max(initial=-1), keys["destination"].max(initial=-1))) + 1
    tags = np.unique(keys["tag"])
    channels = _channel(keys, _position(tags, keys["tag"]), num_ranks=num_ranks, num_tags=len(tags))
    return Packing(
        num_ranks=num_ranks,
        num_sequences=int(keys["sequence"].max(initial=-1)) + 1,
        tags=tags,
        channels=np.unique(channels),
    )


def _channel(keys: NDArray[np.void], tag: Ints, *, num_ranks: int, num_tags: int) -> Ints:
    """NOBODY counts as a rank, so that there is one more of them."""
    pair = (keys["group"] * (num_ranks + 1) + keys["source"] + 1) * (num_ranks + 1) + keys["destination"] + 1
    channel: Ints = pair * num_tags + tag
    return channel


def _position(ordered: Ints, values: Ints) -> Ints:
    """Where each value is in a sorted array, -1 where it is not."""
    if not len(ordered):
        return np.full(len(values), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.where(ordered[at] == values, at, -1)


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
    axes = tuple(sorted({group.axis for rank in timeline.ranks for group in rank.groups} | {""}))
    operations = tuple(sorted({name for rank in timeline.ranks for name in rank.names} | {""}))
    parts = [_parts(rank, groups, axes=axes, operations=operations) for rank in timeline.ranks]
    table = np.concatenate(parts) if parts else np.empty(0, dtype=_PART)
    packed = packing(table["key"])
    codes, first, number = np.unique(packed.pack(table["key"]), return_index=True, return_inverse=True)
    keys = table["key"][first]
    number = number.reshape(-1).astype(np.int64)
    duration = table["end_ns"] - table["start_ns"]
    transfer = _lowest(duration, number, len(keys))
    seen_late = np.zeros(len(keys), dtype=bool)
    np.logical_or.at(seen_late, number, table["bounded"])
    shared_clock = all(clock.bound_ns == 0 for clock in timeline.clocks)
    if shared_clock:
        meeting = _lowest(table["end_ns"], number, len(keys)) + _lowest(-table["start_ns"], number, len(keys))
        transfer = np.where(
            seen_late | (keys["source"] != NOBODY), np.minimum(transfer, np.maximum(meeting, 0)), transfer
        )
    exact = np.zeros(len(keys), dtype=bool)
    np.logical_or.at(exact, number, ~table["bounded"])
    present = np.bincount(number, minlength=len(keys))
    size = np.zeros(len(keys), dtype=np.int64)
    size[number] = table["size"]
    ends = np.cumsum([0, *(len(part) for part in parts)]).tolist()
    return Instances(
        parts_of={rank.rank: slice(*bounds) for rank, bounds in zip(timeline.ranks, pairwise(ends), strict=True)},
        rank=table["rank"],
        axes=axes,
        operations=operations,
        axis_code=table["axis"],
        operation_code=table["operation"],
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
        splits=(present >= size) & (shared_clock | ~seen_late),
        shared_clock=shared_clock,
        codes=codes,
        packing=packed,
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
        ("axis", "i8"),
        ("operation", "i8"),
        ("step", "i8"),
        ("bytes", "i8"),
        ("start_ns", "i8"),
        ("end_ns", "i8"),
        ("size", "i8"),
        ("bounded", "?"),
    ]
)


def _parts(
    rank: RankTimeline, groups: dict[str, int], *, axes: tuple[str, ...], operations: tuple[str, ...]
) -> NDArray[np.void]:
    records = np.concatenate([_closed_collectives(records) for records in rank.threads.values()])
    direct = records["flags"] & Flag.POINT_TO_POINT > 0
    axis = np.array([axes.index(group.axis) for group in rank.groups] or [0], dtype=np.int64)
    sizes = np.array([len(group.ranks) for group in rank.groups] or [1], dtype=np.int64)
    code_of = {name: code for code, name in enumerate(operations)}
    operation = np.array([code_of[name] for name in rank.names] or [0], dtype=np.int64)
    at = np.minimum(records["group"], len(axis) - 1)
    table = np.empty(len(records), dtype=_PART)
    table["key"] = instance_keys(rank, records, groups)
    table["rank"] = rank.rank
    table["axis"] = axis[at]
    table["operation"] = operation[np.minimum(records["name"], len(operation) - 1)]
    table["step"] = records["step"]
    table["bytes"] = records["value"]
    table["start_ns"], table["end_ns"] = records["start_ns"], records["end_ns"]
    table["size"] = np.where(direct, 2, sizes[at])
    table["bounded"] = records["flags"] & Flag.DONE_BEFORE_WAIT > 0
    return table


def _closed_collectives(records: NDArray[np.void]) -> NDArray[np.void]:
    closed = (records["kind"] == Kind.COLLECTIVE) & (records["end_ns"] != OPEN)
    chosen: NDArray[np.void] = records[closed & (records["flags"] & Flag.RAISED == 0)]
    return chosen
