"""Moves of a rank in some steps, so that they can be replayed with other times.

A rank's work takes its time. A rank begins a collective; if it stalls in one, it continues when the last rank has begun
the collective and the transfer has taken its time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from traincope.analysis.attribution.releases import Releases
from traincope.analysis.attribution.stalls import SPLIT, StallSplit
from traincope.analysis.attribution.terms import EVALUATION, HOST_TERMS, exposed_transfer
from traincope.analysis.attribution.thread_slices import ThreadSlices
from traincope.analysis.attribution.transfers import Transfers
from traincope.arrays import Bools, Ints
from traincope.timeline import Instances, RankTimeline
from traincope.timeline.intervals.painting import ABSENT


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
    first: int
    """Number of the first step; `last`: that of the last."""
    last: int
    ranks: Ints
    """For each instance the number of ranks that begin it; 0 if some of them do not."""


def shared_collectives(
    ranks: Sequence[RankTimeline], instances: Instances, *, first: int, last: int
) -> SharedCollectives:
    """Find the collectives whose ranks all begin them in these steps. `ranks` completed the steps."""
    inside = np.zeros(len(instances), dtype=np.int64)
    for rank in ranks:
        rank_parts = instances.parts_of[rank.rank]
        np.add.at(inside, instances.number[rank_parts][_begins_inside(rank, instances, first=first, last=last)], 1)
    parts = np.bincount(instances.number, minlength=len(instances))
    complete = instances.complete & (inside == parts)
    return SharedCollectives(instances=instances, first=first, last=last, ranks=np.where(complete, inside, 0))


def _begins_inside(rank: RankTimeline, instances: Instances, *, first: int, last: int) -> Bools:
    """Mask of the rank's parts that begin in these steps and outside of evaluation."""
    start_ns, end_ns = _bounds_ns(rank, first=first, last=last)
    rank_parts = instances.parts_of[rank.rank]
    starts = instances.parts.start_ns[rank_parts]
    shared: Bools = (starts >= start_ns) & (starts <= end_ns) & ~instances.parts.evaluating[rank_parts]
    return shared


def _bounds_ns(rank: RankTimeline, *, first: int, last: int) -> tuple[int, int]:
    by_number = {step.number: step for step in rank.steps}
    return by_number[first].start_ns, by_number[last].end_ns


def rank_moves(
    rank: RankTimeline,
    pieces: ThreadSlices,
    split: StallSplit,
    released: Releases,
    shared: SharedCollectives,
    *,
    wire: Transfers,
) -> Moves:
    """List what the rank did from the begin of the first step to the end of the last."""
    start_ns, end_ns = _bounds_ns(rank, first=shared.first, last=shared.last)
    marks = _Marks(rank, shared)
    inside = range(
        int(np.searchsorted(pieces.start_ns, start_ns)), int(np.searchsorted(pieces.end_ns, end_ns, side="right"))
    )
    stalls = _stalls(pieces, split, released, shared, wire=wire, inside=inside)
    moves: list[Move] = []
    for piece in inside:
        start, end = int(pieces.start_ns[piece]), int(pieces.end_ns[piece])
        stalled = piece in stalls
        for at_ns, mark in marks.before(end, until=start):
            if not stalled and at_ns > start:
                moves.append(_work(pieces, piece, at_ns - start))
                start = at_ns
            moves.append(mark)
        moves += stalls[piece] if stalled else [_work(pieces, piece, end - start)]
    moves += [mark for _, mark in marks.before(end_ns + 1, until=end_ns)]
    return Moves(start_ns=start_ns, moves=tuple(move for move in moves if not _is_nothing(move)))


def _work(pieces: ThreadSlices, piece: int, ns: int) -> Work:
    return Work(HOST_TERMS[pieces.code[piece]], ns)


def _is_nothing(move: Move) -> bool:
    """True for moves without time, and for evaluation, which is not part of a step."""
    return isinstance(move, Work) and (not move.ns or move.term == EVALUATION)


class _Marks:
    """Instants in order: step ends, step begins, collective begins."""

    def __init__(self, rank: RankTimeline, shared: SharedCollectives) -> None:
        rank_parts = shared.instances.parts_of[rank.rank]
        number = shared.instances.number[rank_parts]
        complete = (shared.ranks[number] > 0) & _begins_inside(
            rank, shared.instances, first=shared.first, last=shared.last
        )
        starts = shared.instances.parts.start_ns[rank_parts][complete].tolist()
        axes = [shared.instances.axes[code] for code in shared.instances.parts.axis_code[rank_parts][complete].tolist()]
        numbers = number[complete].tolist()
        marks: list[tuple[int, int, Move]] = [
            (at_ns, 2, Begin(CollectiveKey(instance, axis, int(shared.ranks[instance]))))
            for at_ns, instance, axis in zip(starts, numbers, axes, strict=True)
        ]
        for step in rank.steps:
            if shared.first <= step.number <= shared.last:
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


def _stalls(
    pieces: ThreadSlices,
    split: StallSplit,
    released: Releases,
    shared: SharedCollectives,
    *,
    wire: Transfers,
    inside: range,
) -> dict[int, list[Move]]:
    """Slice of a stall -> the moves that replay it, for the slices inside."""
    records = pieces.intervals[pieces.owner[split.at]]
    begins, ends = records["start_ns"], records["end_ns"]
    wire_ns, ranks = np.append(wire.ns, 0)[split.instance], np.append(shared.ranks, 0)[split.instance]
    measured = np.append(wire.measured, False)[split.instance]
    played: dict[int, list[Move]] = {}
    first, last = np.searchsorted(split.at, (inside.start, inside.stop)).tolist()
    for stall in range(first, last):
        piece = int(split.at[stall])
        axis, ns = split.axes[split.axis_code[stall]], int(pieces.end_ns[piece] - pieces.start_ns[piece])
        since_ns, key = (
            int(released.since_ns[stall]),
            CollectiveKey(int(split.instance[stall]), axis, int(ranks[stall])),
        )
        has_release = released.rank[stall] != ABSENT
        is_split = split.cause[stall] == SPLIT and since_ns <= begins[stall]
        if key.ranks == 0 or not (has_release or is_split):
            played[piece] = [Work(exposed_transfer(axis), ns)]
        elif pieces.end_ns[piece] < ends[stall]:
            played[piece] = []
        elif has_release:
            played[piece] = [Finish(key, int(ends[stall]) - since_ns, 0, True)]
        else:
            delay_ns = min(int(wire_ns[stall]), int(begins[stall]) - since_ns)
            played[piece] = [Finish(key, delay_ns, int(ends[stall] - begins[stall]), bool(measured[stall]))]
    return played
