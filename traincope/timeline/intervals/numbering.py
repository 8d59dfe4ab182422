"""Numbering of distinct integers in ascending order."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Ints

MAX_PLACES_PER_VALUE = 8
"""With more places than this per value, a table costs more than a search."""
SMALL_TABLE, SMALL_PLACES_PER_VALUE = 1 << 16, 32
"""A table of at most this many places fits into a cache. It may have more places per value."""
UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """Distinct integers, and the number of each: its position among them.

    Dense integers, for example counts, are looked up in a table; others are searched.
    """

    values: Ints
    """Sorted."""
    first: int
    table: NDArray[np.int32] | None
    """Number of `first`, `first + 1`, ...; None if the values are too sparse."""

    @classmethod
    def of(cls, values: Ints) -> "Numbering":
        """Number the distinct integers in `values`, which may repeat and have any order."""
        first, last = (int(values.min()), int(values.max())) if len(values) else (0, -1)
        places = last - first + 1
        most = max(MAX_PLACES_PER_VALUE * len(values), min(SMALL_PLACES_PER_VALUE * len(values), SMALL_TABLE))
        if places > most:
            return cls(values=np.unique(values), first=first, table=None)
        present = np.zeros(places, dtype=bool)
        present[values - first] = True
        table = np.cumsum(present, dtype=np.int32) - np.int32(1)
        table[~present] = UNKNOWN
        return cls(values=np.flatnonzero(present) + first, first=first, table=table)

    def __len__(self) -> int:
        return len(self.values)

    def number(self, values: Ints) -> Ints:
        """Return the number of each value, UNKNOWN if it has no number."""
        if not len(self.values):
            return np.full(len(values), UNKNOWN, dtype=np.int64)
        if self.table is None:
            at = np.minimum(np.searchsorted(self.values, values), len(self.values) - 1)
            return np.where(self.values[at] == values, at, UNKNOWN)
        place = values - self.first
        within = (place >= 0) & (place < len(self.table))
        return np.where(within, self.table[np.where(within, place, 0)], UNKNOWN).astype(np.int64)
