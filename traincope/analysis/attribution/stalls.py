"""Split of each stall into wait for other ranks and transfer.

For a collective with interval [s, e] on this rank and transfer d (its shortest duration on any rank),
[s, e - d] is wait and [e - d, e] is transfer. A slice gets its overlap with each of them.
A stall that the records cannot split counts as transfer, with an `AmbiguousWait` as the reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.attribution.thread_slices import ThreadSlices
from traincope.arrays import BEFORE_ALL_NS, Bools, Ints, chosen
from traincope.timeline import Instances, RankTimeline
from traincope.timeline.intervals.numbering import UNKNOWN, Numbering


class AmbiguousWait(StrEnum):
    """Reason why wait cannot be separated from transfer. The value is the spelling in JSON."""

    RECORDS_MISSING = "records_missing"
    OTHER_JOBS = "other_jobs"
    """The other members are in other jobs, whose runs are not read together with this one."""
    NOT_MATCHED = "not_matched"
    """Only for traces: they do not show which kernels of other ranks are of the same collective."""
    NEVER_WAITED_FOR = "never_waited_for"
    CLOCKS = "clocks"
    NOT_REPLAYED = "not_replayed"
    """Only for the pipeline's own sends and receives: only a replay splits its idle time."""
    DEVICE_MARKS = "device_marks"
    """Marks on compute streams do not show when the collective ran on every rank."""


WHY = {
    AmbiguousWait.RECORDS_MISSING: "records of their peers are missing",
    AmbiguousWait.OTHER_JOBS: "the other members are in other jobs, whose runs are not read here",
    AmbiguousWait.NOT_MATCHED: "the traces do not show which kernels of other ranks belong to the same collective",
    AmbiguousWait.NEVER_WAITED_FOR: "a peer never waited for its part, so the end of that part is unknown",
    AmbiguousWait.CLOCKS: "the clocks of their hosts are not known well enough",
    AmbiguousWait.NOT_REPLAYED: "some stage has no actions recorded in these steps",
    AmbiguousWait.DEVICE_MARKS: "marks on the GPUs' streams do not show when the collectives ran on every rank",
}
CAUSES = tuple(AmbiguousWait)
"""Code -> reason."""
SPLIT = -1
"""Code of a stall that can be split."""


def code(cause: AmbiguousWait) -> int:
    return CAUSES.index(cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class StallSplit:
    """Wait and transfer of stalled slices: one entry per slice that a stall owns."""

    at: Ints
    """Position of the slice."""
    wait_ns: Ints
    transfer_ns: Ints
    cause: Ints
    """Code of the `AmbiguousWait` that makes all of it transfer; SPLIT if wait and transfer are separate."""
    axes: tuple[str, ...]
    axis_code: Ints
    """Position in `axes`."""
    operations: tuple[str, ...]
    operation_code: Ints
    instance: Ints
    """Number of the collective that the stall waits for, -1 if unknown."""

    @property
    def split(self) -> Bools:
        """True where wait and transfer are separate."""
        known: Bools = self.cause == SPLIT
        return known

    def as_ambiguous(self, chosen: Bools, cause: AmbiguousWait) -> "StallSplit":
        """Return a copy in which the chosen stalls are all transfer, with that cause."""
        return replace(
            self,
            wait_ns=np.where(chosen, 0, self.wait_ns),
            transfer_ns=self.transfer_ns + np.where(chosen, self.wait_ns, 0),
            cause=np.where(chosen, code(cause), self.cause),
        )

    def on(self, axis: str) -> Bools:
        """True for stalls of collectives on that axis."""
        chosen: Bools = self.axis_code == (self.axes.index(axis) if axis in self.axes else -1)
        return chosen


def split_stalls(rank: RankTimeline, slices: ThreadSlices, *, instances: Instances) -> StallSplit:
    """Split every slice that a stall owns into wait and transfer."""
    at = np.flatnonzero(slices.stalled)
    stalls, of = np.unique(slices.owner[at], return_inverse=True)
    records = chosen(slices.intervals, stalls)
    instance = instances.find(rank, records)
    lengths_ns = records["end_ns"] - records["start_ns"]
    transfer_starts = _transfer_starts(rank, instance, instances=instances)
    cause = _causes(instance, transfer_starts, lengths_ns, instances=instances)
    group = np.minimum(records["group"], len(rank.groups))
    unrecorded = cause == code(AmbiguousWait.RECORDS_MISSING)
    unmatched = np.array([not group.matched for group in rank.groups] + [False])
    between_jobs = np.array([group.between_jobs for group in rank.groups] + [False])
    cause[unrecorded & unmatched[group]] = code(AmbiguousWait.NOT_MATCHED)
    cause[unrecorded & between_jobs[group]] = code(AmbiguousWait.OTHER_JOBS)
    start, end = slices.start_ns[at], slices.end_ns[at]
    wait = np.where(cause[of] == SPLIT, np.clip(transfer_starts[of], start, end) - start, 0)
    axes, axis = _encode(records["group"], [group.axis for group in rank.groups], lost="group")
    operations, operation = _encode(records["name"], rank.names, lost="name")
    found = StallSplit(
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
    return found.as_ambiguous(~found.split, AmbiguousWait.DEVICE_MARKS) if rank.on_device else found


def _encode(numbers: NDArray[np.uint32], meanings: Sequence[str], *, lost: str) -> tuple[tuple[str, ...], Ints]:
    """Return the distinct meanings, and the position of each number's meaning among them."""
    known = [*meanings, f"<{lost} {len(meanings)}>"]
    distinct = tuple(dict.fromkeys(known))
    code_of = {meaning: code for code, meaning in enumerate(distinct)}
    codes = np.array([code_of[meaning] for meaning in known], dtype=np.int64)
    return distinct, codes[np.minimum(numbers, len(meanings))]


def _transfer_starts(rank: RankTimeline, instance: Ints, *, instances: Instances) -> Ints:
    """Compute when each stall turns from wait to transfer; BEFORE_ALL_NS if the rank has no record of its call."""
    part = instances.own_parts(rank.rank, instance)
    transfer_starts = np.full(len(instance), BEFORE_ALL_NS)
    known = part != UNKNOWN
    transfer_starts[known] = instances.parts.end_ns[part[known]] - instances.transfer_ns[instance[known]]
    return transfer_starts


def _causes(instance: Ints, transfer_starts: Ints, lengths_ns: Ints, *, instances: Instances) -> Ints:
    """Find the cause that prevents each stall's split: CLOCKS if the stall is shorter than the clocks' error."""
    cause = np.full(len(instance), code(AmbiguousWait.RECORDS_MISSING))
    blurred_ns = np.zeros(len(instance), dtype=np.int64)
    known = instance != UNKNOWN
    cause[known] = _instance_causes(instances, instance[known])
    blurred_ns[known] = np.where(instances.by_clock[instance[known]], instances.clock_error_ns[instance[known]], 0)
    cause[(cause == SPLIT) & (blurred_ns > 0) & (blurred_ns >= lengths_ns)] = code(AmbiguousWait.CLOCKS)
    cause[(cause == SPLIT) & (transfer_starts == BEFORE_ALL_NS)] = code(AmbiguousWait.RECORDS_MISSING)
    return cause


def _instance_causes(instances: Instances, chosen: Ints) -> Ints:
    """Return the code of the cause of each chosen instance, SPLIT without one."""
    incomplete = np.where(
        instances.left_open[chosen], code(AmbiguousWait.NEVER_WAITED_FOR), code(AmbiguousWait.RECORDS_MISSING)
    )
    known = instances.complete[chosen] | instances.reduced[chosen]
    cause = np.where(known, code(AmbiguousWait.CLOCKS), incomplete)
    return np.where(instances.splits[chosen], SPLIT, cause)


class StallTotal(NamedTuple):
    """Stall time of a rank for one operation on one axis, and the rank that joined it last (-1: unknown)."""

    axis: str
    operation: str
    last: int
    total_ns: int
    wait_ns: int
    ambiguous_ns: int
    """Part of the total that the records cannot split."""


def sum_stalls(slices: ThreadSlices, split: StallSplit, *, counted: Bools, last: Ints) -> tuple[StallTotal, ...]:
    """Sum a rank's stalls over its counted steps. `last` is the rank that joined each instance last."""
    inside = np.append(counted, False)[slices.step[split.at]]
    arrived, instance = np.zeros(np.count_nonzero(inside), dtype=np.int64), split.instance[inside]
    arrived[instance != UNKNOWN] = last[instance[instance != UNKNOWN]] + 1
    kinds = (arrived * len(split.axes) + split.axis_code[inside]) * len(split.operations) + split.operation_code[inside]
    numbering = Numbering.of(kinds)  # a run may have a million names, of which few are operations
    sums, number = np.zeros((3, len(numbering)), dtype=np.int64), numbering.number(kinds)
    np.add.at(sums[0], number, (split.wait_ns + split.transfer_ns)[inside])
    np.add.at(sums[1], number, split.wait_ns[inside])
    np.add.at(sums[2], number, np.where(split.split, 0, split.transfer_ns)[inside])
    totals = []
    for at in np.flatnonzero(sums[0]).tolist():
        rest, operation = divmod(int(numbering.values[at]), len(split.operations))
        rank, axis = divmod(rest, len(split.axes))
        totals.append(StallTotal(split.axes[axis], split.operations[operation], rank - 1, *sums[:, at].tolist()))
    return tuple(totals)
