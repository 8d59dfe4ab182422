"""Conversion of samples to prometheus_client's metric families, which it writes as text or OpenMetrics."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby

from prometheus_client import samples as written
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from traincope.live.serve.exporters import Source
from traincope.metrics.catalogue import CATALOGUE
from traincope.metrics.metric import Metric
from traincope.metrics.sample import Distribution, Exemplar, Sample

ORDER = {metric.name: place for place, metric in enumerate(CATALOGUE)}


class Exposition(Collector):
    """Collector that calls `source` at every scrape."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> Iterable[Family]:
        """Return nothing. Otherwise a registry would ask for samples before they exist."""
        return ()

    def collect(self) -> Iterator[Family]:
        return families(self._source())


def families(samples: Sequence[Sample]) -> Iterator[Family]:
    """One family per metric that has samples, in the catalogue's order."""
    ordered = sorted(samples, key=lambda sample: ORDER[sample.metric.name])
    for _, group in groupby(ordered, key=lambda sample: sample.metric.name):
        yield _family(list(group))


def _family(samples: list[Sample]) -> Family:
    metric = samples[0].metric
    family = Family(metric.family, metric.help, metric.type.value, metric.unit.word)
    for sample in samples:
        labels = dict(zip(metric.labels, sample.labels, strict=True))
        if isinstance(sample.value, Distribution):
            family.samples += _histogram(family.name, labels, sample.value, metric=metric, exemplars=sample.exemplars)
        else:
            family.samples.append(written.Sample(metric.prometheus, labels, sample.value))
    return family


def _histogram(
    name: str, labels: dict[str, str], counted: Distribution, *, metric: Metric, exemplars: tuple[Exemplar, ...]
) -> Iterator[written.Sample]:
    bounds = (*map(str, map(float, metric.buckets)), "+Inf")
    below = list(accumulate(counted.counts))
    shown = {_bucket(metric, exemplar.value): exemplar for exemplar in exemplars}
    for place, (bound, count) in enumerate(zip(bounds, below, strict=True)):
        yield written.Sample(f"{name}_bucket", {**labels, "le": bound}, count, None, _exemplar(shown.get(place)))
    yield written.Sample(f"{name}_count", labels, below[-1])
    yield written.Sample(f"{name}_sum", labels, counted.sum)


def _bucket(metric: Metric, value: float) -> int:
    return next((place for place, bound in enumerate(metric.buckets) if value <= bound), len(metric.buckets))


def _exemplar(exemplar: Exemplar | None) -> written.Exemplar | None:
    if exemplar is None:
        return None
    return written.Exemplar(exemplar.labels, exemplar.value, exemplar.wall_ns / 1e9)
