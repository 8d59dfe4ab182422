"""Distinct integers, numbered in their order."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

SPARSE = 8
"""With more places than this for each value, a table costs more than searching."""
SMALL = 1 << 16
"""A table of so many places is always worth it."""
UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """The distinct ones of some integers, and the number of each: its position among them.

    Looked up in a table where they lie close together, as counts do; searched for where they do not.
    """

    values: Ints
    """Sorted."""
    first: int
    table: NDArray[np.int32] | None
    """Number of first, first + 1, ...; None: they lie too far apart."""

    @classmethod
    def of(cls, values: Ints) -> "Numbering":
        """Number the distinct ones of `values`, in any order and as often as they come."""
        first, last = (int(values.min()), int(values.max())) if len(values) else (0, -1)
        places = last - first + 1
        if places > max(SPARSE * len(values), SMALL):
            return cls(values=np.unique(values), first=first, table=None)
        present = np.zeros(places, dtype=bool)
        present[values - first] = True
        table = np.cumsum(present, dtype=np.int32) - np.int32(1)
        table[~present] = UNKNOWN
        return cls(values=np.flatnonzero(present) + first, first=first, table=table)

    def __len__(self) -> int:
        return len(self.values)

    def number(self, values: Ints) -> Ints:
        """The number of each, UNKNOWN where it is none of those numbered."""
        if not len(self.values):
            return np.full(len(values), UNKNOWN, dtype=np.int64)
        if self.table is None:
            at = np.minimum(np.searchsorted(self.values, values), len(self.values) - 1)
            return np.where(self.values[at] == values, at, UNKNOWN)
        place = values - self.first
        within = (place >= 0) & (place < len(self.table))
        return np.where(within, self.table[np.where(within, place, 0)], UNKNOWN).astype(np.int64)
