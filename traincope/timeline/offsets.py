"""How far one clock is from another, all the time: knots, straight lines between them, and a bound.

Before the first knot and after the last the offset is taken for what it is there, and the bound grows by what clocks
can drift.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.timeline.lines import MOST_RATE

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """Other clock = own clock + offset. One entry a knot, in order of time; straight lines between them."""

    at_ns: Ints
    """On the own clock."""
    offset_ns: Ints
    bound_ns: Ints
    """Largest error of the offset; between two knots no more than on the straight line."""

    @property
    def drift_ratio(self) -> float:
        """Mean change of the offset, ns a ns."""
        span_ns = int(self.at_ns[-1] - self.at_ns[0])
        return int(self.offset_ns[-1] - self.offset_ns[0]) / span_ns if span_ns else 0.0

    @property
    def worst_ns(self) -> int:
        """The bound where it is largest between the first knot and the last, which is at a knot."""
        return int(self.bound_ns.max())

    def convert(self, times_ns: Ints) -> Ints:
        """Instants of the own clock, on the other."""
        return times_ns + _between(times_ns, self.at_ns, self.offset_ns)

    def convert_back(self, times_ns: Ints) -> Ints:
        """Instants of the other clock, on the own."""
        return times_ns - _between(times_ns, self.at_ns + self.offset_ns, self.offset_ns)

    def bounds_ns(self, times_ns: Ints) -> Ints:
        """Largest error of `convert` at these instants of the own clock."""
        outside_ns = np.maximum(np.maximum(self.at_ns[0] - times_ns, times_ns - self.at_ns[-1]), 0)
        drifted: Ints = np.ceil(MOST_RATE * outside_ns).astype(np.int64)
        return _between(times_ns, self.at_ns, self.bound_ns) + drifted + 1


def bounds_over(way: Sequence[Offsets], times_ns: Ints) -> Ints:
    """Largest error of what was converted by one after the other, at these instants of the last clock.

    An error so far looks up the next offset at another instant, where it is off by as much as clocks drift meanwhile.
    """
    bounds, weight = np.zeros(len(times_ns), dtype=np.int64), 1.0
    for one in reversed(way):
        times_ns = one.convert_back(times_ns)
        bounds += np.ceil(weight * one.bounds_ns(times_ns)).astype(np.int64)
        weight *= 1 + MOST_RATE
    return bounds


def worst_over(way: Sequence[Offsets]) -> int:
    """The largest error from the first knot of the first to its last. Each bound turns at knots alone."""
    turns = np.empty(0, dtype=np.int64)
    for one in way:
        turns = one.convert(np.concatenate([turns, one.at_ns]))
    if not len(turns):
        return 0
    ends = way[0].at_ns[[0, -1]]
    for one in way:
        ends = one.convert(ends)
    return int(bounds_over(way, np.clip(turns, *ends)).max())


def _between(times_ns: Ints, at_ns: Ints, values_ns: Ints) -> Ints:
    """On the lines between the knots, as at the first before them and at the last after them.

    As floats only what is left of a common base, for ns since the epoch have more digits than these.
    """
    begin, base = at_ns[0], values_ns[0]
    found = np.interp((times_ns - begin).astype(float), (at_ns - begin).astype(float), (values_ns - base).astype(float))
    whole: Ints = base + np.rint(found).astype(np.int64)
    return whole
