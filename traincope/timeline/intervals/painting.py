"""Owners of instants under overlapping intervals, and nesting of intervals."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Ints

ABSENT = -1
RUNS: Literal["stable"] = "stable"
"""Sort kind that is fast on nearly sorted values, as times are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Painted:
    """Disjoint pieces [start, end) in order. The owner of a piece is the covering interval that began last."""

    start_ns: Ints
    end_ns: Ints
    owner: NDArray[np.int32]
    """Position of the owner among the intervals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nesting:
    """Depth and parent of intervals: one entry per interval."""

    depth: NDArray[np.int32]
    """Line of a drawing, from 0. Intervals on one line do not overlap."""
    parent: NDArray[np.int32]
    """Position of the innermost interval that contains all of it, ABSENT without one."""


def painted(starts: Ints, ends: Ints) -> Painted:
    """Divide intervals, in order of begin, into owned pieces. Intervals without length own nothing."""
    borders = np.sort(np.concatenate([starts, ends]), kind=RUNS)
    borders = borders[np.diff(borders, prepend=borders[:1] - 1) != 0]
    owner = owners(borders, starts, ends)
    owned = np.flatnonzero(owner != ABSENT)
    return Painted(start_ns=borders[owned], end_ns=borders[owned + 1], owner=owner[owned])


def owners(borders: Ints, starts: Ints, ends: Ints) -> NDArray[np.int32]:
    """Return the owner of each piece between two borders: the covering interval that began last.

    `borders` are ascending and contain every start and end; intervals are in order of begin. Owners are assigned level
    by level of nesting, because intervals of one level hardly overlap.
    """
    owner = np.full(max(len(borders) - 1, 0), ABSENT, dtype=np.int32)
    rows = np.flatnonzero(ends > starts)
    starts, ends = starts[rows], ends[rows]
    first, last = np.searchsorted(borders, starts), np.searchsorted(borders, ends)
    depth = np.arange(len(rows)) - np.searchsorted(np.sort(ends, kind=RUNS), starts, side="right")
    for level in range(int(depth.max(initial=-1)) + 1):
        chosen = depth == level
        pieces, row = ranges(first[chosen], last[chosen]), np.repeat(rows[chosen], (last - first)[chosen])
        owner[pieces] = np.maximum(owner[pieces], row)
    return owner


def ranges(first: Ints, last: Ints) -> Ints:
    """Return all integers of each [first, last), one range after the other."""
    counts = last - first
    before = np.cumsum(counts) - counts
    ranges: Ints = np.arange(counts.sum()) + np.repeat(first - before, counts)
    return ranges


def nesting(starts: Ints, ends: Ints) -> Nesting:
    """Nest intervals in order of begin, with the longest first if begins are equal. Each is on the first free line.

    Its line is the number of intervals that are open at its begin, unless one of them outlasts another that it began
    in. An interval that begins when all others have ended begins a cluster, so only clusters with such intervals are
    searched for free lines. An interval without length occupies its line for 1 ns.
    """
    until = np.maximum(ends, starts + 1)
    ended = np.searchsorted(np.sort(until, kind=RUNS), starts, side="right")
    depth = (np.arange(len(starts)) - ended).astype(np.int32)
    parent = np.full(len(starts), ABSENT, dtype=np.int32)
    levels = [np.flatnonzero(depth == level) for level in range(int(depth.max(initial=-1)) + 1)]
    for above, nested in pairwise(levels):
        parent[nested] = above[np.searchsorted(above, nested) - 1]
    crossing = np.flatnonzero((depth > 0) & (until[parent] < until))
    parent[crossing] = ABSENT
    first = np.append(np.flatnonzero(depth == 0), len(starts))
    for at in np.unique(np.searchsorted(first, crossing, side="right") - 1).tolist():
        begin, end = int(first[at]), int(first[at + 1])
        if end - begin > 2:
            lines = _lines_of(starts[begin:end].tolist(), ends[begin:end].tolist(), first=begin)
            depth[begin:end], parent[begin:end] = lines
    return Nesting(depth=depth, parent=parent)


def _lines_of(starts: list[int], ends: list[int], *, first: int) -> tuple[list[int], list[int]]:
    """Depth and parent of each interval of a cluster, whose first interval has the number `first`."""
    depths, parents = [], []
    untils, owners = list[int](), list[int]()
    for at, (start, end) in enumerate(zip(starts, ends, strict=True), start=first):
        depth, parent, parent_until = -1, ABSENT, 0
        for line, until in enumerate(untils):
            if until <= start:
                if depth < 0:
                    depth = line
            elif until >= end and (
                parent == ABSENT or until < parent_until or (until == parent_until and owners[line] > parent)
            ):
                parent, parent_until = owners[line], until
        depths.append(len(untils) if depth < 0 else depth)
        parents.append(parent)
        if depth < 0:  # a new line, the last one
            untils.append(0)
            owners.append(0)
        untils[depth], owners[depth] = max(end, start + 1), at
    return depths, parents
