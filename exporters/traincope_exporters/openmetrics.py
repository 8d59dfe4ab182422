"""Export of a finished run as OpenMetrics text with timestamps, for a database of your own:

    traincope export RUN --to openmetrics -o run.om
    promtool tsdb create-blocks-from openmetrics run.om DATA && prometheus --storage.tsdb.path=DATA ...

Dashboards then show it like a running job. https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from collections.abc import Iterator
from math import isfinite, isnan

from traincope.analysis import analyze
from traincope.metrics.metric import Metric, Type
from traincope.report.exports import TextExport, require_steps
from traincope.timeline import Timeline
from traincope_exporters.history import Series, history
from traincope_exporters.history.series import MS

TYPES = {Type.GAUGE: "gauge", Type.COUNTER: "counter", Type.HISTOGRAM: "histogram", Type.INFO: "info"}


def openmetrics(timeline: Timeline) -> Iterator[str]:
    """The text, series by series. Raises RunDirectoryError if the run has no complete step."""
    require_steps(timeline, export="openmetrics")
    before: Metric | None = None
    for series in history(analyze(timeline)):
        if series.metric is not before:
            yield head(series.metric)
        yield from _lines(series)
        before = series.metric
    yield "# EOF\n"


def head(metric: Metric) -> str:
    """Lines before a metric's samples."""
    name = metric.family
    unit = f"# UNIT {name} {metric.unit.word}\n" if metric.unit.word else ""
    return f"# TYPE {name} {TYPES[metric.type]}\n{unit}# HELP {name} {_escaped(metric.help)}\n"


def _lines(series: Series) -> Iterator[str]:
    times = [f"{at // (1000 * MS)}.{at // MS % 1000:03d}" for at in series.times_ns.tolist()]
    if series.counts is not None:
        yield from _histogram(series, times)
        return
    name = _series(series.metric.prometheus, _labels(series))
    yield "".join(f"{name} {_number(v)} {at}\n" for v, at in zip(series.values.tolist(), times, strict=True))


def _histogram(series: Series, times: list[str]) -> Iterator[str]:
    """Lines of a histogram: at each point all buckets, cumulated."""
    base, labels = series.metric.prometheus, _labels(series)
    bounds = [*(repr(float(bound)) for bound in series.metric.buckets), "+Inf"]
    buckets = [_series(f"{base}_bucket", {**labels, "le": bound}) for bound in bounds]
    count, total = _series(f"{base}_count", labels), _series(f"{base}_sum", labels)
    counts = [] if series.counts is None else series.counts.cumsum(axis=1).tolist()
    for below, value, at in zip(counts, series.values.tolist(), times, strict=True):
        lines = [f"{name} {number} {at}\n" for name, number in zip(buckets, below, strict=True)]
        yield "".join([*lines, f"{count} {below[-1]} {at}\n", f"{total} {_number(value)} {at}\n"])


def _labels(series: Series) -> dict[str, str]:
    return dict(zip(series.metric.labels, series.labels, strict=True))


def _series(name: str, labels: dict[str, str]) -> str:
    pairs = [f'{label}="{_escaped(value)}"' for label, value in labels.items()]
    return f"{name}{{{','.join(pairs)}}}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if isfinite(value):
        return repr(value)
    return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"


EXPORT = TextExport(
    suffix="openmetrics.txt",
    pieces=openmetrics,
    hint="promtool tsdb create-blocks-from openmetrics FILE DATA, and a Prometheus over DATA",
)
