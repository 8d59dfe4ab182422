"""Histograms of a node: counts by bucket, a sum, and the latest value of each bucket as an exemplar."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traincope.live.metrics.series import SeriesKey, series_key
from traincope.live.window import Window
from traincope.metrics import catalogue
from traincope.metrics.metric import Type
from traincope.metrics.sample import Distribution, Exemplar
from traincope.metrics.values import Points, bucket_of
from traincope.store.side_tables.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Histogram with times in ns, so that sums are exact."""

    counts: tuple[int, ...]
    """Count of each bucket alone. The last bucket is above all bounds."""
    sum_ns: int
    examples: Mapping[int, Exemplar]
    """Bucket -> its latest exemplar."""

    def plus(self, other: "Histogram") -> "Histogram":
        return Histogram(
            counts=tuple(count + more for count, more in zip(self.counts, other.counts, strict=True)),
            sum_ns=self.sum_ns + other.sum_ns,
            examples={**self.examples, **other.examples},
        )

    @property
    def distribution(self) -> Distribution:
        return Distribution(counts=self.counts, sum=self.sum_ns / 1e9)


def histogram(times_ns: NDArray[np.int64], *, bounds: Sequence[float]) -> Histogram:
    """Count times by bucket; `bounds` are upper bounds in seconds."""
    counts = np.bincount(bucket_of(times_ns / 1e9, bounds=bounds), minlength=len(bounds) + 1)
    return Histogram(counts=tuple(counts.tolist()), sum_ns=int(times_ns.sum()), examples={})


def histograms(window: Window, points: Sequence[Points]) -> dict[SeriesKey, Histogram]:
    """Histograms of the window's points. Exemplars come from the window's own steps."""
    result: dict[SeriesKey, Histogram] = {}
    for series_points in points:
        if series_points.metric.type is Type.HISTOGRAM:
            counted = histogram(series_points.values.astype(np.int64), bounds=series_points.metric.buckets)
            if series_points.total_ns is not None:
                counted = replace(counted, sum_ns=series_points.total_ns)
            result = merged(result, {series_key(series_points.metric, *series_points.labels): counted})
    key = series_key(catalogue.STEP_TIMES)
    if key in result:
        result[key] = replace(result[key], examples=_examples(window))
    return result


def merged(before: dict[SeriesKey, Histogram], more: dict[SeriesKey, Histogram]) -> dict[SeriesKey, Histogram]:
    return {**before, **{key: before[key].plus(value) if key in before else value for key, value in more.items()}}


def _examples(window: Window) -> dict[int, Exemplar]:
    """Bucket -> its latest step."""
    rows = sorted((row for row in window.rows if row.step != window.warm_up), key=lambda row: row.start_ns)
    walls = np.array([row.wall_ns for row in rows], dtype=np.int64) / 1e9
    buckets = bucket_of(walls, bounds=catalogue.STEP_TIMES.buckets).tolist()
    return {bucket: _example(row) for bucket, row in zip(buckets, rows, strict=True)}


def _example(row: Row) -> Exemplar:
    return Exemplar(
        value=row.wall_ns / 1e9,
        labels={"step": str(row.step), "rank": str(row.rank)},
        wall_ns=row.start_ns + row.wall_ns,
    )
