"""Samples in OpenTelemetry's data model: names, units, types, labels, exemplars."""

from collections.abc import Sequence

import pytest

from tests.exporters.otlp.receiver import Received, attributes, collector
from tests.exporters.runs import two_ranks
from traincope.metrics import catalogue
from traincope.metrics.catalogue import CATALOGUE
from traincope.metrics.metric import Metric, Type, Unit
from traincope.metrics.sample import Distribution, Exemplar, Sample
from traincope.report.exports import Address
from traincope_exporters.otlp.finished import send
from traincope_exporters.otlp.metrics import name
from traincope_exporters.otlp.push import OtlpPush

WORDS = {
    "s": "seconds",
    "By": "bytes",
    "By/s": "bytes_per_second",
    "W": "watts",
    "J": "joules",
    "Hz": "hertz",
    "Cel": "celsius",
    "{item}": "",
}


def in_prometheus(metric: Metric) -> str:
    """Name of the metric in a Prometheus that receives OTLP.

    https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
    """
    unit = metric.unit.value
    word = "ratio" if unit == "1" and metric.type is Type.GAUGE else WORDS[unit]
    parts = [name(metric).replace(".", "_"), word, "total" if metric.type is Type.COUNTER else ""]
    return "_".join(part for part in parts if part)


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: str(metric.name))
def test_otlp_and_scraping_give_the_same_series_name(metric: Metric) -> None:
    assert in_prometheus(metric) == metric.prometheus


def pushed(samples: Sequence[Sample], protocol: str = "grpc") -> Received:
    with collector(protocol) as result:
        address = Address(endpoint=result.url, protocol=protocol, timeout_seconds=90)
        push = OtlpPush(address, run="my-run", host="node-1", start_ns=500)
        push.push(samples)
        push.close(timeout_seconds=90)
        assert (push.sent, push.dropped, push.problem) == (1, 0, None)
    return result


def labels(metric: Metric) -> tuple[str, ...]:
    return tuple(f"a {label}" for label in metric.labels)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_counter_is_a_monotonic_sum_since_the_attempt_began(protocol: str) -> None:
    result = pushed([Sample(metric=catalogue.WALL, labels=("my-run", "node-1", "3"), value=12.5)], protocol)
    ((resource, sent),) = result.each_metric()
    assert (resource["service.instance.id"], resource["host.name"]) == ("my-run/node-1", "node-1")
    assert (sent.name, sent.unit, sent.description) == ("traincope.step.wall", "s", catalogue.WALL.help)
    assert (sent.sum.is_monotonic, sent.sum.aggregation_temporality) == (True, 2)
    (point,) = sent.sum.data_points
    assert (point.as_double, point.start_time_unix_nano) == (12.5, 500)
    assert attributes(point.attributes) == {"run": "my-run", "host": "node-1", "rank": "3"}


def test_series_of_one_metric_are_sent_together() -> None:
    samples = [Sample(metric=catalogue.LAST_STEP, labels=("r", "h", str(rank)), value=rank) for rank in range(3)]
    ((_, sent),) = pushed(samples).each_metric()
    assert [(attributes(point.attributes)["rank"], point.as_int) for point in sent.gauge.data_points] == [
        ("0", 0),
        ("1", 1),
        ("2", 2),
    ]


def test_a_histogram_has_buckets_and_exemplars_but_no_minimum_or_maximum() -> None:
    counts = (0,) * 4 + (2,) + (0,) * 7 + (1,)
    example = Exemplar(value=0.9, labels={"step": "7", "rank": "1"}, wall_ns=777)
    value = Distribution(counts=counts, sum=301.5)
    sample = Sample(metric=catalogue.STEP_TIMES, labels=("r", "h"), value=value, exemplars=(example,))
    ((_, sent),) = pushed([sample]).each_metric()
    (point,) = sent.histogram.data_points
    assert (point.count, point.sum, tuple(point.bucket_counts)) == (3, 301.5, counts)
    assert tuple(point.explicit_bounds) == catalogue.STEP_TIMES.buckets
    assert not point.HasField("min")
    assert not point.HasField("max")
    (shown,) = point.exemplars
    assert (shown.as_double, shown.time_unix_nano) == (0.9, 777)
    assert attributes(shown.filtered_attributes) == {"step": "7", "rank": "1"}


def test_every_metric_of_the_catalogue_can_be_sent() -> None:
    def value(metric: Metric) -> float | Distribution:
        if metric.type is Type.HISTOGRAM:
            return Distribution(counts=(1,) * (len(metric.buckets) + 1), sum=1.0)
        return 1.0

    samples = [Sample(metric=metric, labels=labels(metric), value=value(metric)) for metric in CATALOGUE]
    result = {sent.name: sent for _, sent in pushed(samples).each_metric()}
    assert set(result) == {name(metric) for metric in CATALOGUE}
    for metric in CATALOGUE:
        sent = result[name(metric)]
        assert (sent.description, sent.unit) == (metric.help, metric.unit.value)
        kind = {Type.GAUGE: "gauge", Type.HISTOGRAM: "histogram"}.get(metric.type, "sum")
        assert sent.WhichOneof("data") == kind
        (point,) = getattr(sent, kind).data_points
        assert tuple(attributes(point.attributes)) == metric.labels


def test_an_info_is_a_non_monotonic_sum() -> None:
    ((_, sent),) = pushed([Sample(metric=catalogue.RUN_INFO, labels=labels(catalogue.RUN_INFO), value=1)]).each_metric()
    assert (sent.name, sent.sum.is_monotonic) == ("traincope.run.info", False)


def test_units_are_ucum_codes() -> None:
    assert {unit.value for unit in Unit} == {"{item}", "s", "1", "By", "By/s", "W", "J", "Hz", "Cel"}


def test_a_finished_run_sends_the_last_values_of_its_metrics() -> None:
    with collector("grpc") as result:
        send(two_ranks(), Address(endpoint=result.url, protocol="grpc", timeout_seconds=90))
    by_name = {sent.name: sent for _, sent in result.each_metric()}
    assert [point.as_double for point in by_name["traincope.steps"].sum.data_points] == [3.0, 3.0]
    assert {point.time_unix_nano for point in by_name["traincope.steps"].sum.data_points} == {3000}
