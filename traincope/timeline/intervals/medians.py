"""Medians in whole ns: of two values, and of the values of each group."""

import numpy as np

from traincope.arrays import Ints


def halfway(low: Ints, high: Ints) -> Ints:
    """Return the mean of two values in whole ns, with halves rounded to even."""
    return np.rint((low + high) / 2).astype(np.int64)


def medians(groups: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct groups, and the median of each group's values."""
    order = np.lexsort((values, groups))
    ordered = values[order]
    distinct, first, count = np.unique(groups[order], return_index=True, return_counts=True)
    return distinct, halfway(ordered[first + (count - 1) // 2], ordered[first + count // 2])
