"""Moves of a rank in some steps, so that they can be replayed with other times.

A rank's work takes its time. A rank begins a collective; if it stalls in one, it continues when the last rank has begun
the collective and the transfer has taken its time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from traincope.analysis.attribution.releases import Releases
from traincope.analysis.attribution.stalls import SPLIT, StallSplit
from traincope.analysis.attribution.terms import EVALUATION, exposed_transfer
from traincope.analysis.attribution.thread_slices import ThreadSlices
from traincope.analysis.attribution.transfers import Transfers
from traincope.arrays import Bools, Ints
from traincope.timeline import Instances, RankTimeline
from traincope.timeline.intervals.painting import ABSENT

Ranges = Sequence[tuple[int, int]]
"""First and last number of each range of consecutive steps."""


class Work(NamedTuple):
    """Time of the rank's work, or of a transfer without a known partner."""

    term: str
    ns: int


class CollectiveKey(NamedTuple):
    """A collective and how many ranks begin it."""

    instance: int
    axis: str
    ranks: int


class Begin(NamedTuple):
    collective: CollectiveKey


class Finish(NamedTuple):
    """Continue `delay_ns` after the last rank began the collective.

    If this rank came later still, it continues `late_ns` after it came.
    """

    collective: CollectiveKey
    delay_ns: int
    late_ns: int
    measured: bool
    """False if no rank's record gives the transfer time. `delay_ns` is then an upper bound, or that of similar
    collectives."""


class StepBegins(NamedTuple):
    number: int


class StepEnds(NamedTuple):
    number: int


Move = Work | Begin | Finish | StepBegins | StepEnds


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Moves of one rank."""

    start_ns: int
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCollectives:
    """Collectives that all their ranks begin in these steps."""

    instances: Instances
    ranges: Ranges
    """The steps, in order."""
    ranks: Ints
    """For each instance the number of ranks that begin it; 0 if some of them do not."""


def shared_collectives(ranks: Sequence[RankTimeline], instances: Instances, ranges: Ranges) -> SharedCollectives:
    """Find the collectives whose ranks all begin them in these steps. `ranks` completed the steps."""
    inside = np.zeros(len(instances), dtype=np.int64)
    for rank in ranks:
        rank_parts = instances.parts_of[rank.rank]
        np.add.at(inside, instances.number[rank_parts][_begins_inside(rank, instances, ranges)], 1)
    parts = np.bincount(instances.number, minlength=len(instances))
    complete = instances.complete & (inside == parts)
    return SharedCollectives(instances=instances, ranges=ranges, ranks=np.where(complete, inside, 0))


def _begins_inside(rank: RankTimeline, instances: Instances, ranges: Ranges) -> Bools:
    """Mask of the rank's parts that begin in these steps and outside of evaluation."""
    bounds = np.array(_bounds_ns(rank, ranges), dtype=np.int64)
    rank_parts = instances.parts_of[rank.rank]
    starts = instances.parts.start_ns[rank_parts]
    at = np.searchsorted(bounds[:, 0], starts, side="right") - 1
    shared: Bools = (at >= 0) & (starts <= bounds[at, 1]) & ~instances.parts.evaluating[rank_parts]
    return shared


def _bounds_ns(rank: RankTimeline, ranges: Ranges) -> list[tuple[int, int]]:
    """Begin of the first step and end of the last one of each range."""
    by_number = {step.number: step for step in rank.steps}
    return [(by_number[first].start_ns, by_number[last].end_ns) for first, last in ranges]


def rank_moves(
    rank: RankTimeline,
    pieces: ThreadSlices,
    split: StallSplit,
    released: Releases,
    shared: SharedCollectives,
    *,
    wire: Transfers,
) -> Moves:
    """List what the rank did in these steps, one range of steps directly after the other."""
    bounds = _bounds_ns(rank, shared.ranges)
    marks = _Marks(rank, shared)
    stalled = _Stalled(pieces, split, released, shared, wire)
    moves: list[Move] = []
    for start_ns, end_ns in bounds:
        inside = range(
            int(np.searchsorted(pieces.start_ns, start_ns)), int(np.searchsorted(pieces.end_ns, end_ns, side="right"))
        )
        moves += _range_moves(pieces, stalled.moves(inside), marks, inside)
        moves += [mark for _, mark in marks.before(end_ns + 1, until=end_ns)]
    return Moves(start_ns=bounds[0][0], moves=tuple(move for move in moves if not _is_nothing(move)))


def _range_moves(
    pieces: ThreadSlices, stalls: Mapping[int, Sequence[Move]], marks: "_Marks", inside: range
) -> Iterator[Move]:
    for piece in inside:
        start, end = int(pieces.start_ns[piece]), int(pieces.end_ns[piece])
        stalled = piece in stalls
        for at_ns, mark in marks.before(end, until=start):
            if not stalled and at_ns > start:
                yield _work(pieces, piece, at_ns - start)
                start = at_ns
            yield mark
        yield from stalls[piece] if stalled else [_work(pieces, piece, end - start)]


def _work(pieces: ThreadSlices, piece: int, ns: int) -> Work:
    return Work(pieces.terms[pieces.code[piece]], ns)


def _is_nothing(move: Move) -> bool:
    """True for moves without time, and for evaluation, which is not part of a step."""
    return isinstance(move, Work) and (not move.ns or move.term == EVALUATION)


class _Marks:
    """Instants in order: step ends, step begins, collective begins."""

    def __init__(self, rank: RankTimeline, shared: SharedCollectives) -> None:
        rank_parts = shared.instances.parts_of[rank.rank]
        number = shared.instances.number[rank_parts]
        complete = (shared.ranks[number] > 0) & _begins_inside(rank, shared.instances, shared.ranges)
        starts = shared.instances.parts.start_ns[rank_parts][complete].tolist()
        axes = [shared.instances.axes[code] for code in shared.instances.parts.axis_code[rank_parts][complete].tolist()]
        numbers = number[complete].tolist()
        marks: list[tuple[int, int, Move]] = [
            (at_ns, 2, Begin(CollectiveKey(instance, axis, int(shared.ranks[instance]))))
            for at_ns, instance, axis in zip(starts, numbers, axes, strict=True)
        ]
        numbers_inside = {number for first, last in shared.ranges for number in range(first, last + 1)}
        for step in rank.steps:
            if step.number in numbers_inside:
                marks += [(step.start_ns, 1, StepBegins(step.number)), (step.end_ns, 0, StepEnds(step.number))]
        self._marks = sorted(marks, key=lambda mark: mark[:2])
        self._next = 0

    def before(self, end_ns: int, *, until: int) -> Iterator[tuple[int, Move]]:
        """Yield the next marks before `end_ns`, or at `until`."""
        while self._next < len(self._marks):
            at_ns, _, mark = self._marks[self._next]
            if at_ns >= end_ns and at_ns > until:
                return
            self._next += 1
            yield at_ns, mark


class _Stalled:
    """The moves that replay stalls."""

    def __init__(
        self,
        pieces: ThreadSlices,
        split: StallSplit,
        released: Releases,
        shared: SharedCollectives,
        wire: Transfers,
    ) -> None:
        self._pieces, self._split, self._released = pieces, split, released
        records = pieces.intervals[pieces.owner[split.at]]
        self._begins, self._ends = records["start_ns"], records["end_ns"]
        self._wire_ns, self._ranks = np.append(wire.ns, 0)[split.instance], np.append(shared.ranks, 0)[split.instance]
        self._measured = np.append(wire.measured, False)[split.instance]

    def moves(self, inside: range) -> dict[int, list[Move]]:
        """Slice of a stall -> its moves, for the slices inside."""
        first, last = np.searchsorted(self._split.at, (inside.start, inside.stop)).tolist()
        return {int(self._split.at[stall]): self._moves(stall) for stall in range(first, last)}

    def _moves(self, stall: int) -> list[Move]:
        pieces, split, released = self._pieces, self._split, self._released
        piece = int(split.at[stall])
        axis, ns = split.axes[split.axis_code[stall]], int(pieces.end_ns[piece] - pieces.start_ns[piece])
        key = CollectiveKey(int(split.instance[stall]), axis, int(self._ranks[stall]))
        since_ns, begin_ns, end_ns = int(released.since_ns[stall]), int(self._begins[stall]), int(self._ends[stall])
        has_release = released.rank[stall] != ABSENT
        is_split = split.cause[stall] == SPLIT and since_ns <= begin_ns
        if key.ranks == 0 or not (has_release or is_split):
            return [Work(exposed_transfer(axis), ns)]
        if pieces.end_ns[piece] < end_ns:
            return []
        if has_release:
            return [Finish(key, end_ns - since_ns, 0, True)]
        delay_ns = min(int(self._wire_ns[stall]), begin_ns - since_ns)
        return [Finish(key, delay_ns, end_ns - begin_ns, bool(self._measured[stall]))]
