"""Key of a live number: a metric and its labels after run and host."""

from collections.abc import Mapping

from traincope.metrics.labels import clean_label
from traincope.metrics.metric import NODE_LABELS, Metric

SeriesKey = tuple[str, tuple[str, ...]]
"""Metric name, and the values of its labels after `NODE_LABELS`."""


def series_key(metric: Metric, *labels: object) -> SeriesKey:
    """Key of a series. Raises ValueError if the number of labels is not that of the metric."""
    if len(labels) != len(metric.labels) - len(NODE_LABELS):
        raise ValueError(f"{metric.name} has the labels {metric.labels}, not {len(labels)} after {NODE_LABELS}")
    return metric.name, tuple(clean_label(str(label)) for label in labels)


def add_sums(sums: Mapping[SeriesKey, float], more: Mapping[SeriesKey, float]) -> dict[SeriesKey, float]:
    return {**sums, **{key: sums.get(key, 0) + value for key, value in more.items()}}
