"""Fold thousands of ranks or steps into the places of one screen, by mean or by maximum."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from traincope.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Positions grouped into places: place i holds positions [borders[i], borders[i + 1])."""

    borders: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.borders) - 1

    @property
    def starts(self) -> list[int]:
        return list(self.borders[:-1])

    def ends(self, place: int) -> tuple[int, int]:
        """The first and the last position of a place."""
        return self.borders[place], self.borders[place + 1] - 1

    def mean(self, values: Floats) -> Floats:
        """The mean of each place over the last axis, without NaN; NaN where all values are NaN."""
        known = ~np.isnan(values)
        sums = np.add.reduceat(np.where(known, values, 0.0), self.starts, axis=-1)
        counts = np.add.reduceat(known.astype(np.int64), self.starts, axis=-1)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    def max(self, values: Floats, *, axis: int = -1) -> Floats:
        """The maximum of each place, without NaN; NaN where all values are NaN."""
        largest: Floats = np.fmax.reduceat(values, self.starts, axis=axis)
        return largest


def by_count(length: int, *, max_places: int) -> Fold:
    """Fold `length` positions (at least 1) into at most `max_places` places of equal size, except the last."""
    size = max(ceil(length / max_places), 1)
    return Fold(borders=(*range(0, length, size), length))


def by_name(names: Sequence[str]) -> Fold:
    """Fold neighbours of the same name into one place."""
    changes = [at for at in range(1, len(names)) if names[at] != names[at - 1]]
    return Fold(borders=(0, *changes, len(names)))
