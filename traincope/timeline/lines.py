"""All straight lines below some points and above others: a convex polygon of (begin, slope), by its corners."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Points = tuple[Floats, Floats]
"""Instants and values."""

MOST_RATE = 1e-3
"""Largest slope: two clocks, each within the 500 ppm that adjtimex(2) lets a kernel correct."""
NO_BOUND = np.inf
ROUNDING_NS = 1e-3
"""More than floats lose on some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """All lines that are possible: for some slopes, which include every corner's, the least and most they begin at."""

    slopes: Floats
    least: Floats
    most: Floats

    @classmethod
    def between(cls, uppers: Points, lowers: Points) -> "Lines | None":
        """Below the upper points (instants, values) and above the lower ones; None: there is no such line."""
        upper_at, upper = lower_hull(*uppers)
        lower_at, lower = lower_hull(lowers[0], -lowers[1])
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

    def at(self, instants_ns: Floats) -> tuple[Floats, Floats]:
        """The least and the most that any of them is there."""
        risen = np.outer(instants_ns, self.slopes)
        return (risen + self.least).min(axis=1), (risen + self.most).max(axis=1)


ANY = Lines(slopes=np.array([-MOST_RATE, MOST_RATE]), least=np.full(2, -NO_BOUND), most=np.full(2, NO_BOUND))
"""Nothing is known."""


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


def lower_hull(at: Floats, values: Floats) -> Points:
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
    before = least_before(values - slack) + slack
    after = least_before((values + slack)[::-1])[::-1] - slack
    needed: NDArray[np.bool_] = values <= np.minimum(before, after) + ROUNDING_NS
    return needed


def least_before(values: Floats) -> Floats:
    """The running minimum."""
    least: Floats = np.minimum.accumulate(values)
    return least
