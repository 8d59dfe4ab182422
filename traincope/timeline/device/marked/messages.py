"""Messages of a pipeline on the GPUs, by the marks of both their ranks.

A message is on the wire from the time when both its ranks have begun it until its end, which both see. A rank begins it
when its compute stream reaches the issue, but not before the message before it has ended on the same stream. Recorders
do not know these streams: NCCL has one per group, or one per pair of ranks. So a begin is known only where both agree.
A wait shows the end, unless the message was over when the host queued the mark behind the wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import AFTER_ALL_NS, Bools, Ints
from traincope.events import NOT_MARKED, Flag, Kind
from traincope.timeline.collectives.channels import Channel, channels_of
from traincope.timeline.collectives.comparing import EARLIEST_NS, highest, lowest
from traincope.timeline.timeline import RankTimeline
from traincope.topology import PIPELINE_AXIS

NONE = -1
"""Place of a message's stall, or of the message before it, if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Issued:
    """Messages as their ranks issued them: one entry per message and rank, rank by rank, in the order of the hosts."""

    stalls: NDArray[np.void]
    """Stall of the GPU for each; zeros without one."""
    marked: Bools
    """True with a stall whose issue is marked."""
    rank: Ints
    """Position among the ranks."""
    group: Ints
    peer: Ints
    message: NDArray[np.int32]
    """Number of the message, the same on both its ranks."""

    @property
    def count(self) -> int:
        return int(self.message.max(initial=-1)) + 1


def messages(ranks: Sequence[tuple[RankTimeline, NDArray[np.void]]]) -> dict[int, NDArray[np.void]]:
    """Return the messages that both ranks marked: rank -> COLLECTIVE records, from begin to end on the GPU.

    A record has DONE_BEFORE_WAIT unless marks show exactly when the message was on the wire: then it begins too early,
    or ends too late. `ranks`: ranks with records of their hosts, and the stalls of their GPUs.
    """
    if not ranks:
        return {}
    issued = _issued(ranks)
    ended_ns = np.where(issued.marked, issued.stalls["end_ns"], AFTER_ALL_NS)
    seen = issued.marked & (issued.stalls["flags"] & Flag.DONE_BEFORE_WAIT == 0)
    exact_ns = lowest(np.where(seen, ended_ns, AFTER_ALL_NS), issued.message, issued.count)[issued.message]
    bound_ns = lowest(ended_ns, issued.message, issued.count)[issued.message]
    earliest_ns, latest_ns = _begins(issued, exact_ns=exact_ns, bound_ns=bound_ns)
    marked = issued.marked & (earliest_ns != AFTER_ALL_NS)
    both = np.bincount(issued.message[marked], minlength=issued.count)[issued.message] == 2
    begun_ns, surely_ns = (highest(ns, issued.message, issued.count)[issued.message] for ns in (earliest_ns, latest_ns))
    shown = (begun_ns == surely_ns) & (exact_ns != AFTER_ALL_NS)
    records = issued.stalls.copy()
    records["kind"] = Kind.COLLECTIVE
    records["end_ns"] = np.where(shown, exact_ns, bound_ns)
    records["start_ns"] = np.minimum(earliest_ns, records["end_ns"])
    records["value"] = 0
    records["flags"] &= ~np.uint16(Flag.DONE_BEFORE_WAIT | Flag.BATCHED)
    records["flags"][~shown] |= np.uint16(Flag.DONE_BEFORE_WAIT)
    return {rank.rank: records[both & marked & (issued.rank == at)] for at, (rank, _) in enumerate(ranks)}


def _issued(ranks: Sequence[tuple[RankTimeline, NDArray[np.void]]]) -> _Issued:
    channels: dict[Channel, int] = {}
    stalls, marked, number, group, peer, keys = [], [], [], [], [], []
    for at, (rank, on_device) in enumerate(ranks):
        on_host = _of_pipeline(rank, rank.main[rank.main["kind"] == Kind.COLLECTIVE])
        on_device = _of_pipeline(rank, on_device)
        key = _keys(rank, on_host, channels)
        place = _places(key, _keys(rank, on_device, channels))
        found = np.append(on_device, np.zeros(1, dtype=on_device.dtype))[place]
        stalls.append(found)
        marked.append((place != NONE) & (found["value"] != NOT_MARKED))
        number.append(np.full(len(on_host), at))
        group.append(on_host["group"].astype(np.int64))
        peer.append(on_host["peer"].astype(np.int64))
        keys.append(key)
    _, message = np.unique(np.concatenate(keys, axis=1), axis=1, return_inverse=True)
    return _Issued(
        stalls=np.concatenate(stalls),
        marked=np.concatenate(marked),
        rank=np.concatenate(number),
        group=np.concatenate(group),
        peer=np.concatenate(peer),
        message=message.reshape(-1).astype(np.int32),
    )


def _of_pipeline(rank: RankTimeline, records: NDArray[np.void]) -> NDArray[np.void]:
    """Return the messages among the records whose group is on the pipeline's axis."""
    pipeline = np.array([group.axis == PIPELINE_AXIS for group in rank.groups] + [False])
    direct = records["flags"] & Flag.POINT_TO_POINT > 0
    chosen: NDArray[np.void] = records[direct & pipeline[np.minimum(records["group"], len(rank.groups))]]
    return chosen


def _keys(rank: RankTimeline, records: NDArray[np.void], channels: dict[Channel, int]) -> Ints:
    """Identify messages by channel, window and sequence: an array (3, messages). New channels get the next number."""
    named, at = channels_of(rank, records)
    number = np.array([channels.setdefault(channel, len(channels)) for channel in named], dtype=np.int64)
    return np.stack([number[at], records["window"].astype(np.int64), records["sequence"].astype(np.int64)])


def _places(keys: Ints, among: Ints) -> Ints:
    """Return the position of each key among others; NONE without one."""
    _, code = np.unique(np.concatenate([keys, among], axis=1), axis=1, return_inverse=True)
    code = code.reshape(-1)
    place = np.full(int(code.max(initial=-1)) + 1, NONE)
    place[code[keys.shape[1] :]] = np.arange(among.shape[1])
    return place[code[: keys.shape[1]]]


def _begins(issued: _Issued, *, exact_ns: Ints, bound_ns: Ints) -> tuple[Ints, Ints]:
    """Return the earliest and the latest time at which each rank can have begun each message.

    The messages of a batch begin together, on the stream of the group: earlier ones may be on other streams.
    """
    count = len(issued.rank)
    batched = (issued.stalls["flags"] & Flag.BATCHED > 0) & (np.diff(issued.rank, prepend=NONE) == 0)
    first = np.maximum.accumulate(np.where(batched, 0, np.arange(count)))
    in_batch = np.bincount(first, minlength=count) > 1
    before = [_before(issued.rank, issued.group), _before(issued.rank, issued.group, issued.peer)]
    earliest_ns, latest_ns = (
        np.stack([np.append(times, EARLIEST_NS)[at] for at in before])
        for times in (np.where(exact_ns == AFTER_ALL_NS, EARLIEST_NS, exact_ns), bound_ns)
    )
    free_ns = np.where(in_batch, EARLIEST_NS, earliest_ns.min(axis=0))
    issued_ns = np.where(issued.marked, issued.stalls["start_ns"] - issued.stalls["value"], AFTER_ALL_NS)
    return np.maximum(issued_ns, free_ns)[first], np.maximum(issued_ns, latest_ns.max(axis=0))[first]


def _before(*keys: Ints) -> Ints:
    """Return the position of the entry before each one with the same keys; NONE without one."""
    order = np.lexsort(keys[::-1])
    same = np.ones(max(len(order) - 1, 0), dtype=bool)
    for key in keys:
        same &= np.diff(key[order]) == 0
    result = np.full(len(order), NONE)
    result[order[1:][same]] = order[:-1][same]
    return result
