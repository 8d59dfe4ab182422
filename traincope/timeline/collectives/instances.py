"""Instances: one collective matched on all its ranks. The shortest duration is the transfer, the rest is wait.

The identity of an instance is its group, the recorder's window, and each member's own count of collectives on the
group in that window; for point-to-point operations it is group, source, destination, tag, window and count. Only
durations are compared, so that no common clock is necessary. The shortest duration is a lower bound of the time on the
wire: the last rank to arrive does not wait.

Sends and receives are posted ahead, and a thread often waits for them much later. The same is true of asynchronous
collectives; their end is then only bounded. Then neither side's duration is the time on the wire. If the error between
the ranks' clocks is known, the transfer is at most (earliest end - latest start + error); on one host the error is 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Bools, Ints, Numbers, chosen, joined
from traincope.events import MONITORED, OPEN, Flag, Kind
from traincope.timeline.collectives.channels import Channel, channels_of
from traincope.timeline.collectives.comparing import clock_errors, highest, leads, lowest
from traincope.timeline.collectives.elsewhere import Elsewhere, Names, identities
from traincope.timeline.collectives.parts import Parts
from traincope.timeline.evaluation import evaluations
from traincope.timeline.intervals.numbering import UNKNOWN, Numbering
from traincope.timeline.timeline import RankTimeline, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """All closed collectives of a run: `parts` by rank, and below `number` arrays with one entry per instance."""

    parts: Parts
    parts_of: Mapping[int, slice]
    """Rank -> its parts."""
    axes: tuple[str, ...]
    """Mesh axis of each `axis_code`."""
    operations: tuple[str, ...]
    """Operation of each `operation_code`."""
    channels: tuple[Channel, ...]
    """Channel of each `channel` number."""
    channel_numbers: Mapping[Channel, int]
    """Number of each channel."""
    number: NDArray[np.int32]
    """Instance of each part."""

    channel: Ints
    window: Ints
    sequence: Ints
    transfer_ns: Ints
    exact: Bools
    """The end of at least one part is exact."""
    consistent: Bools
    """The instance can be one collective: no rank has two parts in it, and all parts have the same operation."""
    num_shifted: int
    """Number of windows, channel by channel, whose members began to count at different collectives."""
    complete: Bools
    """The instance is consistent, and all members of the group are recorded. Of a group whose members torch does not
    know, nothing shows when they joined: a replica's group has them in other jobs.
    """
    left_open: Bools
    """Some rank began it and recorded no end: it never waited for it, or has not waited yet."""
    splits: Bools
    """Wait can be separated from transfer: all parts are recorded, and their ends are exact or comparable."""

    comparable: Bools
    """The error between the clocks of its ranks is known."""
    clock_error_ns: Ints
    """Bound of that error; without a meaning if it is not `comparable`."""
    last_start_ns: Ints
    """The latest start of its parts."""
    lead_ns: Ints
    """Time from the latest start on all other hosts to its latest start; END_OF_TIME_NS if it has one host."""
    by_clock: Bools
    """A comparison of clocks, with their error, splits it."""
    reduced: Bools
    """Members without records here are known from the agents of their hosts (`Timeline.elsewhere`)."""
    identities: "Identities"

    def __len__(self) -> int:
        return len(self.transfer_ns)

    @property
    def starts_compare(self) -> Bools:
        """True for instances whose latest start is certain: the clocks' error cannot make another host's the latest."""
        decided: Bools = self.comparable & (self.lead_ns >= self.clock_error_ns)
        return decided

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
        """Wait of each part, 0 if its end is only bounded."""
        waits: Ints = np.where(self.parts.bounded, 0, self.parts.duration_ns - self.transfer_ns[self.number])
        return waits

    def find(self, rank: RankTimeline, records: NDArray[np.void]) -> Ints:
        """Return the instance of each COLLECTIVE or STALL record of a rank, UNKNOWN if it has none."""
        return self.identities.find(rank, records, self.channel_numbers)

    def own_parts(self, rank: int, instance: Ints) -> Ints:
        """Return the position in `parts` of the rank's last part in each instance, UNKNOWN if it has none.

        It costs as much as the rank has parts, however many instances the run has.
        """
        rank_parts = self.parts_of[rank]
        number = self.number[rank_parts]
        if not len(number):
            return np.full(len(instance), UNKNOWN, dtype=np.int64)
        order = np.argsort(number, kind="stable")
        at = order[np.maximum(np.searchsorted(number, instance, side="right", sorter=order) - 1, 0)]
        return np.where(number[at] == instance, rank_parts.start + at, UNKNOWN)


Counts = Ints | NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identities:
    """Numbers of the instances: channel, window and sequence in one code."""

    windows: Numbering
    num_sequences: int
    numbering: Numbering
    """Numbering of the codes."""

    @classmethod
    def of(cls, parts: Parts) -> "Identities":
        windows = Numbering.of(parts.window.astype(np.int64))
        num_sequences = int(parts.sequence.max(initial=0)) + 1
        window = windows.number(parts.window.astype(np.int64))
        codes = (parts.channel * np.int64(len(windows)) + window) * num_sequences + parts.sequence
        return cls(windows=windows, num_sequences=num_sequences, numbering=Numbering.of(codes))

    @property
    def columns(self) -> tuple[Ints, Ints, Ints]:
        """Channel, window and sequence of every instance."""
        rest, sequence = np.divmod(self.numbering.values, self.num_sequences)
        channel, window = np.divmod(rest, max(len(self.windows), 1))
        return channel, self.windows.values[window], sequence

    @property
    def place(self) -> Ints:
        """Number of every instance's channel and window."""
        codes = self.numbering.values // self.num_sequences
        return Numbering.of(codes).number(codes)

    def number(self, channel: Numbers, window: Counts, sequence: Counts) -> Ints:
        """Return the instances; UNKNOWN without one, or where the channel is UNKNOWN."""
        place = self.windows.number(window.astype(np.int64))
        unknown = (channel == UNKNOWN) | (place == UNKNOWN) | (sequence >= self.num_sequences)
        codes = (channel.astype(np.int64) * len(self.windows) + place) * self.num_sequences + sequence
        return self.numbering.number(np.where(unknown, UNKNOWN, codes))

    def find(self, rank: RankTimeline, records: NDArray[np.void], known: Mapping[Channel, int]) -> Ints:
        """Find instances as `Instances.find` does. `known` numbers the channels."""
        channels, at = channels_of(rank, records)
        channel = np.array([known.get(channel, UNKNOWN) for channel in channels], dtype=np.int64)[at]
        return self.number(channel, records["window"], records["sequence"])


def match_instances(timeline: Timeline) -> Instances:
    """Match the closed COLLECTIVE records of all ranks."""
    axes = tuple(sorted({group.axis for rank in timeline.ranks for group in rank.groups} | {""}))
    operations = tuple(sorted({name for rank in timeline.ranks for name in rank.names} | {""}))
    numbers: dict[Channel, int] = {}
    by_rank = [_columns(rank, numbers, axes=axes, operations=operations) for rank in timeline.ranks]
    ends = np.cumsum([0, *(len(columns["rank"]) for columns in by_rank)]).tolist()
    parts = _join(by_rank)
    identities = Identities.of(parts)
    number = identities.number(parts.channel, parts.window, parts.sequence).astype(np.int32)
    channels = tuple(numbers)
    channel, window, sequence = identities.columns
    direct = np.array([item.direct for item in channels], dtype=bool)[channel]
    count = len(identities.numbering)
    seen_late, exact = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    seen_late[number[parts.bounded]] = True
    exact[number[~parts.bounded]] = True
    size = np.zeros(count, dtype=np.int32)
    size[number] = parts.group_size
    parts_of = {rank.rank: slice(*bounds) for rank, bounds in zip(timeline.ranks, pairwise(ends), strict=True)}
    place = identities.place
    messages = groups_with_messages(channels, operations, parts)
    one_count = np.array([item.group not in messages for item in channels], dtype=bool)
    shifted = _shifted(parts, number, place, channel=channel, size=size, comparable=one_count[channel])
    consistent = (
        ~_counted_twice(number, parts_of, count=count)
        & (direct | _one_operation(parts, number, count=count))
        & ~shifted
    )
    complete = (np.bincount(number, minlength=count) >= size) & (size > 0) & consistent
    comparable, error_ns = clock_errors(timeline, parts, number, parts_of=parts_of, count=count)
    comparable &= consistent
    transfer_ns = _transfer(parts, number, by_overlap=(seen_late | direct) & comparable, error_ns=error_ns, count=count)
    reduced, given = _reduced(timeline, number, parts_of, open_to=consistent & ~complete)
    return Instances(
        parts=parts,
        parts_of=parts_of,
        axes=axes,
        operations=operations,
        channels=channels,
        channel_numbers=numbers,
        number=number,
        channel=channel,
        window=window,
        sequence=sequence,
        transfer_ns=np.where(reduced & given.splits, np.minimum(transfer_ns, given.transfer_ns), transfer_ns),
        exact=exact,
        consistent=consistent,
        num_shifted=len(np.unique(place[shifted])),
        complete=complete,
        left_open=_left_open(timeline, numbers, identities),
        splits=(complete & (comparable | ~seen_late)) | (reduced & given.splits),
        comparable=comparable,
        clock_error_ns=np.where(reduced, given.error_ns, error_ns),
        last_start_ns=highest(parts.start_ns, number, count),
        lead_ns=leads(timeline, parts, number, count=count),
        by_clock=(comparable & seen_late) | (reduced & (given.error_ns > 0)),
        reduced=reduced,
        identities=identities,
    )


def groups_with_messages(channels: Sequence[Channel], operations: Sequence[str], parts: Parts) -> frozenset[str]:
    """Groups on which torch may count more on one member than on another: it counts sends and receives too.

    gloo makes a monitored barrier of them: the group's first rank exchanges them with each other one.
    """
    monitored = [at for at, name in enumerate(operations) if name == MONITORED]
    of_barriers = np.unique(parts.channel[np.isin(parts.operation_code, monitored)]).tolist()
    return frozenset({*(item.group for item in channels if item.direct), *(channels[at].group for at in of_barriers)})


def _reduced(
    timeline: Timeline, number: NDArray[np.int32], parts_of: Mapping[int, slice], *, open_to: Bools
) -> tuple[Bools, Elsewhere]:
    """Mark the instances `open_to` it that the agents of other hosts reduced, and return what they found of each."""
    known = timeline.elsewhere or Elsewhere.nothing()
    at = np.full(len(open_to), UNKNOWN, dtype=np.int64)
    for rank in timeline.ranks if len(known) else ():
        names = Names(operations=rank.names, groups=rank.groups, observation=rank.observation)
        parts = [identities(records[closed_collectives(records)], names) for records in rank.threads.values()]
        at[number[parts_of[rank.rank]]] = known.find(np.concatenate(parts))
    reduced = open_to & (at != UNKNOWN)
    return reduced, known.of(np.where(reduced, at, UNKNOWN))


def _counted_twice(number: NDArray[np.int32], parts_of: Mapping[int, slice], *, count: int) -> Bools:
    """Mark the instances in which one rank has several parts, because its count restarted."""
    twice = np.zeros(count, dtype=bool)
    for rank_parts in parts_of.values():
        instance, num_parts = np.unique(number[rank_parts], return_counts=True)
        twice[instance[num_parts > 1]] = True
    return twice


def _one_operation(parts: Parts, number: NDArray[np.int32], *, count: int) -> Bools:
    operation: Bools = lowest(parts.operation_code, number, count) == highest(parts.operation_code, number, count)
    return operation


def _shifted(
    parts: Parts, number: NDArray[np.int32], place: Ints, *, channel: Ints, size: NDArray[np.int32], comparable: Bools
) -> Bools:
    """Mark the instances of a channel in a window in which its members began to count at different collectives.

    `place` numbers channel and window of each instance. Members of a group compare how far torch's own counts have come
    since the first window that all of them have, if these are `comparable`. Counts of earlier trainings may differ.
    """
    count = len(place)
    first = np.flatnonzero((parts.torch_count > 0) & comparable[number])
    whole = np.bincount(number[first], minlength=count) >= size
    of_whole = channel[whole].astype(np.int32)
    earliest_whole = lowest(np.flatnonzero(whole), of_whole, int(channel.max(initial=-1)) + 1)
    member = channel[number[first]] * (int(parts.rank.max(initial=0)) + 1) + parts.rank[first]
    begins = earliest_whole[channel[number[first]]] == number[first]
    members = Numbering.of(member[begins])
    begun_at = np.zeros(len(members), dtype=np.int64)
    begun_at[members.number(member[begins])] = parts.torch_count[first[begins]]
    at = members.number(member)
    known = first[at != UNKNOWN]
    since = parts.torch_count[known] - begun_at[at[at != UNKNOWN]]
    differs = np.zeros(int(place.max(initial=-1)) + 1, dtype=bool)
    differs[place[lowest(since, number[known], count) < highest(since, number[known], count)]] = True
    return differs[place]


def _left_open(timeline: Timeline, known: Mapping[Channel, int], identities: Identities) -> Bools:
    """Mark the instances that some rank has closed and another has open."""
    # The last entry is for instances that no rank closed.
    left_open = np.zeros(len(identities.numbering) + 1, dtype=bool)
    for rank in timeline.ranks:
        for records in rank.threads.values():
            begun = records[(records["kind"] == Kind.COLLECTIVE) & (records["end_ns"] == OPEN)]
            left_open[identities.find(rank, begun, known)] = True
    return left_open[:-1]


def _transfer(parts: Parts, number: NDArray[np.int32], *, by_overlap: Bools, error_ns: Ints, count: int) -> Ints:
    """Return the shortest duration; for instances `by_overlap` at most earliest end - latest start + error."""
    shortest = lowest(parts.duration_ns, number, count)
    if not by_overlap.any():
        return shortest
    overlap_ns = lowest(parts.end_ns, number, count) + lowest(-parts.start_ns, number, count) + error_ns
    return np.where(by_overlap, np.minimum(shortest, np.maximum(overlap_ns, 0)), shortest)


Columns = dict[str, NDArray[Any]]
"""Fields of Parts by name."""


def _join(by_rank: list[Columns]) -> Parts:
    """Join the columns of all ranks. It frees each rank's columns one by one, because together they are large."""
    names = [field.name for field in fields(Parts)]
    empty = np.empty(0, dtype=np.int32)
    return Parts(**{name: np.concatenate([*(columns.pop(name) for columns in by_rank)] or [empty]) for name in names})


def _columns(
    rank: RankTimeline, numbers: dict[Channel, int], *, axes: tuple[str, ...], operations: tuple[str, ...]
) -> Columns:
    """Return a rank's fields of Parts. New channels get the next number in `numbers`."""
    records = joined([chosen(records, closed_collectives(records)) for records in rank.threads.values()])
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
        "window": records["window"].copy(),
        "sequence": records["sequence"].copy(),
        "torch_count": np.where(records["flags"] & Flag.POINT_TO_POINT > 0, 0, records["tag"]),
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
    """Mark a thread's records that have parts. `Instances.parts` holds them in this order, thread by thread."""
    ended = (records["end_ns"] != OPEN) & (records["flags"] & Flag.RAISED == 0)
    closed: Bools = ended & (records["kind"] == Kind.COLLECTIVE)
    return closed
