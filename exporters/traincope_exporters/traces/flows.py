"""Arrows of communication: from the first to the last rank that joins a collective, and from sender to receiver."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Codes, Ints
from traincope.events import OPEN, Flag
from traincope.timeline import Instances, RankTimeline
from traincope.timeline.collectives.comparing import highest, lowest

BEGINS, PASSES, ENDS = "s", "t", "f"


class Point(NamedTuple):
    """Begin, middle or end of an arrow, within the interval of one rank."""

    number: int
    phase: str
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One rank's part in a collective."""

    point: Point | None
    """None: no other rank's part was recorded, or it is ambiguous."""
    split: Mapping[str, int]
    """Wait and transfer in ns, if they can be separated."""


class Flows:
    """Arrows of all collectives of a run."""

    def __init__(self, instances: Instances) -> None:
        count, number, parts = len(instances), instances.number, instances.parts
        self._instances = instances
        self._first_ns = lowest(parts.start_ns, number, count)
        self._last_ns = highest(parts.start_ns, number, count)
        self._first_rank = self._rank_starting_at(self._first_ns, lowest)
        self._last_rank = self._rank_starting_at(self._last_ns, highest)
        direct = np.array([channel.direct for channel in instances.channels], dtype=bool)
        self._direct = direct[instances.channel] if len(direct) else np.zeros(count, dtype=bool)
        several = np.bincount(number, minlength=count) > 1
        self._drawn = several & instances.consistent & (self._first_rank != self._last_rank)

    def _rank_starting_at(self, start_ns: Ints, one_of: Callable[[Ints, Codes, int], Ints]) -> Ints:
        """For each instance, a rank whose part starts at this time."""
        parts, number = self._instances.parts, self._instances.number
        is_at_start = parts.start_ns == start_ns[number]
        return one_of(parts.rank[is_at_start], number[is_at_start], len(start_ns))

    def parts(self, rank: RankTimeline, records: NDArray[np.void]) -> list[Part]:
        """One entry per COLLECTIVE event of this rank."""
        numbers = self._instances.find(rank, records).tolist()
        complete = (records["end_ns"] != OPEN) & (records["flags"] & Flag.RAISED == 0)
        bounded = records["flags"] & Flag.DONE_BEFORE_WAIT > 0
        columns = (records["start_ns"], records["end_ns"], complete, bounded)
        rows = zip(numbers, *(column.tolist() for column in columns), strict=True)
        return [
            self._part(rank.rank, number, start, end, bounded=late)
            if number >= 0 and known
            else Part(point=None, split={})
            for number, start, end, known, late in rows
        ]

    def _part(self, rank: int, number: int, start_ns: int, end_ns: int, *, bounded: bool) -> Part:
        split = {}
        if self._instances.splits[number] and not bounded:
            transfer_ns = int(self._instances.transfer_ns[number])
            split = {"wait_ns": end_ns - start_ns - transfer_ns, "transfer_ns": transfer_ns}
        return Part(point=self._point(rank, number, start_ns, end_ns), split=split)

    def _point(self, rank: int, number: int, start_ns: int, end_ns: int) -> Point | None:
        if not self._drawn[number]:
            return None
        if self._direct[number]:
            return self._message(rank, number, start_ns, end_ns)
        if rank == self._first_rank[number]:
            return Point(number, BEGINS, start_ns)
        return Point(number, ENDS if rank == self._last_rank[number] else PASSES, start_ns)

    def _message(self, rank: int, number: int, start_ns: int, end_ns: int) -> Point | None:
        """Point of a message. The receiver may wait before it is sent; a receive that ended earlier has no arrow."""
        if rank == self._instances.channels[int(self._instances.channel[number])].source:
            return Point(number, BEGINS, start_ns)
        arrives_ns = int(self._last_ns[number])
        return Point(number, ENDS, arrives_ns) if arrives_ns <= end_ns else None
