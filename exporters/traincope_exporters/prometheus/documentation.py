"""Table of the catalogue for readers: `docs/reference/METRICS.md`."""

from collections.abc import Sequence
from pathlib import Path

from traincope.metrics.catalogue import CATALOGUE, MAX_FOLDED_PER_RANK, MAX_SERIES_PER_RANK, OTHER_NODES
from traincope.metrics.metric import Fold, Metric, Type, Unit

HEADER = f"""# Metrics

Metrics of a running job, generated from `traincope/metrics/catalogue.py`.
Every series has the labels `run` and `host`. `run` is the run's name and four digits of its first launch, such as
`nanogpt-1128-1324~3f2a`: two runs of one name are apart, attempts and hosts of one run are not, and commands take it
as RUN. A rank has at most {MAX_FOLDED_PER_RANK} series of its own: metrics marked
sum, max or min cover the ranks of a node, and those marked omitted are left out.
With `TRAINCOPE_METRICS_PER_RANK=on`, a rank has at most {MAX_SERIES_PER_RANK[1]}, at level 2 {MAX_SERIES_PER_RANK[2]}
([counts](../operate/fleet.md)). An unknown value has no series and is never 0. Times are seconds, sizes bytes, ratios
between 0 and 1. A counter restarts with every attempt. (*) {OTHER_NODES}

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
    fold = "" if metric.fold is None else f" ({'omitted' if metric.fold is Fold.OMIT else metric.fold.value})"
    buckets = f" Buckets: {', '.join(f'{bound:g}' for bound in metric.buckets)}." if metric.buckets else ""
    text = metric.help.replace(OTHER_NODES, "(*)")
    name = f"{metric.prometheus}_bucket" if metric.type is Type.HISTOGRAM else metric.prometheus
    return f"| `{name}`{level}{fold} | `{metric.otel}` | {kind} | {label_names} | {text}{buckets} |\n"
