"""A simulated job, exposed like a real agent's: every metric of the catalogue, growing with time.

Two hosts with two ranks each. Each rank's step is 50 % forward, 10 % data wait, and on axis fsdp 20 % wait and 20 %
transfer.
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

from traincope.metrics import catalogue
from traincope.metrics.catalogue import CATALOGUE
from traincope.metrics.metric import Metric, Type

RUN, HOSTS = "job-1", {"node-a": ("0", "1"), "node-b": ("2", "3")}
TERMS = {("forward", ""): 0.5, ("data_wait", ""): 0.1, ("exposed_wait", "fsdp"): 0.2, ("exposed_transfer", "fsdp"): 0.2}
"""(term, axis) -> share of a step."""
JOB_PARTS = {"productive": 0.9, "restart": 0.1}
"""Part of the job's time -> its share."""
UUID = "GPU-6a5b0f61-2c1e-4a3b-9d0e-000000000001"
VALUES = {
    "axis": ("fsdp",),
    "op": ("all_gather",),
    "kind": ("spike",),
    "state": ("alive",),
    "part": ("imbalance",),
    "measure": ("resident",),
    "name": ("loss",),
    "reason": ("software power cap",),
    "gpu": (UUID,),
    "port": ("mlx5_0/1",),
    "direction": ("sent",),
    "holds": ("mlx5_0",),
    "namespace": ("training",),
    "pod": ("job-1-0",),
}
"""Label -> its values, for labels that differ between series."""
GAUGES = {
    catalogue.MFU: 0.3,
    catalogue.HFU: 0.4,
    catalogue.MFU_PAPER: 0.32,
    catalogue.GOODPUT: 0.9,
    catalogue.LAST_STEP: 1200.0,
}
USUAL_BLAME, SLOW_BLAME = 0.01, 0.5


@dataclass(eq=False)
class Job(Collector):
    """The exposed job."""

    began: float
    slow_rank: str | None = None
    """From `slow_since` on, the other rank of its host waits half of its time for this rank."""
    slow_since: float = 0.0

    def make_slow(self, rank: str) -> None:
        self.slow_rank, self.slow_since = rank, time.monotonic()

    def collect(self) -> Iterator[Family]:
        for metric in CATALOGUE:
            family = Family(_family_name(metric), metric.help, metric.type.value, metric.unit.word)
            for labels in _label_sets(metric):
                family.samples += self._samples(metric, labels)
            yield family
        yield from _foreign()

    def _samples(self, metric: Metric, labels: dict[str, str]) -> Iterable[Sample]:
        seconds = time.monotonic() - self.began
        if metric.type is Type.HISTOGRAM:
            return _histogram(metric, labels, count=seconds * 10)
        if metric.type is Type.COUNTER:
            return [Sample(metric.prometheus, labels, self._counted(metric, labels, seconds))]
        if metric is catalogue.JOB_TIME:
            return [Sample(metric.prometheus, labels, seconds * JOB_PARTS[labels["part"]])]
        return [Sample(metric.prometheus, labels, 1.0 if metric.type is Type.INFO else GAUGES.get(metric, 1.0))]

    def _counted(self, metric: Metric, labels: dict[str, str], seconds: float) -> float:
        if metric is catalogue.LEDGER:
            return seconds * TERMS[labels["term"], labels["axis"]]
        if metric is catalogue.STRAGGLER_WAIT:
            slow = time.monotonic() - self.slow_since if labels["rank"] == self.slow_rank else 0.0
            return seconds * USUAL_BLAME + slow * SLOW_BLAME
        if metric is catalogue.OWN_TIME:
            return seconds * 0.001
        # Events since the beginning; none are added.
        return (
            3.0
            if metric
            in (
                *(catalogue.FAULTS, catalogue.GPU_XID, catalogue.GPU_ECC, catalogue.GPU_NVLINK, catalogue.DROPPED),
                catalogue.LINK_ERRORS,
            )
            else seconds
        )


def _foreign() -> Iterator[Family]:
    """Series as dcgm-exporter 4 and kube-state-metrics 2 expose them."""
    dcgm = {"gpu": "0", "UUID": UUID, "pci_bus_id": "00000000:0F:00.0", "device": "nvidia0", "modelName": "NVIDIA H100"}
    utilization = Family("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", "gauge")
    utilization.add_sample("DCGM_FI_DEV_GPU_UTIL", {**dcgm, "Hostname": "node-a"}, 87.0)
    yield utilization
    pod = {"namespace": "training", "pod": "job-1-0", "host_ip": "10.0.0.7", "pod_ip": "10.1.0.7", "uid": "7"}
    created = {"node": "gke-7", "created_by_kind": "Job", "created_by_name": "job-1", "host_network": "false"}
    info = Family("kube_pod_info", "[STABLE] Information about pod.", "gauge")
    info.add_sample("kube_pod_info", {**pod, **created, "priority_class": ""}, 1.0)
    yield info


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    job: Job
    address: str


def serve() -> Iterator[Served]:
    """Serve on a free loopback port until closed."""
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
    """Values of the labels other than run, host and rank."""
    if metric is catalogue.LEDGER:
        yield from ({"term": term, "axis": axis} for term, axis in TERMS)
        return
    if metric is catalogue.JOB_TIME:
        yield from ({"part": part} for part in JOB_PARTS)
        return
    names = [label for label in metric.labels if label not in catalogue.RANK_LABELS]
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
    """Name without the suffix, which prometheus_client adds itself."""
    suffix = {Type.COUNTER: "_total", Type.INFO: "_info"}.get(metric.type, "")
    return metric.prometheus.removesuffix(suffix)


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""
