"""Thousands of ranks or steps on one screen: neighbours share a place, and what stands out is never averaged away."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Consecutive positions that share a place: place i holds positions [borders[i], borders[i + 1])."""

    borders: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.borders) - 1

    @property
    def starts(self) -> list[int]:
        return list(self.borders[:-1])

    def ends(self, place: int) -> tuple[int, int]:
        """The first and the last position there."""
        return self.borders[place], self.borders[place + 1] - 1

    def mean(self, values: Floats) -> Floats:
        """Over the last axis, NaN left out; NaN where there is nothing else."""
        known = ~np.isnan(values)
        sums = np.add.reduceat(np.where(known, values, 0.0), self.starts, axis=-1)
        counts = np.add.reduceat(known.astype(np.int64), self.starts, axis=-1)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    def most(self, values: Floats, *, axis: int = -1) -> Floats:
        """The largest of each place, NaN left out; NaN where there is nothing else."""
        largest: Floats = np.fmax.reduceat(values, self.starts, axis=axis)
        return largest


def by_count(length: int, *, most: int) -> Fold:
    """At most `most` places, all but the last of one size; `length` at least 1."""
    size = max(ceil(length / most), 1)
    return Fold(borders=(*range(0, length, size), length))


def by_name(names: Sequence[str]) -> Fold:
    """Neighbours of one name in one place."""
    changes = [at for at in range(1, len(names)) if names[at] != names[at - 1]]
    return Fold(borders=(0, *changes, len(names)))
