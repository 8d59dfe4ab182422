"""A job that is not there, told as its agents would: every metric of the catalogue, growing with time.

Two hosts with two ranks each. Each rank's step is 50 % forward, 10 % data wait, and on axis
fsdp 20 % waiting and 20 % transfer.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

from traincope import metrics
from traincope.metrics import CATALOGUE, Metric, Type

RUN, HOSTS = "job-1", {"node-a": ("0", "1"), "node-b": ("2", "3")}
TERMS = {("forward", ""): 0.5, ("data_wait", ""): 0.1, ("exposed_wait", "fsdp"): 0.2, ("exposed_transfer", "fsdp"): 0.2}
"""(term, axis) -> share of a step."""
VALUES = {
    "axis": ("fsdp",),
    "op": ("all_gather",),
    "kind": ("spike",),
    "state": ("alive",),
    "part": ("imbalance",),
    "measure": ("resident",),
    "name": ("loss",),
    "reason": ("software power cap",),
}
"""Label -> its values, of those that are not the same for all."""
GAUGES = {metrics.MFU: 0.3, metrics.HFU: 0.4, metrics.MFU_PAPER: 0.32, metrics.GOODPUT: 0.9, metrics.LAST_STEP: 1200.0}
USUAL_BLAME, SLOW_BLAME = 0.01, 0.5


@dataclass(eq=False)
class Job(Collector):
    """What is scraped now."""

    began: float
    slow_rank: str | None = None
    """The one for which the other rank of its host waits half of its time, since `slow_since`."""
    slow_since: float = 0.0

    def make_slow(self, rank: str) -> None:
        self.slow_rank, self.slow_since = rank, time.monotonic()

    def collect(self) -> Iterator[Family]:
        for metric in CATALOGUE:
            family = Family(_family_name(metric), metric.help, metric.type.value, metric.unit.word)
            for labels in _label_sets(metric):
                family.samples += self._samples(metric, labels)
            yield family

    def _samples(self, metric: Metric, labels: dict[str, str]) -> Iterable[Sample]:
        seconds = time.monotonic() - self.began
        if metric.type is Type.HISTOGRAM:
            return _histogram(metric, labels, count=seconds * 10)
        if metric.type is Type.COUNTER:
            return [Sample(metric.prometheus, labels, self._counted(metric, labels, seconds))]
        return [Sample(metric.prometheus, labels, 1.0 if metric.type is Type.INFO else GAUGES.get(metric, 1.0))]

    def _counted(self, metric: Metric, labels: dict[str, str], seconds: float) -> float:
        if metric is metrics.LEDGER:
            return seconds * TERMS[labels["term"], labels["axis"]]
        if metric is metrics.CAUSED_WAIT:
            slow = time.monotonic() - self.slow_since if labels["rank"] == self.slow_rank else 0.0
            return seconds * USUAL_BLAME + slow * SLOW_BLAME
        if metric is metrics.OWN_TIME:
            return seconds * 0.001
        # Nothing new: events from the beginning, none since.
        return (
            3.0
            if metric in (metrics.FAULTS, metrics.GPU_XID, metrics.GPU_ECC, metrics.GPU_NVLINK, metrics.DROPPED)
            else seconds
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    job: Job
    address: str


def serve() -> Iterator[Served]:
    """On a free port of the loopback, until closed."""
    job = Job(began=time.monotonic() - 1000)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(job)
    server = make_server("127.0.0.1", 0, make_wsgi_app(registry), WSGIServer, _Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Served(job=job, address=f"127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _label_sets(metric: Metric) -> Iterator[dict[str, str]]:
    for host, ranks in HOSTS.items():
        for rank in ranks if metric.per_rank else ranks[:1]:
            fixed = {"run": RUN, "host": host, "rank": rank}
            yield from ({**fixed, **more} for more in _further(metric))


def _further(metric: Metric) -> Iterator[dict[str, str]]:
    """Values of the labels beyond run, host and rank."""
    if metric is metrics.LEDGER:
        yield from ({"term": term, "axis": axis} for term, axis in TERMS)
        return
    names = [label for label in metric.labels if label not in metrics.RANK_LABELS]
    for values in product(*(VALUES.get(name, (f"some {name}",)) for name in names)):
        yield dict(zip(names, values, strict=True))


def _histogram(metric: Metric, labels: dict[str, str], *, count: float) -> Iterator[Sample]:
    """All values in the middle bucket, with an exemplar there."""
    middle = len(metric.buckets) // 2
    name = metric.prometheus
    for place, bound in enumerate((*map(str, metric.buckets), "+Inf")):
        step = Exemplar({"step": "1200", "rank": "3"}, metric.buckets[middle]) if place == middle else None
        yield Sample(f"{name}_bucket", {**labels, "le": bound}, count if place >= middle else 0.0, None, step)
    yield Sample(f"{name}_count", labels, count)
    yield Sample(f"{name}_sum", labels, count * metric.buckets[middle])


def _family_name(metric: Metric) -> str:
    """prometheus_client adds the suffix to the family's name itself."""
    suffix = {Type.COUNTER: "_total", Type.INFO: "_info"}.get(metric.type, "")
    return metric.prometheus.removesuffix(suffix)


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing a request."""
