"""Union of intervals that may overlap, and its overlap with other intervals."""

from dataclasses import dataclass

import numpy as np

from traincope.arrays import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """Disjoint intervals [start, end) in order."""

    starts_ns: Ints
    ends_ns: Ints

    @classmethod
    def of(cls, starts_ns: Ints, ends_ns: Ints) -> "Union":
        """Unite intervals in any order. Intervals that touch become one."""
        order = np.argsort(starts_ns, kind="stable")
        starts, reach = starts_ns[order], np.maximum.accumulate(ends_ns[order])
        begins, finishes = np.ones(len(starts), dtype=bool), np.ones(len(starts), dtype=bool)
        begins[1:] = starts[1:] > reach[:-1]
        finishes[:-1] = begins[1:]
        return cls(starts_ns=starts[begins], ends_ns=reach[finishes])

    @property
    def length_ns(self) -> int:
        return int((self.ends_ns - self.starts_ns).sum())

    def covered_ns(self, starts_ns: Ints, ends_ns: Ints) -> Ints:
        """Return the length of each [start, end) that lies in the union."""
        covered: Ints = self._before(ends_ns) - self._before(starts_ns)
        return covered

    def _before(self, times_ns: Ints) -> Ints:
        """Return the union's length before each instant."""
        begun = np.searchsorted(self.starts_ns, times_ns, side="right")
        whole = np.concatenate([[0], np.cumsum(self.ends_ns - self.starts_ns)])
        over = np.append(self.ends_ns, 0)[begun - 1] - times_ns  # the rest of the interval that began last
        before: Ints = whole[begun] - np.where(begun > 0, np.maximum(over, 0), 0)
        return before
