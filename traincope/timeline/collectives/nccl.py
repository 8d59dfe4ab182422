"""Calls of collectives that the dispatcher saw, joined with the operations that NCCL ran for them.

A call makes NCCL enqueue its operations before the next call on the group, or, of a coalesced batch, all together after
the batch's last call. So on one rank the order of both gives the pairs, and their functions and bytes confirm each.
Across ranks NCCL's own identity decides: one collective has one communicator, function and count on every rank. A call
that does not fit is not joined: no guess replaces it.

Operations that the dispatcher did not see belong to no call: those between windows, and replays of CUDA graphs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Bools, Ints, chosen, joined
from traincope.events import Flag, Kind
from traincope.store import RECORD_DTYPE
from traincope.store.segments.nccl import NcclOperation, nccl_operations
from traincope.timeline.timeline import RankTimeline, Timeline
from traincope.topology import Group

FUNCTIONS = {
    "all_reduce": ("AllReduce",),
    "reduce": ("Reduce",),
    "broadcast": ("Broadcast",),
    "all_gather": ("AllGather", "Broadcast"),
    "reduce_scatter": ("ReduceScatter", "Reduce"),
    "barrier": ("AllReduce",),
}
"""Operation of the dispatcher -> NCCL's functions for it. Parts of different sizes are gathered by broadcasts, and
scattered by reductions. An all-to-all consists of messages.
"""
NCCL_KINDS = (Kind.NCCL_CALL, Kind.NCCL_RUN, Kind.NCCL_COMMUNICATOR, Kind.NCCL_TEXT)
UNKNOWN_NS = -1
"""In place of a time on the device, of a run without."""

Identity = tuple[tuple[int, str, int], ...]
"""Communicator, function and NCCL's count of each operation of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRuns:
    """Collectives of one rank that have ended, as NCCL ran them: one entry per call of the dispatcher."""

    calls: NDArray[np.void]
    """The COLLECTIVE records of the calls."""
    identities: tuple[Identity, ...]
    seen_ns: Ints
    """When NCCL's thread on the host saw the end, perhaps late."""
    device_start_ns: Ints
    device_end_ns: Ints
    """By the GPU's global timer; UNKNOWN_NS without its times."""

    def __len__(self) -> int:
        return len(self.calls)

    def only(self, where: Bools) -> "NcclRuns":
        """Return the entries that are marked."""
        return replace(
            self,
            calls=chosen(self.calls, where),
            identities=tuple(self.identities[at] for at in np.flatnonzero(where).tolist()),
            seen_ns=self.seen_ns[where],
            device_start_ns=self.device_start_ns[where],
            device_end_ns=self.device_end_ns[where],
        )

    @property
    def timed(self) -> Bools:
        """True for entries with times on the device."""
        known: Bools = self.device_start_ns != UNKNOWN_NS
        return known

    @property
    def duration_ns(self) -> Ints:
        """Time on the device of the entries that have it, the wait for late ranks included."""
        return self.device_end_ns - self.device_start_ns


def nccl_runs(timeline: Timeline) -> Mapping[int, NcclRuns]:
    """Rank -> its collectives that all members of their group joined with the same operations of NCCL."""
    by_rank = {rank.rank: joined_calls(rank) for rank in timeline.ranks if _has_operations(rank)}
    joined_by: dict[tuple[str, int, int], Counter[Identity]] = defaultdict(Counter)
    keys = {rank.rank: _keys(rank, by_rank[rank.rank]) for rank in timeline.ranks if rank.rank in by_rank}
    for number, runs in by_rank.items():
        for key, identity in zip(keys[number], runs.identities, strict=True):
            joined_by[key][identity] += 1
    sizes = {group.key: len(group.ranks) for rank in timeline.ranks for group in rank.groups}
    confirmed = {key for key, seen in joined_by.items() if [*seen.values()] == [sizes[key[0]]]}
    return {
        number: runs.only(np.array([key in confirmed for key in keys[number]], dtype=bool))
        for number, runs in by_rank.items()
    }


def _has_operations(rank: RankTimeline) -> bool:
    return any(bool((records["kind"] == Kind.NCCL_CALL).any()) for records in rank.threads.values())


def _keys(rank: RankTimeline, runs: NcclRuns) -> list[tuple[str, int, int]]:
    """Identify each call across ranks: group, window and count."""
    columns = (runs.calls[name].tolist() for name in ("group", "window", "sequence"))
    return [(rank.groups[group].key, window, sequence) for group, window, sequence in zip(*columns, strict=True)]


def joined_calls(rank: RankTimeline) -> NcclRuns:
    """Join a rank's calls of collectives with its operations."""
    calls = _calls(rank)
    operations = _operations(rank, calls)
    pairs: list[tuple[int, Sequence[NcclOperation]]] = []
    of_group = _by_group(rank, calls, operations)
    for group, own in of_group.items():
        at = np.flatnonzero(calls["group"] == group)
        pairs += [(int(at[call]), parts) for call, parts in _pairs(rank, calls[at], own)]
    pairs = sorted((call, parts) for call, parts in pairs if all(each.end_ns is not None for each in parts))
    parts_of = [parts for _, parts in pairs]
    return NcclRuns(
        calls=chosen(calls, np.array([call for call, _ in pairs], dtype=np.int64)),
        identities=tuple(tuple(map(_identity, parts)) for parts in parts_of),
        seen_ns=np.array([max(each.end_ns or 0 for each in parts) for parts in parts_of], dtype=np.int64),
        device_start_ns=np.array([_first_ns(parts) for parts in parts_of], dtype=np.int64),
        device_end_ns=np.array([_last_ns(parts) for parts in parts_of], dtype=np.int64),
    )


def _identity(operation: NcclOperation) -> tuple[int, str, int]:
    return operation.communicator or 0, operation.function or "", operation.sequence


def _first_ns(parts: Sequence[NcclOperation]) -> int:
    starts = [each.device_start_ns for each in parts]
    return UNKNOWN_NS if None in starts else min(start for start in starts if start is not None)


def _last_ns(parts: Sequence[NcclOperation]) -> int:
    ends = [each.device_end_ns for each in parts]
    return UNKNOWN_NS if None in ends else max(end for end in ends if end is not None)


def _calls(rank: RankTimeline) -> NDArray[np.void]:
    """The rank's calls of collectives with a known group, in order."""
    parts = [np.empty(0, dtype=RECORD_DTYPE)]
    for records in rank.threads.values():
        wanted = (records["kind"] == Kind.COLLECTIVE) & (records["group"] < len(rank.groups))
        wanted &= records["flags"] & (Flag.POINT_TO_POINT | Flag.RAISED) == 0
        parts.append(chosen(records, wanted))
    calls = joined(parts)
    return chosen(calls, np.argsort(calls["start_ns"], kind="stable"))


def _operations(rank: RankTimeline, calls: NDArray[np.void]) -> list[NcclOperation]:
    """The rank's operations in the steps of the calls, without messages, in order."""
    parts = [np.empty(0, dtype=RECORD_DTYPE)]
    for records in rank.threads.values():
        parts.append(chosen(records, np.isin(records["kind"], NCCL_KINDS)))
    records = joined(parts)
    of_calls = (records["kind"] == Kind.NCCL_CALL) & np.isin(records["step"], calls["step"])
    of_calls &= records["flags"] & Flag.POINT_TO_POINT == 0
    numbers = records["window"][of_calls]
    needed = of_calls | np.isin(records["kind"], (Kind.NCCL_COMMUNICATOR, Kind.NCCL_TEXT))
    needed |= (records["kind"] == Kind.NCCL_RUN) & np.isin(records["window"], numbers)
    return sorted(nccl_operations(chosen(records, needed)), key=lambda each: (each.call_ns, each.number))


def _by_group(
    rank: RankTimeline, calls: NDArray[np.void], operations: Sequence[NcclOperation]
) -> Mapping[int, list[NcclOperation]]:
    """Group -> operations on its communicators: most of a communicator's operations follow calls on its group."""
    latest = np.searchsorted(calls["start_ns"], [each.call_ns for each in operations], side="right") - 1
    votes: dict[int | None, Counter[int]] = defaultdict(Counter)
    for operation, at in zip(operations, latest.tolist(), strict=True):
        if at >= 0:
            call = calls[at]
            fits = is_of_group(rank.groups[call["group"]], operation, rank.rank) and _may_be(rank, call, operation)
            votes[operation.communicator][int(call["group"])] += fits
    group_of = {hash_: max(seen, key=lambda group: seen[group]) for hash_, seen in votes.items() if any(seen.values())}
    result: dict[int, list[NcclOperation]] = defaultdict(list)
    for operation in operations:
        if operation.communicator in group_of and operation.communicator is not None:
            result[group_of[operation.communicator]].append(operation)
    return result


def is_of_group(group: Group, operation: NcclOperation, rank: int) -> bool:
    """Return whether the operation's communicator can be the group's, by its size and this rank's place in it."""
    if operation.num_ranks not in (None, len(group.ranks)):
        return False
    return operation.rank is not None and group.ranks[operation.rank : operation.rank + 1] == (rank,)


def _may_be(rank: RankTimeline, call: np.void, operation: NcclOperation) -> bool:
    return operation.function in FUNCTIONS.get(rank.name(int(call["name"])), ())


def _pairs(
    rank: RankTimeline, calls: NDArray[np.void], operations: Sequence[NcclOperation]
) -> Iterator[tuple[int, Sequence[NcclOperation]]]:
    """Yield the calls of a group, by position, with their operations."""
    latest = np.searchsorted(calls["start_ns"], [each.call_ns for each in operations], side="right") - 1
    following: dict[int, list[NcclOperation]] = defaultdict(list)
    for operation, at in zip(operations, latest.tolist(), strict=True):
        if at >= 0 and operation.step == calls["step"][at]:
            following[at].append(operation)
    begins = 0
    for at in sorted(following):
        batch = [call for call in range(begins, at + 1) if calls["step"][call] == calls["step"][at]]
        begins = at + 1
        yield from _of_batch(rank, calls, batch, following[at])


def _of_batch(
    rank: RankTimeline, calls: NDArray[np.void], batch: Sequence[int], operations: Sequence[NcclOperation]
) -> Iterator[tuple[int, Sequence[NcclOperation]]]:
    """Yield the calls of a batch, each with its operation, or the last call with all operations.

    NCCL may enqueue a batch in another order, the largest first; operations of one function and size stay in order.
    """
    if len(batch) == len(operations) > 1:
        free, found = list(operations), []
        for call in batch:
            own = next((each for each in free if _is_explained(rank, calls[call], (each,))), None)
            if own is not None:
                free.remove(own)
                found.append((call, (own,)))
        if not free:
            yield from found
            return
    if _is_explained(rank, calls[batch[-1]], operations):
        yield batch[-1], operations


def _is_explained(rank: RankTimeline, call: np.void, operations: Sequence[NcclOperation]) -> bool:
    """Return whether the call does what these operations do, with as many bytes."""
    sizes = [each.num_bytes for each in operations]
    known = [size for size in sizes if size is not None]
    fits = len(known) < len(sizes) or not call["value"] or sum(known) == call["value"]
    return fits and all(_may_be(rank, call, each) for each in operations)
