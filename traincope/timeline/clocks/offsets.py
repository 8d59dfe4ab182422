"""Offset from one clock to another over time: knots, straight lines between them, and a bound of the error.

Before the first knot and after the last one the offset is constant, and the bound grows with the possible drift.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traincope.arrays import Ints
from traincope.timeline.clocks.lines import MAX_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """Other clock = own clock + offset. Arrays have one entry per knot, in order of time."""

    at_ns: Ints
    """Instants of the knots on the own clock."""
    offset_ns: Ints
    bound_ns: Ints
    """Largest error of the offset. Between two knots it is at most the straight line between their bounds."""

    @property
    def drift_ratio(self) -> float:
        """Mean change of the offset per time, in ns per ns."""
        span_ns = int(self.at_ns[-1] - self.at_ns[0])
        return int(self.offset_ns[-1] - self.offset_ns[0]) / span_ns if span_ns else 0.0

    @property
    def worst_ns(self) -> int:
        """Largest bound between the first and the last knot. It occurs at a knot."""
        return int(self.bound_ns.max())

    def rigid(self) -> "Offsets":
        """Return one offset for all times, that in the middle, with the bounds widened by what it leaves out.

        It keeps every duration. Where the offset is straight, its distance from one value is at most straight too.
        """
        middle_ns = int(_between((self.at_ns[:1] + self.at_ns[-1:]) // 2, self.at_ns, self.offset_ns)[0])
        widened = self.bound_ns + np.abs(self.offset_ns - middle_ns)
        return Offsets(at_ns=self.at_ns, offset_ns=np.full_like(self.offset_ns, middle_ns), bound_ns=widened)

    def convert(self, times_ns: Ints) -> Ints:
        """Convert instants of the own clock to the other clock."""
        return times_ns + _between(times_ns, self.at_ns, self.offset_ns)

    def convert_back(self, times_ns: Ints) -> Ints:
        """Convert instants of the other clock to the own clock."""
        return times_ns - _between(times_ns, self.at_ns + self.offset_ns, self.offset_ns)

    def bounds_ns(self, times_ns: Ints) -> Ints:
        """Return the largest error of `convert` at these instants of the own clock."""
        outside_ns = np.maximum(np.maximum(self.at_ns[0] - times_ns, times_ns - self.at_ns[-1]), 0)
        drifted: Ints = np.ceil(MAX_RATE * outside_ns).astype(np.int64)
        return _between(times_ns, self.at_ns, self.bound_ns) + drifted + 1


def errors_over(chain: Sequence[Offsets], times_ns: Ints) -> Ints:
    """Return the largest error of a conversion through a chain of offsets, at these instants of the last clock.

    An error of one conversion makes the next one look up its offset at a wrong instant; this adds the drift over the
    error.
    """
    bounds, weight = np.zeros(len(times_ns), dtype=np.int64), 1.0
    for link in reversed(chain):
        times_ns = link.convert_back(times_ns)
        bounds += np.ceil(weight * link.bounds_ns(times_ns)).astype(np.int64)
        weight *= 1 + MAX_RATE
    return bounds


def max_error_over(chain: Sequence[Offsets]) -> int:
    """Return the chain's largest error between its first offset's first and last knot. Bounds bend only at knots."""
    turns = np.empty(0, dtype=np.int64)
    for link in chain:
        turns = link.convert(np.concatenate([turns, link.at_ns]))
    if not len(turns):
        return 0
    ends = chain[0].at_ns[[0, -1]]
    for link in chain:
        ends = link.convert(ends)
    return int(errors_over(chain, np.clip(turns, *ends)).max())


def _between(times_ns: Ints, at_ns: Ints, values_ns: Ints) -> Ints:
    """Interpolate between the knots; constant before the first knot and after the last one.

    Only differences from a common base are floats, because ns since the epoch have more digits than a float.
    """
    begin, base = at_ns[0], values_ns[0]
    interpolated = np.interp(
        (times_ns - begin).astype(float), (at_ns - begin).astype(float), (values_ns - base).astype(float)
    )
    whole: Ints = base + np.rint(interpolated).astype(np.int64)
    return whole
