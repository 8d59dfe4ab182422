"""Each stalled piece split into waiting for others and the transfer itself.

For a collective with interval [s, e] on this rank and transfer d (its shortest duration on any
rank), [s, e - d] is waiting and [e - d, e] is transfer; a piece is what of them it overlaps.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.host import Bools, Ints, Pieces
from traincope.events import Kind
from traincope.timeline import Instances, RankTimeline
from traincope.timeline.instances import instance_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class StallSplit:
    """One entry a piece, 0 where no stall owns it."""

    wait_ns: Ints
    transfer_ns: Ints
    split: Bools
    """False where peers' records are missing and all of the stall counts as transfer."""
    axis: NDArray[np.object_]
    operation: NDArray[np.object_]
    instance: Ints
    """Number of the collective waited for, -1 if unknown."""


def split_stalls(rank: RankTimeline, pieces: Pieces, *, instances: Instances, groups: dict[str, int]) -> StallSplit:
    """Split every piece that a stall owns."""
    intervals = pieces.intervals
    stalls = intervals["kind"] == Kind.STALL
    instance = np.full(len(intervals), -1, dtype=np.int64)
    instance[stalls] = instances.find(instance_keys(rank, intervals[stalls], groups))
    boundary, known = _boundaries(rank, instance, instances=instances)
    owner = np.where(pieces.stalled, pieces.owner, len(intervals))
    limit = np.append(boundary, 0)[owner]
    wait = np.clip(limit, pieces.start_ns, pieces.end_ns) - pieces.start_ns
    wait = np.where(pieces.stalled, wait, 0)
    return StallSplit(
        wait_ns=wait,
        transfer_ns=np.where(pieces.stalled, pieces.duration_ns - wait, 0),
        split=np.append(known, True)[owner],
        axis=_told(intervals["group"], stalls, tell=rank.axis, known=len(rank.groups))[owner],
        operation=_told(intervals["name"], stalls, tell=rank.name, known=len(rank.names))[owner],
        instance=np.append(instance, -1)[owner],
    )


def _told(numbers: NDArray[np.uint32], stalls: Bools, *, tell: Callable[[int], str], known: int) -> NDArray[np.object_]:
    """What each stall's number means, "" for other intervals and in one place more than there are intervals."""
    meanings = np.array([*(tell(number) for number in range(known + 1)), ""], dtype=object)
    at = np.where(stalls, np.minimum(numbers, known), known + 1)
    told: NDArray[np.object_] = meanings[np.append(at, known + 1)]
    return told


def _boundaries(rank: RankTimeline, instance: Ints, *, instances: Instances) -> tuple[Ints, Bools]:
    """For each interval: when its waiting turned into transfer on this rank, and whether that is known."""
    mine = instances.parts_of[rank.rank]
    number = instances.number[mine]
    turn = instances.end_ns[mine] - instances.transfer_ns[number]
    order = np.argsort(number)
    at = np.searchsorted(number, instance, sorter=order)
    known = np.append(instances.splits, False)[instance]
    return np.where(known, np.append(turn, 0)[np.append(order, len(turn))[at]], np.iinfo(np.int64).min), known
