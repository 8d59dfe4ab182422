"""What one clock can have been from another, by what causes and effects leave possible.

A message that was sent before it was received says that the offset, at some instant, was at most
(or at least) so much. As long as the clocks' rates hold, the offset is a straight line below all
upper points and above all lower ones, so between their convex hulls (Duda, Harrus, Haddad and
Bernard, "Estimating global time in distributed systems", ICDCS 1987; Moon, Skelly and Towsley,
"Estimation and removal of clock skew from network delay measurements", INFOCOM 1999). The lines
`a + b t` that are left form a convex polygon of (a, b), and at each instant the offset lies between
its lowest and its highest corner: that is the bound, and no estimate.

Assumed is no more than this: rates are within MOST_RATE of each other, and within PIECE_NS they
stay within WANDER. Where the points leave no line, the piece is halved, for somebody slewed a clock.
Over times in which nobody met longer lines lead, of 2, 4, ... pieces, in which rates may wander as
many times as far.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from traincope.timeline.lines import ANY, MOST_RATE, NO_BOUND, Floats, Lines, Points, least_before, lower_hull
from traincope.timeline.offsets import Ints, Offsets

WANDER = 1e-6
"""Ten times the 0.1 ppm of a free oscillator (Veitch, Ridoux and Korada, "Robust synchronization of absolute and
difference clocks over networks", ToN 2009), for a daemon corrects it meanwhile."""
PIECE_NS = 20_000_000_000
HALVINGS = 4
LONGEST = 64
"""Pieces of the longest lines, some 20 minutes."""
MOST_PIECES = 1 << 18
"""Two months; more is nonsense in a damaged record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """At these instants of the own clock the offset was at most `most_ns`, at those at least `least_ns`."""

    most_at_ns: Ints
    most_ns: Ints
    least_at_ns: Ints
    least_ns: Ints

    def in_order(self) -> "Evidence":
        """The same, each side by time."""
        most, least = np.argsort(self.most_at_ns, kind="stable"), np.argsort(self.least_at_ns, kind="stable")
        return Evidence(
            most_at_ns=self.most_at_ns[most],
            most_ns=self.most_ns[most],
            least_at_ns=self.least_at_ns[least],
            least_ns=self.least_ns[least],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """A time in which one line holds, and what that line can be at its ends, ns beside the base."""

    begin_ns: int
    end_ns: int
    low: Floats
    high: Floats
    """Of the offset at begin and end."""
    bend_ns: float
    """How far the offset can be from a straight line between its ends."""


def bounded_offsets(evidence: Evidence, *, begin_ns: int, end_ns: int) -> Offsets | None:
    """The offset from `begin_ns` to `end_ns`; None where nothing bounds it on both sides, or all is contradiction."""
    if not len(evidence.most_ns) or not len(evidence.least_ns):
        return None
    evidence, base = evidence.in_order(), int(evidence.least_ns[0])
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
    """Of equal pieces. Of more time than any run takes only what is near the evidence; None: that is as much."""
    if end_ns - begin_ns > MOST_PIECES * PIECE_NS:
        begin_ns = max(begin_ns, int(min(evidence.most_at_ns[0], evidence.least_at_ns[0])) - PIECE_NS)
        end_ns = min(end_ns, int(max(evidence.most_at_ns[-1], evidence.least_at_ns[-1])) + PIECE_NS)
    length_ns = end_ns - begin_ns
    count = max(math.ceil(length_ns / PIECE_NS), 1)
    return None if count > MOST_PIECES else [begin_ns + length_ns * number // count for number in range(count + 1)]


def _any_rate(begin_ns: int, end_ns: int) -> _Piece:
    """Only the most extreme rates are known."""
    anything = np.array([NO_BOUND, NO_BOUND])
    bend_ns = MOST_RATE * (end_ns - begin_ns) / 2
    return _Piece(begin_ns=begin_ns, end_ns=end_ns, low=-anything, high=anything, bend_ns=bend_ns)


def _pieces(evidence: Evidence, begin_ns: int, end_ns: int, *, base: int, halvings: int) -> list[_Piece]:
    """One, if one line holds; else its halves; in the end one of which only the most extreme rates are known."""
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
    """A line over several pieces."""

    begin_ns: int
    end_ns: int
    lines: Lines
    bend_ns: float


def _longer(evidence: Evidence, borders: list[int], *, base: int) -> Iterator[_Longer]:
    """Where there is one. Only corners of the pieces can be corners of more of them."""
    corners = _corners(evidence, borders, base=base)
    size, count = 2, len(borders) - 1
    while size < 2 * count and size <= LONGEST:
        for first in range(0, count, size):
            begin_ns, end_ns = borders[first], borders[min(first + size, count)]
            bend_ns = WANDER * size * (end_ns - begin_ns) / 4
            lines = _lines(corners, begin_ns, end_ns, base=base, bend_ns=bend_ns)
            if lines is not None and lines is not ANY:
                yield _Longer(begin_ns=begin_ns, end_ns=end_ns, lines=lines, bend_ns=bend_ns)
        size *= 2


def _corners(evidence: Evidence, borders: list[int], *, base: int) -> Evidence:
    """What is left of it when every piece keeps its hulls alone."""
    most_at, most = _hulls(evidence.most_at_ns, evidence.most_ns - base, borders)
    least_at, least = _hulls(evidence.least_at_ns, base - evidence.least_ns, borders)
    return Evidence(most_at_ns=most_at, most_ns=most + base, least_at_ns=least_at, least_ns=base - least)


def _hulls(at_ns: Ints, values_ns: Ints, borders: list[int]) -> tuple[Ints, Ints]:
    """Corners of the lower hull of each piece's points, which are in order."""
    firsts = np.flatnonzero(np.diff(np.searchsorted(borders[1:-1], at_ns, side="right"), prepend=-1)).tolist()
    corners = []
    for first, last in pairwise([*firsts, len(at_ns)]):
        at, values = lower_hull((at_ns[first:last] - at_ns[first]).astype(float), values_ns[first:last].astype(float))
        corners.append((at.astype(np.int64) + at_ns[first], values.astype(np.int64)))
    return np.concatenate([at for at, _ in corners]), np.concatenate([values for _, values in corners])


def _lines(evidence: Evidence, begin_ns: int, end_ns: int, *, base: int, bend_ns: float) -> Lines | None:
    """Those that the evidence of that time leaves, instants counted from its begin."""
    uppers = _points(evidence.most_at_ns, evidence.most_ns, begin_ns, end_ns, base=base)
    lowers = _points(evidence.least_at_ns, evidence.least_ns, begin_ns, end_ns, base=base)
    if not len(uppers[0]) and not len(lowers[0]):
        return ANY
    return Lines.between((uppers[0], uppers[1] + bend_ns), (lowers[0], lowers[1] - bend_ns))


def _points(at_ns: Ints, values_ns: Ints, begin_ns: int, end_ns: int, *, base: int) -> Points:
    inside = slice(np.searchsorted(at_ns, begin_ns), np.searchsorted(at_ns, end_ns, side="right"))
    return (at_ns[inside] - begin_ns).astype(float), (values_ns[inside] - base).astype(float)


def _joined(pieces: list[_Piece], longer: Iterable[_Longer], *, base: int) -> Offsets | None:
    """Pieces agree where they meet; and none changes faster than rates do."""
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
        least, most = line.lines.at((at[inside] - line.begin_ns).astype(float))
        low[inside] = np.maximum(low[inside], least - line.bend_ns)
        high[inside] = np.minimum(high[inside], most + line.bend_ns)
    slack = MOST_RATE * (at - at[0])
    high = np.minimum(least_before(high - slack) + slack, least_before((high + slack)[::-1])[::-1] - slack)
    low = -np.minimum(least_before(-low - slack) + slack, least_before((slack - low)[::-1])[::-1] - slack)
    if not np.all(np.isfinite(low) & np.isfinite(high)) or np.any(low > high + 1):
        return None
    offset = np.rint((low + high) / 2).astype(np.int64)
    bound = np.ceil(np.maximum(high - low, 0) / 2 + bend).astype(np.int64) + 1
    return Offsets(at_ns=at, offset_ns=base + offset, bound_ns=bound)
