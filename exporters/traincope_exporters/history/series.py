"""What a metric was over a run: series of points, made of what was added when."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.metrics import Metric
from traincope_exporters.telling import clean

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MS = 1_000_000
"""Prometheus tells instants to the ms: of points within one the last stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one series, by time."""

    metric: Metric
    labels: tuple[str, ...]
    """Values of `metric.labels`, in their order."""
    times_ns: Ints
    """Wall time since the epoch, in whole ms, no two alike."""
    values: Floats
    """One a point; of a histogram the sum of what it has counted, in its unit."""
    counts: Ints | None = None
    """Of a histogram: (points, buckets), how many it has counted in each, the last beyond all upper bounds."""


def gauge(metric: Metric, labels: Sequence[str], times_ns: Ints, values: NDArray[np.generic]) -> Series:
    """What it was at these times."""
    order = np.argsort(times_ns, kind="stable")
    times, last = _instants(times_ns[order])
    return Series(
        metric=metric, labels=tuple(map(clean, labels)), times_ns=times, values=values[order][last].astype(np.float64)
    )


def counter(
    metric: Metric, labels: Sequence[str], times_ns: Ints, added: Ints, *, begin_ns: int, unit: float
) -> Series:
    """What had come together by then; nothing at `begin_ns`. `added` in ns, bytes, ... is divided by `unit`.

    What is signed may fall: then it stays at what it has reached, as a counter must.
    """
    order = np.argsort(times_ns, kind="stable")
    times, last = _instants(np.append(begin_ns, np.maximum(times_ns[order], begin_ns)))
    reached = np.maximum.accumulate(np.append(0, np.cumsum(added[order])))[last]
    return Series(metric=metric, labels=tuple(map(clean, labels)), times_ns=times, values=reached / unit)


def histogram(
    metric: Metric, labels: Sequence[str], times_ns: Ints, seen: Ints, *, begin_ns: int, unit: float
) -> Series:
    """How many of the values were in each bucket by then; `seen` is divided by `unit`."""
    order = np.argsort(times_ns, kind="stable")
    times, last = _instants(np.append(begin_ns, np.maximum(times_ns[order], begin_ns)))
    bucket = np.searchsorted(np.array(metric.buckets), seen[order] / unit)
    counts = np.zeros((len(seen) + 1, len(metric.buckets) + 1), dtype=np.int64)
    counts[np.arange(1, len(seen) + 1), bucket] = 1
    sums = np.append(0, np.cumsum(seen[order]))
    return Series(
        metric=metric,
        labels=tuple(map(clean, labels)),
        times_ns=times,
        values=sums[last] / unit,
        counts=np.cumsum(counts, axis=0)[last],
    )


def _instants(times_ns: Ints) -> tuple[Ints, NDArray[np.intp]]:
    """The distinct ms of sorted times, and the position of the last of each."""
    whole = times_ns // MS * MS
    last = np.flatnonzero(np.append(np.diff(whole) != 0, True))
    return whole[last], last
