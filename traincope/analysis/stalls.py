"""Each stalled piece split into waiting for others and the transfer itself.

For a collective with interval [s, e] on this rank and transfer d (its shortest duration on any
rank), [s, e - d] is waiting and [e - d, e] is transfer; a piece is what of them it overlaps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.host import Bools, Ints, Pieces
from traincope.analysis.unsplit import SPLIT, Unsplit, causes, code
from traincope.timeline import Instances, RankTimeline
from traincope.timeline.numbering import Numbering

NEVER = int(np.iinfo(np.int64).min)
"""Before every time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StallSplit:
    """One entry a piece that a stall owns."""

    at: Ints
    """Which piece."""
    wait_ns: Ints
    transfer_ns: Ints
    cause: Ints
    """Code of the `Unsplit` for which all of it is transfer, SPLIT where that is told from waiting."""
    axes: tuple[str, ...]
    axis_code: Ints
    """Position in `axes`."""
    operations: tuple[str, ...]
    operation_code: Ints
    instance: Ints
    """Number of the collective waited for, -1 if unknown."""

    @property
    def split(self) -> Bools:
        """Which of them are waiting and transfer as told."""
        told: Bools = self.cause == SPLIT
        return told

    def untold(self, chosen: Bools, cause: Unsplit) -> "StallSplit":
        """The same, the chosen ones all transfer, for that cause."""
        return replace(
            self,
            wait_ns=np.where(chosen, 0, self.wait_ns),
            transfer_ns=self.transfer_ns + np.where(chosen, self.wait_ns, 0),
            cause=np.where(chosen, code(cause), self.cause),
        )

    def on(self, axis: str) -> Bools:
        """Which of them are for collectives on that axis."""
        chosen: Bools = self.axis_code == (self.axes.index(axis) if axis in self.axes else -1)
        return chosen


def split_stalls(rank: RankTimeline, pieces: Pieces, *, instances: Instances) -> StallSplit:
    """Split every piece that a stall owns."""
    at = np.flatnonzero(pieces.stalled)
    stalls, of = np.unique(pieces.owner[at], return_inverse=True)
    records = pieces.intervals[stalls]
    instance = instances.find(rank, records)
    lengths_ns = records["end_ns"] - records["start_ns"]
    turns = _turns(rank, instance, instances=instances)
    cause = _causes(instance, turns, lengths_ns, instances=instances)
    start, end = pieces.start_ns[at], pieces.end_ns[at]
    wait = np.where(cause[of] == SPLIT, np.clip(turns[of], start, end) - start, 0)
    axes, axis = _told(records["group"], [group.axis for group in rank.groups], lost="group")
    operations, operation = _told(records["name"], rank.names, lost="name")
    return StallSplit(
        at=at,
        wait_ns=wait,
        transfer_ns=end - start - wait,
        cause=cause[of],
        axes=axes,
        axis_code=axis[of],
        operations=operations,
        operation_code=operation[of],
        instance=instance[of],
    )


def _told(numbers: NDArray[np.uint32], meanings: Sequence[str], *, lost: str) -> tuple[tuple[str, ...], Ints]:
    """The distinct meanings, and which of them each number has."""
    told = [*meanings, f"<{lost} {len(meanings)}>"]
    distinct = tuple(dict.fromkeys(told))
    code_of = {meaning: code for code, meaning in enumerate(distinct)}
    codes = np.array([code_of[meaning] for meaning in told], dtype=np.int64)
    return distinct, codes[np.minimum(numbers, len(meanings))]


def _turns(rank: RankTimeline, instance: Ints, *, instances: Instances) -> Ints:
    """For each stall: when its waiting turned into transfer on this rank; NEVER if its own call left no record."""
    mine = instances.parts_of[rank.rank]
    number = instances.number[mine]
    turns = np.full(len(instances) + 1, NEVER)
    turns[number] = instances.parts.end_ns[mine] - instances.transfer_ns[number]
    return turns[instance]


def _causes(instance: Ints, turns: Ints, lengths_ns: Ints, *, instances: Instances) -> Ints:
    """For each stall what keeps it from being split; clocks do where it is shorter than they may be apart."""
    cause = causes(instances)[instance]
    blurred_ns = np.append(np.where(instances.by_clock, instances.clock_error_ns, 0), 0)[instance]
    cause[(cause == SPLIT) & (blurred_ns > 0) & (blurred_ns >= lengths_ns)] = code(Unsplit.CLOCKS)
    cause[(cause == SPLIT) & (turns == NEVER)] = code(Unsplit.RECORDS_MISSING)
    return cause


class Standstill(NamedTuple):
    """Time a rank stood still for one operation on one axis, and which rank joined it last (-1: unknown)."""

    axis: str
    operation: str
    last: int
    total_ns: int
    wait_ns: int


def standstills(pieces: Pieces, split: StallSplit, *, counted: Bools, last: Ints) -> tuple[Standstill, ...]:
    """Sums over the counted steps. `last` says of each instance which rank arrived last."""
    inside = np.append(counted, False)[pieces.step[split.at]]
    arrived = np.append(last, -1)[split.instance[inside]] + 1
    kinds = (arrived * len(split.axes) + split.axis_code[inside]) * len(split.operations) + split.operation_code[inside]
    numbering = Numbering.of(kinds)  # a run may have a million names, of which few are operations
    sums, number = np.zeros((2, len(numbering)), dtype=np.int64), numbering.number(kinds)
    np.add.at(sums[0], number, (split.wait_ns + split.transfer_ns)[inside])
    np.add.at(sums[1], number, split.wait_ns[inside])
    found = []
    for at in np.flatnonzero(sums[0]).tolist():
        rest, operation = divmod(int(numbering.values[at]), len(split.operations))
        rank, axis = divmod(rest, len(split.axes))
        total_ns, wait_ns = sums[:, at].tolist()
        found.append(Standstill(split.axes[axis], split.operations[operation], rank - 1, total_ns, wait_ns))
    return tuple(found)
