"""Conversion of the points of `traincope.metrics.values` to series over time."""

from collections.abc import Iterable, Iterator

import numpy as np

from traincope.metrics import catalogue
from traincope.metrics.labels import MAX_LOGGED
from traincope.metrics.metric import Metric, Type, Unit
from traincope.metrics.values import Points, is_shown, limit_modules
from traincope_exporters.history.finished_run import NS, FinishedRun
from traincope_exporters.history.series import Series, counter, gauge, histogram


def replayed(run: FinishedRun, metric: Metric) -> Iterator[Series]:
    """All series of a metric, host by host."""
    for place, points in run.points(metric):
        together: dict[tuple[object, ...], list[Points]] = {}
        for series_points in _limit_names(points):
            together.setdefault(series_points.labels, []).append(series_points)
        for labels, parts in together.items():
            series = _series(run, metric, (*place, *map(str, labels)), parts)
            if is_shown(metric, float(series.values[-1]) if len(series.values) else 1.0):
                yield series


def _series(run: FinishedRun, metric: Metric, labels: tuple[str, ...], parts: list[Points]) -> Series:
    times = np.concatenate([series_points.times_ns for series_points in parts])
    values = np.concatenate([series_points.values for series_points in parts])
    if metric.type is Type.GAUGE:
        wholes = [series_points.wholes for series_points in parts if series_points.wholes is not None]
        return gauge(metric, labels, times, values / np.maximum(np.concatenate(wholes), 1) if wholes else values)
    make = histogram if metric.type is Type.HISTOGRAM else counter
    unit = NS if metric.unit is Unit.SECONDS else 1
    return make(metric, labels, times, values, begin_ns=run.begin_ns, unit=unit)


def _limit_names(points: Iterable[Points]) -> Iterator[Points]:
    """Limit logged names and modules to the first ones. Further modules of a rank share one series."""
    shown: dict[object, set[str]] = {}
    for series_points in points:
        if series_points.metric is catalogue.MODULE_TIME:
            names = shown.setdefault(series_points.labels[0], set())
            series_points = limit_modules(series_points, shown=names)
            names.add(str(series_points.labels[1]))
        elif series_points.metric is catalogue.LOGGED:
            names = shown.setdefault(None, set())
            if len(names) == MAX_LOGGED:
                continue
            names.add(str(series_points.labels[0]))
        yield series_points
