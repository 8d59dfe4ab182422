"""The catalogue as a table to read: `docs/METRICS.md`."""

from collections.abc import Sequence
from pathlib import Path

from traincope.metrics import CATALOGUE, MAX_SERIES_PER_RANK, Metric, Type, Unit

HEADER = f"""# Metrics

What a running job says of itself, to Prometheus and by OpenTelemetry alike; made from `traincope/metrics.py`.
Every series has the labels `run` and `host`. A rank has at most {MAX_SERIES_PER_RANK[1]} series of its own, and
{MAX_SERIES_PER_RANK[2]} where level 2 records modules and pipeline actions. What is not known has no series, never a 0.
Times are seconds, sizes bytes, ratios between 0 and 1. A counter begins anew with every attempt of the job.

| Prometheus | OpenTelemetry | type, unit | labels | what it is |
|---|---|---|---|---|
"""


def markdown(catalogue: Sequence[Metric] = CATALOGUE) -> str:
    return HEADER + "".join(_row(metric) for metric in catalogue)


def write(path: str | Path) -> None:
    """Raises OSError."""
    Path(path).write_text(markdown(), encoding="utf-8")


def _row(metric: Metric) -> str:
    own = ", ".join(f"`{label}`" for label in metric.labels if label not in ("run", "host"))
    unit = metric.unit.word.replace("_", " ")
    kind = ", ".join(filter(None, (metric.type.value, unit if metric.unit is not Unit.ONE else "")))
    level = f" (level {metric.level})" if metric.level > 1 else ""
    buckets = f" Buckets: {', '.join(f'{bound:g}' for bound in metric.buckets)}." if metric.buckets else ""
    name = f"{metric.prometheus}_bucket" if metric.type is Type.HISTOGRAM else metric.prometheus
    return f"| `{name}`{level} | `{metric.otel}` | {kind} | {own} | {metric.help}{buckets} |\n"
