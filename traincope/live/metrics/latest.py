"""Gauges of the node's latest steps in a window."""

from collections.abc import Mapping, Sequence

from traincope.live.metrics.series import SeriesKey, series_key
from traincope.metrics.labels import MAX_LOGGED
from traincope.metrics.metric import Type
from traincope.metrics.values import Points


def gauge_values(points: Sequence[Points], *, logged_by: Mapping[SeriesKey, int]) -> dict[SeriesKey, float]:
    """Gauges that the window knows. Others keep their earlier value. `logged_by`: see `logging_ranks`."""
    values = {}
    for series_points in points:
        key = series_key(series_points.metric, *series_points.labels)
        if (
            series_points.metric.type is Type.GAUGE
            and len(series_points.values)
            and (series_points.rank is None or logged_by.get(key) == series_points.rank)
        ):
            values[key] = _latest(series_points)
    return values


def logging_ranks(points: Sequence[Points], *, known: Mapping[SeriesKey, int]) -> dict[SeriesKey, int]:
    """Logged series -> lowest rank that logged it; at most `MAX_LOGGED` names, the first to appear."""
    lowest = dict(known)
    for series_points in points:
        if series_points.rank is not None:
            key = series_key(series_points.metric, *series_points.labels)
            if key in lowest or len(lowest) < MAX_LOGGED:
                lowest[key] = min(lowest.get(key, series_points.rank), series_points.rank)
    return lowest


def _latest(points: Points) -> float:
    if points.wholes is not None:
        return float(points.values.sum() / max(int(points.wholes.sum()), 1))
    value: float = points.values[points.times_ns.argsort(kind="stable")[-1]].item()
    return value
