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
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from traincope.timeline.offsets import Ints, Offsets

Floats = NDArray[np.float64]

MOST_RATE = 1e-3
"""Two clocks, each within the 500 ppm that adjtimex(2) lets a kernel correct."""
WANDER = 1e-6
"""Ten times the 0.1 ppm of a free oscillator (Veitch, Ridoux and Korada, "Robust synchronization of absolute and
difference clocks over networks", ToN 2009), for a daemon corrects it meanwhile."""
PIECE_NS = 20_000_000_000
HALVINGS = 4
MOST_PIECES = 1 << 18
"""Two months; more is nonsense in a damaged record."""
NO_BOUND = math.inf
ROUNDING_NS = 1e-3
"""More than floats lose on some seconds."""


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
    lows: tuple[float, float] = (-NO_BOUND, -NO_BOUND)
    highs: tuple[float, float] = (NO_BOUND, NO_BOUND)
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
    return _joined(pieces, base=base)


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
    return _Piece(begin_ns=begin_ns, end_ns=end_ns, bend_ns=MOST_RATE * (end_ns - begin_ns) / 2)


def _pieces(evidence: Evidence, begin_ns: int, end_ns: int, *, base: int, halvings: int) -> list[_Piece]:
    """One, if one line holds; else its halves; in the end one of which only the most extreme rates are known."""
    length_ns = end_ns - begin_ns
    bend_ns = WANDER * length_ns / 4
    uppers = _points(evidence.most_at_ns, evidence.most_ns, begin_ns, end_ns, base=base)
    lowers = _points(evidence.least_at_ns, evidence.least_ns, begin_ns, end_ns, base=base)
    if not len(uppers[0]) and not len(lowers[0]):
        return [_Piece(begin_ns=begin_ns, end_ns=end_ns, bend_ns=bend_ns)]
    lines = _Lines.between((uppers[0], uppers[1] + bend_ns), (lowers[0], lowers[1] - bend_ns))
    if lines is not None:
        (low, high), (last_low, last_high) = lines.at(0.0), lines.at(float(length_ns))
        return [
            _Piece(
                begin_ns=begin_ns,
                end_ns=end_ns,
                lows=(low - bend_ns, last_low - bend_ns),
                highs=(high + bend_ns, last_high + bend_ns),
                bend_ns=bend_ns,
            )
        ]
    if not halvings:
        return [_any_rate(begin_ns, end_ns)]
    middle_ns = (begin_ns + end_ns) // 2
    return [
        *_pieces(evidence, begin_ns, middle_ns, base=base, halvings=halvings - 1),
        *_pieces(evidence, middle_ns, end_ns, base=base, halvings=halvings - 1),
    ]


def _points(at_ns: Ints, values_ns: Ints, begin_ns: int, end_ns: int, *, base: int) -> tuple[Floats, Floats]:
    inside = slice(np.searchsorted(at_ns, begin_ns), np.searchsorted(at_ns, end_ns, side="right"))
    return (at_ns[inside] - begin_ns).astype(float), (values_ns[inside] - base).astype(float)


def _joined(pieces: list[_Piece], *, base: int) -> Offsets | None:
    """Pieces agree where they meet; and none changes faster than rates do."""
    at = np.array([pieces[0].begin_ns, *(piece.end_ns for piece in pieces)], dtype=np.int64)
    low, high = np.full(len(at), -NO_BOUND), np.full(len(at), NO_BOUND)
    bend = np.zeros(len(at))
    for number, piece in enumerate(pieces):
        ends = slice(number, number + 2)
        low[ends] = np.maximum(low[ends], piece.lows)
        high[ends] = np.minimum(high[ends], piece.highs)
        bend[ends] = np.maximum(bend[ends], piece.bend_ns)
    slack = MOST_RATE * (at - at[0])
    high = np.minimum(_least_before(high - slack) + slack, _least_before((high + slack)[::-1])[::-1] - slack)
    low = -np.minimum(_least_before(-low - slack) + slack, _least_before((slack - low)[::-1])[::-1] - slack)
    if not np.all(np.isfinite(low) & np.isfinite(high)) or np.any(low > high + 1):
        return None
    offset = np.rint((low + high) / 2).astype(np.int64)
    bound = np.ceil(np.maximum(high - low, 0) / 2 + bend).astype(np.int64) + 1
    return Offsets(at_ns=at, offset_ns=base + offset, bound_ns=bound)


def _least_before(values: Floats) -> Floats:
    least: Floats = np.minimum.accumulate(values)
    return least


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    """All lines that are possible: for some slopes, which include every corner's, the least and most they begin at."""

    slopes: Floats
    least: Floats
    most: Floats

    @classmethod
    def between(cls, uppers: tuple[Floats, Floats], lowers: tuple[Floats, Floats]) -> "_Lines | None":
        """Below the upper points (instants, values) and above the lower ones; None: there is no such line."""
        upper_at, upper = _lower_hull(*uppers)
        lower_at, lower = _lower_hull(lowers[0], -lowers[1])
        corners = np.concatenate([[-MOST_RATE, MOST_RATE], _slopes(upper_at, upper), -_slopes(lower_at, lower)])
        slopes = np.unique(np.clip(corners, -MOST_RATE, MOST_RATE))
        most = (upper - np.outer(slopes, upper_at)).min(axis=1, initial=NO_BOUND)
        least = (-lower - np.outer(slopes, lower_at)).max(axis=1, initial=-NO_BOUND)
        room = most - least
        if room.max() < 0:
            return None
        if np.all(np.isfinite(room)):
            slopes, least, most = _cut_where_room_ends(slopes, least, most)
        return cls(slopes=slopes, least=least, most=most)

    def at(self, instant_ns: float) -> tuple[float, float]:
        """The least and the most that any of them is there."""
        return float((self.least + self.slopes * instant_ns).min()), float((self.most + self.slopes * instant_ns).max())


def _cut_where_room_ends(slopes: Floats, least: Floats, most: Floats) -> tuple[Floats, Floats, Floats]:
    """Only slopes that leave room between least and most, to the very ones where there is none left.

    Both are straight between two neighbours, so that the cut is exact.
    """
    room = most - least
    turns = np.flatnonzero((room[:-1] < 0) != (room[1:] < 0))
    share = room[turns] / (room[turns] - room[turns + 1])
    kept = room >= 0
    cut = [
        np.concatenate([values[kept], values[turns] + share * (values[turns + 1] - values[turns])])
        for values in (slopes, least, most)
    ]
    return cut[0], cut[1], cut[2]


def _slopes(at: Floats, values: Floats) -> Floats:
    slopes: Floats = np.diff(values) / np.diff(at)
    return slopes


def _lower_hull(at: Floats, values: Floats) -> tuple[Floats, Floats]:
    """The corners of the lower convex hull (Andrew's monotone chain), for slopes up to MOST_RATE."""
    order = np.lexsort((values, at))
    at, values = at[order], values[order]
    near = _reachable(at, values)
    hull: list[tuple[float, float]] = []
    for point in zip(at[near].tolist(), values[near].tolist(), strict=True):
        while len(hull) > 1 and not _turns_up(hull[-2], hull[-1], point):
            hull.pop()
        if not hull or hull[-1][0] < point[0]:
            hull.append(point)
    corners = np.array(hull, dtype=float).reshape(-1, 2)
    return corners[:, 0], corners[:, 1]


def _turns_up(first: tuple[float, float], second: tuple[float, float], third: tuple[float, float]) -> bool:
    return (second[0] - first[0]) * (third[1] - first[1]) > (second[1] - first[1]) * (third[0] - first[0])


def _reachable(at: Floats, values: Floats) -> NDArray[np.bool_]:
    """Without the points that others make needless at every slope: most of them, and the hull's loop is Python."""
    if not len(at):
        return np.zeros(0, dtype=bool)
    slack = MOST_RATE * at
    before = _least_before(values - slack) + slack
    after = _least_before((values + slack)[::-1])[::-1] - slack
    needed: NDArray[np.bool_] = values <= np.minimum(before, after) + ROUNDING_NS
    return needed
