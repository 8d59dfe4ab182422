"""Table of the catalogue for readers: `docs/METRICS.md`."""

from collections.abc import Sequence
from pathlib import Path

from traincope.metrics.catalogue import CATALOGUE, MAX_SERIES_PER_RANK
from traincope.metrics.metric import Metric, Type, Unit

HEADER = f"""# Metrics

Metrics of a running job, the same in Prometheus and OpenTelemetry. This page is generated from
`traincope/metrics/catalogue.py`.
Every series has the labels `run` and `host`. A rank has at most {MAX_SERIES_PER_RANK[1]} series of its own; at level 2
it has at most {MAX_SERIES_PER_RANK[2]}, with modules and pipeline actions. An unknown value has no series and is
never 0. Times are seconds, sizes bytes, ratios between 0 and 1. A counter restarts with every attempt of the job.

| Prometheus | OpenTelemetry | type, unit | labels | meaning |
|---|---|---|---|---|
"""


def markdown(catalogue: Sequence[Metric] = CATALOGUE) -> str:
    return HEADER + "".join(_row(metric) for metric in catalogue)


def write(path: str | Path) -> None:
    """Write the table. Raises OSError."""
    Path(path).write_text(markdown(), encoding="utf-8")


def _row(metric: Metric) -> str:
    label_names = ", ".join(f"`{label}`" for label in metric.labels if label not in ("run", "host"))
    unit = metric.unit.word.replace("_", " ")
    kind = ", ".join(filter(None, (metric.type.value, unit if metric.unit is not Unit.ONE else "")))
    level = f" (level {metric.level})" if metric.level > 1 else ""
    buckets = f" Buckets: {', '.join(f'{bound:g}' for bound in metric.buckets)}." if metric.buckets else ""
    name = f"{metric.prometheus}_bucket" if metric.type is Type.HISTOGRAM else metric.prometheus
    return f"| `{name}`{level} | `{metric.otel}` | {kind} | {label_names} | {metric.help}{buckets} |\n"
