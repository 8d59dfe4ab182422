"""Lines below upper points and above lower points: a convex polygon of (begin, slope), by its corners."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Floats

Points = tuple[Floats, Floats]
"""(Instants, values)."""

MAX_RATE = 1e-3
"""Largest slope: two clocks, each within the 500 ppm that adjtimex(2) allows a kernel to correct."""
NO_BOUND = np.inf
ROUNDING_NS = 1e-3
"""Larger than the rounding error of floats over some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """All possible lines: the lowest and highest begin for some slopes, which include the slope of every corner."""

    slopes: Floats
    lowest: Floats
    highest: Floats

    @classmethod
    def between(cls, uppers: Points, lowers: Points) -> "Lines | None":
        """Return the lines below the upper points and above the lower ones; None without such lines."""
        upper_at, upper = lower_hull(*uppers)
        lower_at, lower = lower_hull(lowers[0], -lowers[1])
        corners = np.concatenate([[-MAX_RATE, MAX_RATE], _slopes(upper_at, upper), -_slopes(lower_at, lower)])
        slopes = np.unique(np.clip(corners, -MAX_RATE, MAX_RATE))
        highest = (upper - np.outer(slopes, upper_at)).min(axis=1, initial=NO_BOUND)
        lowest = (-lower - np.outer(slopes, lower_at)).max(axis=1, initial=-NO_BOUND)
        room = highest - lowest
        if room.max() < 0:
            return None
        if np.all(np.isfinite(room)):
            slopes, lowest, highest = _cut_where_room_ends(slopes, lowest, highest)
        return cls(slopes=slopes, lowest=lowest, highest=highest)

    def at(self, instants_ns: Floats) -> tuple[Floats, Floats]:
        """Return the lowest and highest value of any line at each instant."""
        risen = np.outer(instants_ns, self.slopes)
        return (risen + self.lowest).min(axis=1), (risen + self.highest).max(axis=1)


ANY = Lines(slopes=np.array([-MAX_RATE, MAX_RATE]), lowest=np.full(2, -NO_BOUND), highest=np.full(2, NO_BOUND))
"""All lines: there is no evidence."""


def _cut_where_room_ends(slopes: Floats, lowest: Floats, highest: Floats) -> tuple[Floats, Floats, Floats]:
    """Keep the slopes with room between `lowest` and `highest`, and add the slopes at which the room becomes 0.

    Both are straight between neighbouring slopes, so the cut is exact.
    """
    room = highest - lowest
    turns = np.flatnonzero((room[:-1] < 0) != (room[1:] < 0))
    share = room[turns] / (room[turns] - room[turns + 1])
    kept = room >= 0
    cut = [
        np.concatenate([values[kept], values[turns] + share * (values[turns + 1] - values[turns])])
        for values in (slopes, lowest, highest)
    ]
    return cut[0], cut[1], cut[2]


def _slopes(at: Floats, values: Floats) -> Floats:
    slopes: Floats = np.diff(values) / np.diff(at)
    return slopes


def lower_hull(at: Floats, values: Floats) -> Points:
    """Return the corners of the lower convex hull (Andrew's monotone chain), for slopes up to MAX_RATE."""
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
    """Mark the points that can be corners at some slope. It removes most points; the hull's loop is slow Python."""
    if not len(at):
        return np.zeros(0, dtype=bool)
    slack = MAX_RATE * at
    before = running_minimum(values - slack) + slack
    after = running_minimum((values + slack)[::-1])[::-1] - slack
    needed: NDArray[np.bool_] = values <= np.minimum(before, after) + ROUNDING_NS
    return needed


def running_minimum(values: Floats) -> Floats:
    """Return the running minimum."""
    minima: Floats = np.minimum.accumulate(values)
    return minima
