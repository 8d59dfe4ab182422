"""How far one clock is from another, all the time: knots, straight lines between them, and a bound."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
        """The bound where it is largest, which is at a knot."""
        return int(self.bound_ns.max())

    def convert(self, times_ns: Ints) -> Ints:
        """Instants of the own clock, on the other."""
        return times_ns + _between(times_ns, self.at_ns, self.offset_ns)

    def convert_back(self, times_ns: Ints) -> Ints:
        """Instants of the other clock, on the own."""
        return times_ns - _between(times_ns, self.at_ns + self.offset_ns, self.offset_ns)

    def bounds_ns(self, times_ns: Ints) -> Ints:
        """Largest error of `convert` at these instants of the own clock."""
        return _between(times_ns, self.at_ns, self.bound_ns) + 1


def _between(times_ns: Ints, at_ns: Ints, values_ns: Ints) -> Ints:
    """On the lines between the knots, as at the first before them and at the last after them.

    As floats only what is left of a common base, for ns since the epoch have more digits than these.
    """
    begin, base = at_ns[0], values_ns[0]
    found = np.interp((times_ns - begin).astype(float), (at_ns - begin).astype(float), (values_ns - base).astype(float))
    whole: Ints = base + np.rint(found).astype(np.int64)
    return whole
