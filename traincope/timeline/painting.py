"""Intervals that overlap -> who owns each instant, and how they nest."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

NOBODY = -1
RUNS: Literal["stable"] = "stable"
"""The sort that profits from what is nearly in order already, as times are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Painted:
    """Disjoint pieces [start, end) in order, each owned by the interval that was begun last of those over it."""

    start_ns: Ints
    end_ns: Ints
    owner: NDArray[np.int32]
    """Position among the intervals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nesting:
    """One entry an interval."""

    depth: NDArray[np.int32]
    """Line it is drawn on, from 0: no two intervals of a line overlap."""
    parent: NDArray[np.int32]
    """Position of the innermost interval that holds all of it, NOBODY where there is none."""


def painted(starts: Ints, ends: Ints) -> Painted:
    """Of intervals in order of begin. Those without length own nothing."""
    borders = np.sort(np.concatenate([starts, ends]), kind=RUNS)
    borders = borders[np.diff(borders, prepend=borders[:1] - 1) != 0]
    owner = owners(borders, starts, ends)
    owned = np.flatnonzero(owner != NOBODY)
    return Painted(start_ns=borders[owned], end_ns=borders[owned + 1], owner=owner[owned])


def owners(borders: Ints, starts: Ints, ends: Ints) -> NDArray[np.int32]:
    """Position of the interval that owns each piece between two borders: the one begun last of those that cover it.

    `borders` rise and hold every start and end; intervals are in order of begin. Painted level by
    level of nesting, where intervals hardly overlap and are few per piece.
    """
    owner = np.full(max(len(borders) - 1, 0), NOBODY, dtype=np.int32)
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
    """All integers of each [first, last), one range after the other."""
    counts = last - first
    before = np.cumsum(counts) - counts
    ranges: Ints = np.arange(counts.sum()) + np.repeat(first - before, counts)
    return ranges


def nesting(starts: Ints, ends: Ints) -> Nesting:
    """Of intervals in order of begin, of equal begins the longest first."""
    plain = _nested(starts, ends)
    return _lined_up(starts, ends) if plain is None else plain


def _nested(starts: Ints, ends: Ints) -> Nesting | None:
    """By counting what is open at each begin; None where some interval outlasts one that it began in."""
    if (ends <= starts).any():
        return None
    depth = (np.arange(len(starts)) - np.searchsorted(np.sort(ends, kind=RUNS), starts, side="right")).astype(np.int32)
    parent = np.full(len(starts), NOBODY, dtype=np.int32)
    levels = [np.flatnonzero(depth == level) for level in range(int(depth.max(initial=-1)) + 1)]
    for above, own in pairwise(levels):
        parent[own] = above[np.searchsorted(above, own) - 1]
        if (ends[parent[own]] < ends[own]).any():
            return None
    return Nesting(depth=depth, parent=parent)


def _lined_up(starts: Ints, ends: Ints) -> Nesting:
    """One after the other, each on the first line that is free: intervals that overlap without holding each other."""
    depths, parents = [], []
    lines: list[tuple[int, int]] = []
    for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        depth = next((line for line, (_, until) in enumerate(lines) if until <= start), len(lines))
        around = [(until, of) for of, until in lines if start < until >= end]
        depths.append(depth)
        parents.append(min(around)[1] if around else NOBODY)
        lines[depth : depth + 1] = [(at, max(end, start + 1))]
    return Nesting(depth=np.array(depths, dtype=np.int32), parent=np.array(parents, dtype=np.int32))
