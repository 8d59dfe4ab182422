"""What the numbers of a job are kept under: a metric and the labels beside run and host."""

from collections.abc import Mapping
from typing import TypeVar

from traincope.metrics import NODE_LABELS, Metric

Series = tuple[str, tuple[str, ...]]
"""A metric's name, and the values of its labels after `NODE_LABELS`."""

V = TypeVar("V")

LONGEST = 128
"""Characters of a label that are kept: a name from a run may be of any length."""


def series(metric: Metric, *labels: object) -> Series:
    """Labels may be numbers. Raises ValueError where they are not as many as the metric has."""
    if len(labels) != len(metric.labels) - len(NODE_LABELS):
        raise ValueError(f"{metric.name} has the labels {metric.labels}")
    return metric.name, tuple(clean(str(label)) for label in labels)


def clean(text: str) -> str:
    """Any text as a label: no half characters, which UTF-8 cannot write, and not too long."""
    return text[:LONGEST].encode("utf-8", "replace").decode()


def added(sums: Mapping[Series, int], more: Mapping[Series, int]) -> dict[Series, int]:
    return {**sums, **{key: sums.get(key, 0) + value for key, value in more.items()}}
