"""The same collective on all its ranks: transfer is the shortest, the rest of each is waiting.

An instance is a group and its member's own count of collectives on it; of point-to-point
operations a group, source, destination, tag and count. Durations only are compared, so that no
clock is needed. The shortest duration is a lower bound of the wire's time: the last rank to
arrive waits for nobody.

Sends and receives are posted ahead and often waited for much later, and so are asynchronous
collectives whose end is only bounded: then no side's duration is the wire's time. Where it is known
how far the ranks' clocks are from each other, their transfer is at most from the latest start to the
earliest end and that error; on one host there is none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.events import OPEN, Flag, Kind
from traincope.timeline.channels import Channel, channels_of
from traincope.timeline.comparing import clock_errors, highest, leads, lowest
from traincope.timeline.evaluation import evaluations
from traincope.timeline.numbering import UNKNOWN, Ints, Numbering
from traincope.timeline.parts import Parts
from traincope.timeline.timeline import RankTimeline, Timeline

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """All closed collectives of a run: `parts` by rank, and one entry an instance of everything below `number`."""

    parts: Parts
    parts_of: Mapping[int, slice]
    """Rank -> its parts."""
    axes: tuple[str, ...]
    """What `axis_code` counts."""
    operations: tuple[str, ...]
    """What `operation_code` counts."""
    channels: tuple[Channel, ...]
    """What `channel` counts."""
    number: NDArray[np.int32]
    """The instance of each part."""

    channel: Ints
    sequence: Ints
    transfer_ns: Ints
    exact: Bools
    """At least one part's end is exact."""
    alike: Bools
    """It can be one collective: no rank has two parts in it, and all parts are of one operation."""
    complete: Bools
    """It is one, and all members of the group are there."""
    left_open: Bools
    """Some rank began it and recorded no end: it waited for it never, or not yet."""
    splits: Bools
    """Its waiting can be told from its transfer: all parts are there, and their ends exact or comparable."""

    comparable: Bools
    """It is known how far the clocks of its ranks are from each other."""
    clock_error_ns: Ints
    """How far at most, where that is known; else it means nothing."""
    lead_ns: Ints
    """By how much it began last, on one host, after it had begun on all others; the largest number on one host."""
    by_clock: Bools
    """Comparing clocks, with their error, is what splits it."""
    numbering: Numbering
    """Of channel x most sequences + sequence."""
    num_sequences: int

    def __len__(self) -> int:
        return len(self.transfer_ns)

    @property
    def starts_compare(self) -> Bools:
        """Of each instance, whether its latest start is told: no other host's clock may make its own the latest."""
        told: Bools = self.comparable & (self.lead_ns >= self.clock_error_ns)
        return told

    @property
    def axis(self) -> NDArray[np.object_]:
        """Mesh axis of each part."""
        return np.array(self.axes, dtype=object)[self.parts.axis_code]

    @property
    def operation(self) -> NDArray[np.object_]:
        """Operation of each part."""
        return np.array(self.operations, dtype=object)[self.parts.operation_code]

    @property
    def wait_ns(self) -> Ints:
        """Each part's waiting for others, 0 where its end is only bounded."""
        waits: Ints = np.where(self.parts.bounded, 0, self.parts.duration_ns - self.transfer_ns[self.number])
        return waits

    def find(self, rank: RankTimeline, records: NDArray[np.void]) -> Ints:
        """Number of the instance of each COLLECTIVE or STALL record of a rank, UNKNOWN where there is none."""
        known = {channel: number for number, channel in enumerate(self.channels)}
        return _find(rank, records, known, numbering=self.numbering, num_sequences=self.num_sequences)


def match_instances(timeline: Timeline) -> Instances:
    """Match every rank's closed COLLECTIVE records."""
    axes = tuple(sorted({group.axis for rank in timeline.ranks for group in rank.groups} | {""}))
    operations = tuple(sorted({name for rank in timeline.ranks for name in rank.names} | {""}))
    numbers: dict[Channel, int] = {}
    by_rank = [_columns(rank, numbers, axes=axes, operations=operations) for rank in timeline.ranks]
    ends = np.cumsum([0, *(len(columns["rank"]) for columns in by_rank)]).tolist()
    parts = _join(by_rank)
    num_sequences = int(parts.sequence.max(initial=0)) + 1
    codes = parts.channel.astype(np.int64) * num_sequences + parts.sequence
    numbering = Numbering.of(codes)
    number = numbering.number(codes).astype(np.int32)
    channels = tuple(numbers)
    channel, sequence = np.divmod(numbering.values, num_sequences)
    direct = np.array([one.direct for one in channels], dtype=bool)[channel]
    count = len(numbering)
    seen_late, exact = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    seen_late[number[parts.bounded]] = True
    exact[number[~parts.bounded]] = True
    size = np.zeros(count, dtype=np.int32)
    size[number] = parts.group_size
    parts_of = {rank.rank: slice(*bounds) for rank, bounds in zip(timeline.ranks, pairwise(ends), strict=True)}
    alike = ~_counted_twice(number, parts_of, count=count) & (direct | _one_operation(parts, number, count=count))
    complete = (np.bincount(number, minlength=count) >= size) & alike
    comparable, error_ns = clock_errors(timeline, parts, number, parts_of=parts_of, count=count)
    comparable &= alike
    return Instances(
        parts=parts,
        parts_of=parts_of,
        axes=axes,
        operations=operations,
        channels=channels,
        number=number,
        channel=channel,
        sequence=sequence,
        transfer_ns=_transfer(
            parts, number, by_meeting=(seen_late | direct) & comparable, error_ns=error_ns, count=count
        ),
        exact=exact,
        alike=alike,
        complete=complete,
        left_open=_left_open(timeline, numbers, numbering=numbering, num_sequences=num_sequences),
        splits=complete & (comparable | ~seen_late),
        comparable=comparable,
        clock_error_ns=error_ns,
        lead_ns=leads(timeline, parts, number, count=count),
        by_clock=comparable & seen_late,
        numbering=numbering,
        num_sequences=num_sequences,
    )


def _find(
    rank: RankTimeline,
    records: NDArray[np.void],
    known: Mapping[Channel, int],
    *,
    numbering: Numbering,
    num_sequences: int,
) -> Ints:
    """As `Instances.find`; `known` numbers the channels."""
    channels, at = channels_of(rank, records)
    channel = np.array([known.get(channel, UNKNOWN) for channel in channels], dtype=np.int64)[at]
    beyond = (channel == UNKNOWN) | (records["sequence"] >= num_sequences)
    return numbering.number(np.where(beyond, UNKNOWN, channel * num_sequences + records["sequence"]))


def _counted_twice(number: NDArray[np.int32], parts_of: Mapping[int, slice], *, count: int) -> Bools:
    """Instances of which one rank has several parts: it has begun to count anew."""
    twice = np.zeros(count, dtype=bool)
    for own in parts_of.values():
        twice |= np.bincount(number[own], minlength=count) > 1
    return twice


def _one_operation(parts: Parts, number: NDArray[np.int32], *, count: int) -> Bools:
    operation: Bools = lowest(parts.operation_code, number, count) == highest(parts.operation_code, number, count)
    return operation


def _left_open(timeline: Timeline, known: Mapping[Channel, int], *, numbering: Numbering, num_sequences: int) -> Bools:
    """Of those that some rank has closed, which another has open."""
    left_open = np.zeros(len(numbering) + 1, dtype=bool)  # the last is for those that nobody closed
    for rank in timeline.ranks:
        for records in rank.threads.values():
            begun = records[(records["kind"] == Kind.COLLECTIVE) & (records["end_ns"] == OPEN)]
            left_open[_find(rank, begun, known, numbering=numbering, num_sequences=num_sequences)] = True
    return left_open[:-1]


def _transfer(parts: Parts, number: NDArray[np.int32], *, by_meeting: Bools, error_ns: Ints, count: int) -> Ints:
    """The shortest duration; for instances `by_meeting` no more than from the latest start to the earliest end."""
    shortest = lowest(parts.duration_ns, number, count)
    if not by_meeting.any():
        return shortest
    meeting = lowest(parts.end_ns, number, count) + lowest(-parts.start_ns, number, count) + error_ns
    return np.where(by_meeting, np.minimum(shortest, np.maximum(meeting, 0)), shortest)


Columns = dict[str, NDArray[Any]]
"""Fields of Parts by name."""


def _join(by_rank: list[Columns]) -> Parts:
    """The columns of all ranks; theirs are given up one by one, for together they are large."""
    names = [field.name for field in fields(Parts)]
    empty = np.empty(0, dtype=np.int32)
    return Parts(**{name: np.concatenate([*(columns.pop(name) for columns in by_rank)] or [empty]) for name in names})


def _columns(
    rank: RankTimeline, numbers: dict[Channel, int], *, axes: tuple[str, ...], operations: tuple[str, ...]
) -> Columns:
    """A rank's fields of Parts; channels that are new get the next number in `numbers`."""
    records = np.concatenate([records[closed_collectives(records)] for records in rank.threads.values()])
    channels, at = channels_of(rank, records)
    channel = np.array([numbers.setdefault(channel, len(numbers)) for channel in channels], dtype=np.int32)
    group = np.minimum(records["group"], max(len(rank.groups) - 1, 0))
    axis = np.array([axes.index(group.axis) for group in rank.groups] or [0], dtype=np.int16)
    sizes = np.array([len(group.ranks) for group in rank.groups] or [1], dtype=np.int32)
    code_of = {name: code for code, name in enumerate(operations)}
    operation = np.array([code_of[name] for name in rank.names] or [0], dtype=np.int32)
    return {
        "rank": np.full(len(records), rank.rank, dtype=np.int32),
        "channel": channel[at],
        "sequence": records["sequence"].copy(),
        "axis_code": axis[group],
        "operation_code": operation[np.minimum(records["name"], len(operation) - 1)],
        "step": records["step"].copy(),
        "num_bytes": records["value"].copy(),
        "start_ns": records["start_ns"].copy(),
        "end_ns": records["end_ns"].copy(),
        "group_size": np.where(records["flags"] & Flag.POINT_TO_POINT > 0, np.int32(2), sizes[group]),
        "bounded": records["flags"] & Flag.DONE_BEFORE_WAIT > 0,
        "evaluating": evaluations(rank).cover(records["start_ns"]),
    }


def closed_collectives(records: NDArray[np.void]) -> Bools:
    """Which of a thread's have parts; those are in `Instances.parts` in this order, a rank's threads one by one."""
    ended = (records["end_ns"] != OPEN) & (records["flags"] & Flag.RAISED == 0)
    closed: Bools = ended & (records["kind"] == Kind.COLLECTIVE)
    return closed
