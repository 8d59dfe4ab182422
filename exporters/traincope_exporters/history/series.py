"""Series over a run: points built from gauges, increments or observed values."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Floats, Ints
from traincope.metrics.labels import clean_label
from traincope.metrics.metric import Metric
from traincope.metrics.values import bucket_of

MS = 1_000_000
"""Prometheus has a resolution of 1 ms. Of several points within one ms the last is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one series in order of time."""

    metric: Metric
    labels: tuple[str, ...]
    """Values of `metric.labels`, in their order."""
    times_ns: Ints
    """Wall time since the epoch in whole ms, strictly increasing."""
    values: Floats
    """One value per point; for a histogram the sum of the counted values, in its unit."""
    counts: Ints | None = None
    """Histogram counts, shape (points, buckets). The last bucket is above all upper bounds."""


def gauge(metric: Metric, labels: Sequence[str], times_ns: Ints, values: NDArray[np.generic]) -> Series:
    """Series of a gauge with these values."""
    order = np.argsort(times_ns, kind="stable")
    times, last = _instants(times_ns[order])
    return Series(
        metric=metric,
        labels=tuple(map(clean_label, labels)),
        times_ns=times,
        values=values[order][last].astype(np.float64),
    )


def counter(
    metric: Metric, labels: Sequence[str], times_ns: Ints, added: Ints, *, begin_ns: int, unit: float
) -> Series:
    """Series of a counter: 0 at `begin_ns`, then the running sum of `added / unit`.

    A running sum with signed increments may fall. The counter then keeps its highest value.
    """
    order = np.argsort(times_ns, kind="stable")
    times, last = _instants(np.append(begin_ns, np.maximum(times_ns[order], begin_ns)))
    reached = np.maximum.accumulate(np.append(0, np.cumsum(added[order])))[last]
    return Series(metric=metric, labels=tuple(map(clean_label, labels)), times_ns=times, values=reached / unit)


def histogram(
    metric: Metric, labels: Sequence[str], times_ns: Ints, observed: Ints, *, begin_ns: int, unit: float
) -> Series:
    """Series of a histogram: the cumulated count of `observed / unit` in each bucket."""
    order = np.argsort(times_ns, kind="stable")
    times, last = _instants(np.append(begin_ns, np.maximum(times_ns[order], begin_ns)))
    bucket = bucket_of(observed[order] / unit, bounds=metric.buckets)
    counts = np.zeros((len(observed) + 1, len(metric.buckets) + 1), dtype=np.int64)
    counts[np.arange(1, len(observed) + 1), bucket] = 1
    sums = np.append(0, np.cumsum(observed[order]))
    return Series(
        metric=metric,
        labels=tuple(map(clean_label, labels)),
        times_ns=times,
        values=sums[last] / unit,
        counts=np.cumsum(counts, axis=0)[last],
    )


def _instants(times_ns: Ints) -> tuple[Ints, NDArray[np.intp]]:
    """Distinct ms of sorted times, and the position of the last time in each."""
    in_ms = times_ns // MS * MS
    last = np.flatnonzero(np.append(np.diff(in_ms) != 0, True))
    return in_ms[last], last
