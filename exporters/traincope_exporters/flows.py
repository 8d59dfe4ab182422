"""Arrows: from the first rank that joined a collective over the others to the last, and from sender to receiver."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincope.events import OPEN, Flag
from traincope.timeline import Instances, RankTimeline
from traincope.timeline.comparing import highest, lowest

Ints = NDArray[np.int64]
Numbers = NDArray[np.int32]

BEGINS, PASSES, ENDS = "s", "t", "f"


class Point(NamedTuple):
    """Where an arrow begins, passes or ends, within the interval of a rank's part."""

    number: int
    phase: str
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is known of one rank's part in a collective."""

    point: Point | None
    """None: no other rank's part was recorded, or nothing tells which it is."""
    told: Mapping[str, int]
    """Its waiting for others and its time on the wire, in ns, where they can be told apart."""


class Flows:
    """Of all collectives of a run."""

    def __init__(self, instances: Instances) -> None:
        count, number, parts = len(instances), instances.number, instances.parts
        self._instances = instances
        self._first_ns = lowest(parts.start_ns, number, count)
        self._last_ns = highest(parts.start_ns, number, count)
        self._first_rank = self._who(self._first_ns, lowest)
        self._last_rank = self._who(self._last_ns, highest)
        direct = np.array([channel.direct for channel in instances.channels], dtype=bool)
        self._direct = direct[instances.channel] if len(direct) else np.zeros(count, dtype=bool)
        several = np.bincount(number, minlength=count) > 1
        self._drawn = several & instances.alike & (self._first_rank != self._last_rank)

    def _who(self, start_ns: Ints, one_of: Callable[[Ints, Numbers, int], Ints]) -> Ints:
        """Of each instance a rank whose part starts then."""
        parts, number = self._instances.parts, self._instances.number
        there = parts.start_ns == start_ns[number]
        return one_of(parts.rank[there], number[there], len(start_ns))

    def parts(self, rank: RankTimeline, records: NDArray[np.void]) -> list[Part]:
        """One entry a COLLECTIVE record of this rank."""
        found = self._instances.find(rank, records).tolist()
        whole = (records["end_ns"] != OPEN) & (records["flags"] & Flag.RAISED == 0)
        bounded = records["flags"] & Flag.DONE_BEFORE_WAIT > 0
        columns = (records["start_ns"], records["end_ns"], whole, bounded)
        rows = zip(found, *(column.tolist() for column in columns), strict=True)
        return [
            self._part(rank.rank, number, start, end, bounded=late)
            if number >= 0 and known
            else Part(point=None, told={})
            for number, start, end, known, late in rows
        ]

    def _part(self, rank: int, number: int, start_ns: int, end_ns: int, *, bounded: bool) -> Part:
        told = {}
        if self._instances.splits[number] and not bounded:
            transfer_ns = int(self._instances.transfer_ns[number])
            told = {"wait_ns": end_ns - start_ns - transfer_ns, "transfer_ns": transfer_ns}
        return Part(point=self._point(rank, number, start_ns, end_ns), told=told)

    def _point(self, rank: int, number: int, start_ns: int, end_ns: int) -> Point | None:
        if not self._drawn[number]:
            return None
        if self._direct[number]:
            return self._message(rank, number, start_ns, end_ns)
        if rank == self._first_rank[number]:
            return Point(number, BEGINS, start_ns)
        return Point(number, ENDS if rank == self._last_rank[number] else PASSES, start_ns)

    def _message(self, rank: int, number: int, start_ns: int, end_ns: int) -> Point | None:
        """From sender to receiver, also where that was looking for it before; not where it ended before it was sent."""
        if rank == self._instances.channels[int(self._instances.channel[number])].source:
            return Point(number, BEGINS, start_ns)
        arrives_ns = int(self._last_ns[number])
        return Point(number, ENDS, arrives_ns) if arrives_ns <= end_ns else None
