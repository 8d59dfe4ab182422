"""Scraped text, read back by prometheus_client's parsers and compared with the catalogue."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import parser as text_format
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import parser as openmetrics_format
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from tests.exporters.everything import everything
from traincope.metrics import catalogue
from traincope.metrics.catalogue import CATALOGUE
from traincope.metrics.metric import Metric, Type
from traincope.metrics.sample import Distribution, Sample
from traincope_exporters.prometheus.documentation import markdown
from traincope_exporters.prometheus.exposition import Exposition

TABLE = Path(__file__).parents[3] / "docs" / "reference" / "METRICS.md"


def registry(samples: Sequence[Sample]) -> CollectorRegistry:
    built = CollectorRegistry(auto_describe=False)
    built.register(Exposition(lambda: samples))
    return built


def read_text(samples: Sequence[Sample]) -> dict[str, Family]:
    text = generate_latest(registry(samples)).decode()
    return by_name(text_format.text_string_to_metric_families(text))


def read_openmetrics(samples: Sequence[Sample]) -> dict[str, Family]:
    """The parser is strict: names, suffixes, units, order of families and buckets."""
    text = generate_openmetrics(registry(samples)).decode()
    return by_name(openmetrics_format.text_string_to_metric_families(text))


def by_name(families: Iterable[Family]) -> dict[str, Family]:
    listed = list(families)
    result = {family.name: family for family in listed}
    assert len(result) == len(listed)
    return result


def stem(metric: Metric) -> str:
    return metric.prometheus.removesuffix("_total").removesuffix("_info")


def test_every_metric_of_the_catalogue_is_exported_and_nothing_else_is() -> None:
    result = read_openmetrics(everything())
    assert set(result) == {stem(metric) for metric in CATALOGUE}
    for metric in CATALOGUE:
        family = result[stem(metric)]
        assert (family.type, family.documentation, family.unit) == (metric.type.value, metric.help, metric.unit.word)
        labels = {name for sample in family.samples for name in sample.labels}
        assert labels == {*metric.labels, *(("le",) if metric.type is Type.HISTOGRAM else ())}, metric.name
        names = {sample.name for sample in family.samples}
        if metric.type is Type.HISTOGRAM:
            assert names == {f"{metric.prometheus}_{part}" for part in ("bucket", "count", "sum")}
        else:
            assert names == {metric.prometheus}


@pytest.mark.parametrize("read", [read_text, read_openmetrics])
def test_both_formats_preserve_the_samples(read: Callable[[Sequence[Sample]], dict[str, Family]]) -> None:
    samples = everything()
    lines = {
        (line.name, frozenset(line.labels.items())): line.value
        for family in read(samples).values()
        for line in family.samples
    }
    for sample in samples:
        labels = frozenset(zip(sample.metric.labels, sample.labels, strict=True))
        if isinstance(sample.value, Distribution):
            assert lines[f"{sample.metric.prometheus}_count", labels] == sum(sample.value.counts)
            assert lines[f"{sample.metric.prometheus}_sum", labels] == sample.value.sum
        else:
            assert lines[sample.metric.prometheus, labels] == sample.value


def test_buckets_are_cumulative_and_have_exemplars_with_step_and_rank() -> None:
    family = read_openmetrics(everything())[catalogue.STEP_TIMES.prometheus]
    buckets = {line.labels["le"]: line for line in family.samples if line.name.endswith("_bucket")}
    bounds = ("0.05", "0.1", "0.2", "0.5", "1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "100.0", "200.0", "+Inf")
    assert {le: line.value for le, line in buckets.items()} == dict.fromkeys(bounds, 4) | {"0.05": 0}
    assert [le for le, line in buckets.items() if line.exemplar is not None] == ["0.1"]
    example = buckets["0.1"].exemplar
    assert example is not None
    assert (example.labels, example.value) == ({"step": "2", "rank": "1"}, 0.1)
    assert float(example.timestamp or 0) == 0.3


def test_hostile_names_stay_in_their_label() -> None:
    """Quotes, line breaks and braces in a name stay in its label."""
    hostile = 'loss"} 1\ntraincope_steps_total{run="x'
    result = read_openmetrics(everything(**{hostile: 7.0}))
    assert set(result) == {stem(metric) for metric in CATALOGUE}
    (line,) = (line for line in result[catalogue.LOGGED.prometheus].samples if line.value == 7.0)
    assert line.labels["name"] == hostile


def test_nan_is_exported_as_nan() -> None:
    result = read_text(everything(norm=float("nan")))[catalogue.LOGGED.prometheus]
    (line,) = (line for line in result.samples if line.labels["name"] == "norm")
    assert math.isnan(line.value)


def test_the_committed_table_matches_the_catalogue() -> None:
    """Update it with `make metrics-table`."""
    assert TABLE.read_text(encoding="utf-8") == markdown()
