"""What the numbers of a job are kept under: a metric and the labels beside run and host."""

from collections.abc import Mapping
from typing import TypeVar

from traincope.metrics import NODE_LABELS, Metric
from traincope_exporters.telling import clean

Series = tuple[str, tuple[str, ...]]
"""A metric's name, and the values of its labels after `NODE_LABELS`."""

V = TypeVar("V")


def series(metric: Metric, *labels: object) -> Series:
    """Labels may be numbers. Raises ValueError where they are not as many as the metric has."""
    if len(labels) != len(metric.labels) - len(NODE_LABELS):
        raise ValueError(f"{metric.name} has the labels {metric.labels}")
    return metric.name, tuple(clean(str(label)) for label in labels)


def added(sums: Mapping[Series, int], more: Mapping[Series, int]) -> dict[Series, int]:
    return {**sums, **{key: sums.get(key, 0) + value for key, value in more.items()}}
