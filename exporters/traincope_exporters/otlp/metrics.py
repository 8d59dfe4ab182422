"""Samples of the catalogue -> OpenTelemetry's data model.

Labels are attributes of each point, and names and units those of the catalogue, so that a database that takes OTLP and
one that scrapes hold the same series.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.sdk.metrics._internal.exemplar import Exemplar as SentExemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as Sent
from opentelemetry.sdk.resources import Resource

from traincope.metrics import Distribution, Exemplar, Metric, Sample, Type
from traincope_exporters.otlp.identity import SCOPE, clean

CUMULATIVE = AggregationTemporality.CUMULATIVE


def metrics_data(samples: Iterable[Sample], *, resource: Resource, start_ns: int, at_ns: int) -> MetricsData:
    """What holds at `at_ns`; counters count since `start_ns` (wall time since the epoch)."""
    by_metric: dict[str, tuple[Metric, list[Sample]]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric.name, (sample.metric, []))[1].append(sample)
    sent = [_sent(metric, own, start_ns=start_ns, at_ns=at_ns) for metric, own in by_metric.values()]
    scope = ScopeMetrics(scope=SCOPE, metrics=sent, schema_url="")
    return MetricsData(
        resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url=resource.schema_url)]
    )


def name(metric: Metric) -> str:
    """Of the unit and a counter's `_total` Prometheus makes endings by itself, of an info it does not."""
    return f"{metric.otel}.info" if metric.type is Type.INFO else metric.otel


def _sent(metric: Metric, samples: list[Sample], *, start_ns: int, at_ns: int) -> Sent:
    return Sent(
        name=name(metric),
        description=metric.help,
        unit=metric.unit.value,
        data=_data(metric, samples, start_ns=start_ns, at_ns=at_ns),
    )


def _data(metric: Metric, samples: list[Sample], *, start_ns: int, at_ns: int) -> Gauge | Sum | Histogram:
    """An info is a sum that does not grow, as OpenTelemetry's rules for Prometheus have it."""
    if metric.type is Type.HISTOGRAM:
        histograms = [_histogram(metric, sample, start_ns=start_ns, at_ns=at_ns) for sample in samples]
        return Histogram(data_points=histograms, aggregation_temporality=CUMULATIVE)
    points = [_number(metric, sample, start_ns=start_ns, at_ns=at_ns) for sample in samples]
    if metric.type is Type.GAUGE:
        return Gauge(data_points=points)
    return Sum(data_points=points, aggregation_temporality=CUMULATIVE, is_monotonic=metric.type is Type.COUNTER)


def _number(metric: Metric, sample: Sample, *, start_ns: int, at_ns: int) -> NumberDataPoint:
    if isinstance(sample.value, Distribution):
        raise ValueError(f"{metric.name} is no histogram, and its sample is one")
    return NumberDataPoint(
        attributes=_attributes(sample), start_time_unix_nano=start_ns, time_unix_nano=at_ns, value=sample.value
    )


def _histogram(metric: Metric, sample: Sample, *, start_ns: int, at_ns: int) -> HistogramDataPoint:
    """Neither least nor largest value is known, which the SDK's own types do not provide for, but OTLP does."""
    if not isinstance(sample.value, Distribution):
        raise ValueError(f"{metric.name} is a histogram, and its sample is a number")
    unknown: Any = None
    return HistogramDataPoint(
        attributes=_attributes(sample),
        start_time_unix_nano=start_ns,
        time_unix_nano=at_ns,
        count=sum(sample.value.counts),
        sum=sample.value.sum,
        bucket_counts=sample.value.counts,
        explicit_bounds=metric.buckets,
        min=unknown,
        max=unknown,
        exemplars=[_exemplar(one) for one in sample.exemplars],
    )


def _exemplar(exemplar: Exemplar) -> SentExemplar:
    return SentExemplar(
        filtered_attributes={key: clean(value) for key, value in exemplar.labels.items()},
        value=float(exemplar.value),
        time_unix_nano=exemplar.wall_ns,
    )


def _attributes(sample: Sample) -> Mapping[str, Any]:
    pairs = zip(sample.metric.labels, sample.labels, strict=True)
    return {label: clean(value) for label, value in pairs}
