"""Conversion of samples to OpenTelemetry's data model.

Labels become attributes of each point. Names and units are the catalogue's, so that OTLP and scraping lead to the same
series in a database.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.sdk.metrics._internal.exemplar import Exemplar as OtelExemplar
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
from opentelemetry.sdk.metrics.export import Metric as OtelMetric
from opentelemetry.sdk.resources import Resource

from traincope.metrics.metric import Metric, Type
from traincope.metrics.sample import Distribution, Exemplar, Sample
from traincope_exporters.otlp.identity import SCOPE, clean

CUMULATIVE = AggregationTemporality.CUMULATIVE


def metrics_data(samples: Iterable[Sample], *, resource: Resource, start_ns: int, at_ns: int) -> MetricsData:
    """Values at `at_ns`. Counters count since `start_ns` (wall time since the epoch)."""
    by_metric: dict[str, tuple[Metric, list[Sample]]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric.name, (sample.metric, []))[1].append(sample)
    metrics = [
        _otel_metric(metric, metric_samples, start_ns=start_ns, at_ns=at_ns)
        for metric, metric_samples in by_metric.values()
    ]
    scope = ScopeMetrics(scope=SCOPE, metrics=metrics, schema_url="")
    return MetricsData(
        resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url=resource.schema_url)]
    )


def name(metric: Metric) -> str:
    """OpenTelemetry name. Prometheus adds the suffix of units and counters itself, but not that of an info."""
    return f"{metric.otel}.info" if metric.type is Type.INFO else metric.otel


def _otel_metric(metric: Metric, samples: list[Sample], *, start_ns: int, at_ns: int) -> OtelMetric:
    return OtelMetric(
        name=name(metric),
        description=metric.help,
        unit=metric.unit.value,
        data=_data(metric, samples, start_ns=start_ns, at_ns=at_ns),
    )


def _data(metric: Metric, samples: list[Sample], *, start_ns: int, at_ns: int) -> Gauge | Sum | Histogram:
    """Data points of a metric. An info is a non-monotonic sum, by OpenTelemetry's rules for Prometheus."""
    if metric.type is Type.HISTOGRAM:
        histograms = [_histogram(metric, sample, start_ns=start_ns, at_ns=at_ns) for sample in samples]
        return Histogram(data_points=histograms, aggregation_temporality=CUMULATIVE)
    points = [_number(metric, sample, start_ns=start_ns, at_ns=at_ns) for sample in samples]
    if metric.type is Type.GAUGE:
        return Gauge(data_points=points)
    return Sum(data_points=points, aggregation_temporality=CUMULATIVE, is_monotonic=metric.type is Type.COUNTER)


def _number(metric: Metric, sample: Sample, *, start_ns: int, at_ns: int) -> NumberDataPoint:
    if isinstance(sample.value, Distribution):
        raise ValueError(f"{metric.name} is not a histogram, but its sample is one")
    return NumberDataPoint(
        attributes=_attributes(sample), start_time_unix_nano=start_ns, time_unix_nano=at_ns, value=sample.value
    )


def _histogram(metric: Metric, sample: Sample, *, start_ns: int, at_ns: int) -> HistogramDataPoint:
    """Histogram point without minimum and maximum. OTLP allows that; the SDK's types do not."""
    if not isinstance(sample.value, Distribution):
        raise ValueError(f"{metric.name} is a histogram, but its sample is a number")
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
        exemplars=[_exemplar(exemplar) for exemplar in sample.exemplars],
    )


def _exemplar(exemplar: Exemplar) -> OtelExemplar:
    return OtelExemplar(
        filtered_attributes={key: clean(value) for key, value in exemplar.labels.items()},
        value=float(exemplar.value),
        time_unix_nano=exemplar.wall_ns,
    )


def _attributes(sample: Sample) -> Mapping[str, Any]:
    pairs = zip(sample.metric.labels, sample.labels, strict=True)
    return {label: clean(value) for label, value in pairs}
