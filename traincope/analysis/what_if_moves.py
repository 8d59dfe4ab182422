"""What a rank did in some steps, move by move, so that it can be played again with other times.

Its own work takes its time. A collective it begins, and where it stood still for one, it goes on when the last of the
collective's ranks has begun it and the wire has taken its time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from traincope.analysis.host import Bools, Ints, Pieces
from traincope.analysis.releases import Releases
from traincope.analysis.stalls import StallSplit
from traincope.analysis.terms import EVALUATION, HOST_TERMS, exposed_transfer
from traincope.analysis.transfers import Transfers
from traincope.analysis.unsplit import SPLIT
from traincope.timeline import Instances, RankTimeline
from traincope.timeline.painting import NOBODY


class Work(NamedTuple):
    """Time of its own, or for a wire that nobody else is known to be at."""

    term: str
    ns: int


class Met(NamedTuple):
    """A collective that so many ranks begin."""

    instance: int
    axis: str
    ranks: int


class Begin(NamedTuple):
    of: Met


class Finish(NamedTuple):
    """It goes on `delay_ns` after the last has begun that, or if it comes later still, `late_ns` after it came."""

    of: Met
    delay_ns: int
    late_ns: int
    seen: bool
    """False: nobody saw how long the wire took, so `delay_ns` is the most it can be or what it is for its like."""


class StepBegins(NamedTuple):
    number: int


class StepEnds(NamedTuple):
    number: int


Move = Work | Begin | Finish | StepBegins | StepEnds


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """One rank's."""

    start_ns: int
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """The collectives that all their ranks begin in these steps."""

    instances: Instances
    first: int
    """Number of the first step, and of the last."""
    last: int
    ranks: Ints
    """Of each instance, how many begin it; 0 where not all of them do."""


def together(ranks: Sequence[RankTimeline], instances: Instances, *, first: int, last: int) -> Together:
    """`ranks` completed those steps."""
    inside = np.zeros(len(instances), dtype=np.int64)
    for rank in ranks:
        mine = instances.parts_of[rank.rank]
        np.add.at(inside, instances.number[mine][_begun(rank, instances, first=first, last=last)], 1)
    parts = np.bincount(instances.number, minlength=len(instances))
    whole = instances.complete & (inside == parts)
    return Together(instances=instances, first=first, last=last, ranks=np.where(whole, inside, 0))


def _begun(rank: RankTimeline, instances: Instances, *, first: int, last: int) -> Bools:
    """Which of the rank's parts begin in these steps, and not in an evaluation."""
    start_ns, end_ns = _stretch(rank, first=first, last=last)
    mine = instances.parts_of[rank.rank]
    starts = instances.parts.start_ns[mine]
    begun: Bools = (starts >= start_ns) & (starts <= end_ns) & ~instances.parts.evaluating[mine]
    return begun


def _stretch(rank: RankTimeline, *, first: int, last: int) -> tuple[int, int]:
    of = {step.number: step for step in rank.steps}
    return of[first].start_ns, of[last].end_ns


def rank_moves(
    rank: RankTimeline, pieces: Pieces, split: StallSplit, released: Releases, begun: Together, *, wire: Transfers
) -> Moves:
    """All it did from the begin of the first step to the end of the last."""
    start_ns, end_ns = _stretch(rank, first=begun.first, last=begun.last)
    marks = _Marks(rank, begun)
    inside = range(
        int(np.searchsorted(pieces.start_ns, start_ns)), int(np.searchsorted(pieces.end_ns, end_ns, side="right"))
    )
    stalls = _stalls(pieces, split, released, begun, wire=wire, inside=inside)
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


def _work(pieces: Pieces, piece: int, ns: int) -> Work:
    return Work(HOST_TERMS[pieces.code[piece]], ns)


def _is_nothing(move: Move) -> bool:
    """An evaluation is no part of a step."""
    return isinstance(move, Work) and (not move.ns or move.term == EVALUATION)


class _Marks:
    """What takes no time, in order: where steps end and begin, where collectives begin."""

    def __init__(self, rank: RankTimeline, begun: Together) -> None:
        mine = begun.instances.parts_of[rank.rank]
        number = begun.instances.number[mine]
        whole = (begun.ranks[number] > 0) & _begun(rank, begun.instances, first=begun.first, last=begun.last)
        starts = begun.instances.parts.start_ns[mine][whole].tolist()
        axes = [begun.instances.axes[code] for code in begun.instances.parts.axis_code[mine][whole].tolist()]
        numbers = number[whole].tolist()
        marks: list[tuple[int, int, Move]] = [
            (at_ns, 2, Begin(Met(instance, axis, int(begun.ranks[instance]))))
            for at_ns, instance, axis in zip(starts, numbers, axes, strict=True)
        ]
        for step in rank.steps:
            if begun.first <= step.number <= begun.last:
                marks += [(step.start_ns, 1, StepBegins(step.number)), (step.end_ns, 0, StepEnds(step.number))]
        self._marks = sorted(marks, key=lambda mark: mark[:2])
        self._next = 0

    def before(self, end_ns: int, *, until: int) -> Iterator[tuple[int, Move]]:
        """Those not yet given that are before `end_ns`, or at `until`."""
        while self._next < len(self._marks):
            at_ns, _, mark = self._marks[self._next]
            if at_ns >= end_ns and at_ns > until:
                return
            self._next += 1
            yield at_ns, mark


def _stalls(
    pieces: Pieces, split: StallSplit, released: Releases, begun: Together, *, wire: Transfers, inside: range
) -> dict[int, list[Move]]:
    """Piece that a stall owns -> what it is played as, of those inside."""
    records = pieces.intervals[pieces.owner[split.at]]
    begins, ends = records["start_ns"], records["end_ns"]
    wire_ns, ranks = np.append(wire.ns, 0)[split.instance], np.append(begun.ranks, 0)[split.instance]
    seen = np.append(wire.measured, False)[split.instance]
    played: dict[int, list[Move]] = {}
    first, last = np.searchsorted(split.at, (inside.start, inside.stop)).tolist()
    for stall in range(first, last):
        piece = int(split.at[stall])
        axis, ns = split.axes[split.axis_code[stall]], int(pieces.end_ns[piece] - pieces.start_ns[piece])
        since_ns, met = int(released.since_ns[stall]), Met(int(split.instance[stall]), axis, int(ranks[stall]))
        told = released.rank[stall] != NOBODY
        there = split.cause[stall] == SPLIT and since_ns <= begins[stall]
        if met.ranks == 0 or not (told or there):
            played[piece] = [Work(exposed_transfer(axis), ns)]
        elif pieces.end_ns[piece] < ends[stall]:
            played[piece] = []
        elif told:
            played[piece] = [Finish(met, int(ends[stall]) - since_ns, 0, True)]
        else:
            delay_ns = min(int(wire_ns[stall]), int(begins[stall]) - since_ns)
            played[piece] = [Finish(met, delay_ns, int(ends[stall] - begins[stall]), bool(seen[stall]))]
    return played
