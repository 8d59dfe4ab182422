"""Bounds of the offset between two clocks, from the order of causes and effects.

A message is sent before it is received, so the offset at some instant is at most (or at least) a known value. While
the clocks' rates are constant, the offset is a straight line below all upper points and above all lower points, so
between their convex hulls (Duda, Harrus, Haddad and Bernard, "Estimating global time in distributed systems", ICDCS
1987; Moon, Skelly and Towsley, "Estimation and removal of clock skew from network delay measurements", INFOCOM 1999).
The possible lines `a + b t` form a convex polygon of (a, b). At each instant the offset lies between the polygon's
lowest and highest corner: this is a bound, not an estimate.

The only assumptions: rates differ by at most MAX_RATE, and within PIECE_NS they vary by at most WANDER. If no line fits
the points of a piece, the piece is halved, because a daemon slewed a clock. Longer lines of 2, 4, ... pieces bridge
times without evidence; over such a line rates may vary by as many times WANDER.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from traincope.arrays import Floats, Ints
from traincope.timeline.clocks.lines import ANY, MAX_RATE, NO_BOUND, Lines, Points, lower_hull, running_minimum
from traincope.timeline.clocks.offsets import Offsets

WANDER = 1e-6
"""Ten times the 0.1 ppm of a free oscillator (Veitch, Ridoux and Korada, "Robust synchronization of absolute and
difference clocks over networks", ToN 2009), because a daemon corrects it at the same time."""
PIECE_NS = 20_000_000_000
HALVINGS = 4
MAX_PIECES_OF_A_LINE = 64
"""Pieces per line at most: about 20 minutes."""
MAX_PIECES = 1 << 18
"""Two months. A longer time is an error in a damaged record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Instants of the host's clock at which the offset was at most `upper_ns`, and at least `lower_ns`."""

    upper_at_ns: Ints
    upper_ns: Ints
    lower_at_ns: Ints
    lower_ns: Ints

    def in_order(self) -> "Evidence":
        """Return the evidence with each side sorted by time."""
        upper, lower = np.argsort(self.upper_at_ns, kind="stable"), np.argsort(self.lower_at_ns, kind="stable")
        return Evidence(
            upper_at_ns=self.upper_at_ns[upper],
            upper_ns=self.upper_ns[upper],
            lower_at_ns=self.lower_at_ns[lower],
            lower_ns=self.lower_ns[lower],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """A time in which one line holds, with the line's range at both ends, in ns relative to the base."""

    begin_ns: int
    end_ns: int
    low: Floats
    high: Floats
    """Lowest and highest offset at begin and end."""
    bend_ns: float
    """Largest distance of the offset from a straight line between the ends."""


def bounded_offsets(evidence: Evidence, *, begin_ns: int, end_ns: int) -> Offsets | None:
    """Bound the offset from `begin_ns` to `end_ns`; None if a side has no evidence, or all of it is contradictory."""
    if not len(evidence.upper_ns) or not len(evidence.lower_ns):
        return None
    evidence, base = evidence.in_order(), int(evidence.lower_ns[0])
    borders = _borders(evidence, begin_ns, end_ns)
    if borders is None:
        return None
    pieces = [
        piece
        for begin, end in pairwise(borders)
        for piece in _pieces(evidence, begin, end, base=base, halvings=HALVINGS)
    ]
    if begin_ns < borders[0]:
        pieces.insert(0, _any_rate(begin_ns, borders[0]))
    if borders[-1] < end_ns:
        pieces.append(_any_rate(borders[-1], end_ns))
    return _joined(pieces, _longer(evidence, borders, base=base), base=base)


def _borders(evidence: Evidence, begin_ns: int, end_ns: int) -> list[int] | None:
    """Return the borders of equal pieces. Too long a time shrinks to the evidence; None if that is too long as well."""
    if end_ns - begin_ns > MAX_PIECES * PIECE_NS:
        begin_ns = max(begin_ns, int(min(evidence.upper_at_ns[0], evidence.lower_at_ns[0])) - PIECE_NS)
        end_ns = min(end_ns, int(max(evidence.upper_at_ns[-1], evidence.lower_at_ns[-1])) + PIECE_NS)
    length_ns = end_ns - begin_ns
    count = max(math.ceil(length_ns / PIECE_NS), 1)
    return None if count > MAX_PIECES else [begin_ns + length_ns * number // count for number in range(count + 1)]


def _any_rate(begin_ns: int, end_ns: int) -> _Piece:
    """Return a piece without evidence: only the extreme rates limit it."""
    anything = np.array([NO_BOUND, NO_BOUND])
    bend_ns = MAX_RATE * (end_ns - begin_ns) / 2
    return _Piece(begin_ns=begin_ns, end_ns=end_ns, low=-anything, high=anything, bend_ns=bend_ns)


def _pieces(evidence: Evidence, begin_ns: int, end_ns: int, *, base: int, halvings: int) -> list[_Piece]:
    """Return one piece if a line fits, otherwise its halves, and at last a piece that only the rates limit."""
    bend_ns = WANDER * (end_ns - begin_ns) / 4
    lines = _lines(evidence, begin_ns, end_ns, base=base, bend_ns=bend_ns)
    if lines is not None:
        low, high = lines.at(np.array([0.0, end_ns - begin_ns]))
        return [_Piece(begin_ns=begin_ns, end_ns=end_ns, low=low - bend_ns, high=high + bend_ns, bend_ns=bend_ns)]
    if not halvings:
        return [_any_rate(begin_ns, end_ns)]
    middle_ns = (begin_ns + end_ns) // 2
    return [
        *_pieces(evidence, begin_ns, middle_ns, base=base, halvings=halvings - 1),
        *_pieces(evidence, middle_ns, end_ns, base=base, halvings=halvings - 1),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Longer:
    """Lines over several pieces."""

    begin_ns: int
    end_ns: int
    lines: Lines
    bend_ns: float


def _longer(evidence: Evidence, borders: list[int], *, base: int) -> Iterator[_Longer]:
    """Yield the longer lines that fit. Only corners of the pieces' hulls can be corners of their common hull."""
    corners = _corners(evidence, borders, base=base)
    size, count = 2, len(borders) - 1
    while size < 2 * count and size <= MAX_PIECES_OF_A_LINE:
        for first in range(0, count, size):
            begin_ns, end_ns = borders[first], borders[min(first + size, count)]
            bend_ns = WANDER * size * (end_ns - begin_ns) / 4
            lines = _lines(corners, begin_ns, end_ns, base=base, bend_ns=bend_ns)
            if lines is not None and lines is not ANY:
                yield _Longer(begin_ns=begin_ns, end_ns=end_ns, lines=lines, bend_ns=bend_ns)
        size *= 2


def _corners(evidence: Evidence, borders: list[int], *, base: int) -> Evidence:
    """Reduce the evidence to the corners of each piece's hulls."""
    upper_at, upper = _hulls(evidence.upper_at_ns, evidence.upper_ns - base, borders)
    lower_at, lower = _hulls(evidence.lower_at_ns, base - evidence.lower_ns, borders)
    return Evidence(upper_at_ns=upper_at, upper_ns=upper + base, lower_at_ns=lower_at, lower_ns=base - lower)


def _hulls(at_ns: Ints, values_ns: Ints, borders: list[int]) -> tuple[Ints, Ints]:
    """Return the corners of the lower hull of each piece's points, which are in order."""
    firsts = np.flatnonzero(np.diff(np.searchsorted(borders[1:-1], at_ns, side="right"), prepend=-1)).tolist()
    corners = []
    for first, last in pairwise([*firsts, len(at_ns)]):
        at, values = lower_hull((at_ns[first:last] - at_ns[first]).astype(float), values_ns[first:last].astype(float))
        corners.append((at.astype(np.int64) + at_ns[first], values.astype(np.int64)))
    return np.concatenate([at for at, _ in corners]), np.concatenate([values for _, values in corners])


def _lines(evidence: Evidence, begin_ns: int, end_ns: int, *, base: int, bend_ns: float) -> Lines | None:
    """Return the lines that fit the evidence of this time, with instants relative to its begin."""
    uppers = _points(evidence.upper_at_ns, evidence.upper_ns, begin_ns, end_ns, base=base)
    lowers = _points(evidence.lower_at_ns, evidence.lower_ns, begin_ns, end_ns, base=base)
    if not len(uppers[0]) and not len(lowers[0]):
        return ANY
    return Lines.between((uppers[0], uppers[1] + bend_ns), (lowers[0], lowers[1] - bend_ns))


def _points(at_ns: Ints, values_ns: Ints, begin_ns: int, end_ns: int, *, base: int) -> Points:
    inside = slice(np.searchsorted(at_ns, begin_ns), np.searchsorted(at_ns, end_ns, side="right"))
    return (at_ns[inside] - begin_ns).astype(float), (values_ns[inside] - base).astype(float)


def _joined(pieces: list[_Piece], longer: Iterable[_Longer], *, base: int) -> Offsets | None:
    """Join the pieces: neighbours agree at their border, and the offset changes no faster than the rates allow."""
    at = np.array([pieces[0].begin_ns, *(piece.end_ns for piece in pieces)], dtype=np.int64)
    low, high = np.full(len(at), -NO_BOUND), np.full(len(at), NO_BOUND)
    bend = np.zeros(len(at))
    for number, piece in enumerate(pieces):
        ends = slice(number, number + 2)
        low[ends] = np.maximum(low[ends], piece.low)
        high[ends] = np.minimum(high[ends], piece.high)
        bend[ends] = np.maximum(bend[ends], piece.bend_ns)
    for line in longer:
        inside = slice(np.searchsorted(at, line.begin_ns), np.searchsorted(at, line.end_ns, side="right"))
        lower, upper = line.lines.at((at[inside] - line.begin_ns).astype(float))
        low[inside] = np.maximum(low[inside], lower - line.bend_ns)
        high[inside] = np.minimum(high[inside], upper + line.bend_ns)
    slack = MAX_RATE * (at - at[0])
    high = np.minimum(running_minimum(high - slack) + slack, running_minimum((high + slack)[::-1])[::-1] - slack)
    low = -np.minimum(running_minimum(-low - slack) + slack, running_minimum((slack - low)[::-1])[::-1] - slack)
    if not np.all(np.isfinite(low) & np.isfinite(high)) or np.any(low > high + 1):
        return None
    offset = np.rint((low + high) / 2).astype(np.int64)
    bound = np.ceil(np.maximum(high - low, 0) / 2 + bend).astype(np.int64) + 1
    return Offsets(at_ns=at, offset_ns=base + offset, bound_ns=bound)
