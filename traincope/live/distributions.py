"""Histograms that grow: counts by bucket, a sum, and of each bucket the latest value as an example."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.metrics import Distribution, Exemplar


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Times in ns, so that sums are exact."""

    counts: tuple[int, ...]
    """By bucket, each for itself; the last is beyond all bounds."""
    sum_ns: int
    examples: Mapping[int, Exemplar]
    """Bucket -> the latest in it that was given with one."""

    def plus(self, other: "Histogram") -> "Histogram":
        return Histogram(
            counts=tuple(one + more for one, more in zip(self.counts, other.counts, strict=True)),
            sum_ns=self.sum_ns + other.sum_ns,
            examples={**self.examples, **other.examples},
        )

    @property
    def distribution(self) -> Distribution:
        return Distribution(counts=self.counts, sum=self.sum_ns / 1e9)


def histogram(times_ns: NDArray[np.int64], *, bounds: Sequence[float], examples: Sequence[Exemplar] = ()) -> Histogram:
    """Of times; `bounds` are upper ones in seconds, and belong to their bucket. `examples`: by time."""
    buckets = bucket_of(times_ns / 1e9, bounds=bounds)
    counts = np.bincount(buckets, minlength=len(bounds) + 1)
    shown = {int(bucket_of(np.array([one.value]), bounds=bounds)[0]): one for one in examples}
    return Histogram(counts=tuple(counts.tolist()), sum_ns=int(times_ns.sum()), examples=shown)


def bucket_of(seconds: NDArray[np.float64], *, bounds: Sequence[float]) -> NDArray[np.int64]:
    """Which bucket each value falls into."""
    return np.searchsorted(np.asarray(bounds), seconds, side="left").astype(np.int64)
