"""Cost of a scrape at 10,000 ranks: `python -m benchmarks.scrape`.

1,250 nodes of 8 ranks, each with all metrics of a training on six mesh axes and GPUs. Every node is scraped once like
by a Prometheus: OpenMetrics, gzipped. CPU is that of this process, equal to an agent's for one scrape.
"""

import gc
import gzip
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from traincope.live.metrics.folding import folded
from traincope.live.metrics.samples import Moment, samples
from traincope.live.metrics.series import SeriesKey, series_key
from traincope.live.metrics.state import Histogram, State
from traincope.live.window import RankState, RankStatus
from traincope.metrics import catalogue
from traincope.metrics.catalogue import MAX_FOLDED_PER_RANK
from traincope.metrics.sample import Exemplar
from traincope.store.job.manifests import RankInfo, RunInfo
from traincope.topology import Host, RankCoord
from traincope_exporters.prometheus.server import Application, application

NODES = 1250
RANKS = 8
AXES = {"pp": 16, "dp_replicate": 2, "fsdp": 16, "cp": 2, "tp": 8, "ep": 1}
OPERATIONS = ("all_gather", "reduce_scatter", "all_reduce")
HOST_TERMS = ("forward", "backward", "recompute", "optimizer", "bubble", "data_wait", "gc", "sync", "unattributed")
BUDGET_MS = 15.0
INTERVAL_SECONDS = 15
NOW_NS = 10**15
REQUEST = {
    "REQUEST_METHOD": "GET",
    "PATH_INFO": "/metrics",
    "HTTP_ACCEPT": "application/openmetrics-text;version=1.0.0",
    "HTTP_ACCEPT_ENCODING": "gzip",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """Scrape of one node."""

    cpu_ms: float
    text_bytes: int
    sent_bytes: int
    series: int
    rank_series: int
    """Series of the rank with the most series."""


def main() -> None:
    """Measure and print; imported objects are frozen, as in an agent."""
    gc.collect()
    gc.freeze()
    show([scrape(node) for node in range(NODES)])


def scrape(node: int) -> Scrape:
    """Scrape one node once."""
    state = a_state(node)
    values = folded(samples(state, host=f"node-{node:04}", moment=_moment(), hardware=_hardware(node)))
    answering = _application(state, node)
    began = time.process_time()
    (sent,) = answering(REQUEST, lambda *_: None)
    cpu_ms = 1e3 * (time.process_time() - began)
    text = gzip.decompress(sent)
    by_rank = [sample.labels[2] for sample in values if sample.metric.per_rank and sample.labels[2]]
    return Scrape(
        cpu_ms=cpu_ms,
        text_bytes=len(text),
        sent_bytes=len(sent),
        series=sum(not line.startswith(b"#") for line in text.splitlines()),
        rank_series=max(by_rank.count(rank) for rank in set(by_rank)),
    )


def _application(state: State, node: int) -> Application:
    hardware = _hardware(node)
    return application(lambda: folded(samples(state, host=f"node-{node:04}", moment=_moment(), hardware=hardware)))


def show(scrapes: list[Scrape]) -> None:
    """Print the median node, the worst node and the sum."""
    cpu = sorted(scrape.cpu_ms for scrape in scrapes)
    worst = cpu[round(0.99 * (len(cpu) - 1))]
    table = Table(title=f"a scrape of each of {len(scrapes):,} nodes of {RANKS} ranks", box=None)
    for heading in ("what", "measured", "budget", ""):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    most = max(scrape.rank_series for scrape in scrapes)
    per_second = sum(scrape.series for scrape in scrapes) / INTERVAL_SECONDS
    megabytes = sum(scrape.sent_bytes for scrape in scrapes) / INTERVAL_SECONDS / 1e6
    rows = (
        ("CPU of an agent, median, ms", f"{median(cpu):.1f}", f"{BUDGET_MS:g}", _judged(median(cpu), BUDGET_MS)),
        ("CPU of an agent, 99th percentile, ms", f"{worst:.1f}", f"{BUDGET_MS:g}", _judged(worst, BUDGET_MS)),
        ("text, kB", f"{median(scrape.text_bytes for scrape in scrapes) / 1e3:.0f}", "", ""),
        ("sent (gzip), kB", f"{median(scrape.sent_bytes for scrape in scrapes) / 1e3:.1f}", "", ""),
        ("series of a rank", str(most), str(MAX_FOLDED_PER_RANK), _judged(most, MAX_FOLDED_PER_RANK)),
        ("series of a node", f"{median(scrape.series for scrape in scrapes):.0f}", "", ""),
        ("series of all nodes", f"{sum(scrape.series for scrape in scrapes):,}", "", ""),
        (f"samples per second at {INTERVAL_SECONDS} s", f"{per_second:,.0f}", "", ""),
        (f"network at {INTERVAL_SECONDS} s, MB/s", f"{megabytes:.2f}", "", ""),
    )
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _judged(measured: float, budget: float) -> str:
    return "within" if measured <= budget else "MISSED"


def a_state(node: int) -> State:
    """State after a day of training; the numbers of all ranks differ."""
    ranks = range(node * RANKS, (node + 1) * RANKS)
    return State(
        info=_info(),
        attempt=3,
        ranks=tuple(_status(rank, node) for rank in ranks),
        at_ns=NOW_NS,
        sums={},
        highest=dict(_counters(ranks)),
        latest=dict(_gauges(ranks)),
        histograms=dict(_histograms(ranks)),
    )


def _counters(ranks: range) -> Iterator[tuple[SeriesKey, int]]:
    for rank in ranks:
        yield series_key(catalogue.STEPS, rank), 17_280
        yield series_key(catalogue.WALL, rank), 86_400 * 10**9 + rank
        yield series_key(catalogue.STRAGGLER_WAIT, rank), 10**9 * rank
        for number, (term, axis) in enumerate(_terms()):
            yield series_key(catalogue.LEDGER, rank, term, axis), 10**12 + 1_234_567 * (rank + number)
    yield series_key(catalogue.TOKENS), 9 * 10**12
    yield series_key(catalogue.OWN_TIME), 10**11
    for axis, operation in _collectives():
        yield series_key(catalogue.COLLECTIVE_BYTES, axis, operation), 7 * 10**14
        yield series_key(catalogue.COLLECTIVE_TRANSFER, axis, operation), 10**13
        yield series_key(catalogue.COLLECTIVE_WAIT, axis, operation), 10**12


def _terms() -> Iterator[tuple[str, str]]:
    yield from ((term, "") for term in (*HOST_TERMS, "checkpoint_stall", "compile"))
    yield from ((term, axis) for axis in AXES for term in ("exposed_transfer", "exposed_wait") if axis != "pp")
    yield "exposed_transfer", "pp"


def _collectives() -> Iterator[tuple[str, str]]:
    return ((axis, operation) for axis in AXES for operation in OPERATIONS)


def _gauges(ranks: range) -> Iterator[tuple[SeriesKey, float]]:
    for rank in ranks:
        yield series_key(catalogue.LAST_STEP, rank), 17_279
        yield series_key(catalogue.STEP_DURATION, rank), 5.0123456 + rank / 1e6
        for measure in ("allocated", "reserved", "peak allocated"):
            yield series_key(catalogue.MEMORY, rank, measure), 7.1e10 + rank
    for metric, value in ((catalogue.MFU, 0.4123), (catalogue.MFU_PAPER, 0.4312), (catalogue.HFU, 0.4523)):
        yield series_key(metric), value
    for name in ("loss", "grad_norm", "lr"):
        yield series_key(catalogue.LOGGED, name), 1.2345678
    yield series_key(catalogue.BUBBLE, 3), 0.0812
    yield series_key(catalogue.BUBBLE_THEORY), 0.0789
    for part in ("schedule", "imbalance", "jitter"):
        yield series_key(catalogue.BUBBLE_PART, 3, part), 0.0271
    for axis, operation in _collectives():
        yield series_key(catalogue.BUS_BANDWIDTH, axis, operation), 3.1e11


def _histograms(ranks: range) -> Iterator[tuple[SeriesKey, Histogram]]:
    labels = {"step": "17279", "rank": str(ranks[0])}
    examples = {at: Exemplar(value=1.0, labels=labels, wall_ns=NOW_NS) for at in (4, 5, 6)}
    yield series_key(catalogue.STEP_TIMES), _histogram(len(catalogue.STEP_TIMES.buckets), examples)
    for axis, operation in _collectives():
        yield (
            series_key(catalogue.COLLECTIVE_TIMES, axis, operation),
            _histogram(len(catalogue.COLLECTIVE_TIMES.buckets), {}),
        )


def _histogram(bounds: int, examples: dict[int, Exemplar]) -> Histogram:
    return Histogram(counts=tuple(range(1000, 1001 + bounds)), sum_ns=86_400 * 10**9, examples=examples)


def _hardware(node: int) -> dict[SeriesKey, float]:
    values: dict[SeriesKey, float] = {}
    for rank in range(node * RANKS, (node + 1) * RANKS):
        gpu = (rank, f"GPU-00000000-0000-0000-0000-{rank:012}")
        gauges = {catalogue.GPU_POWER: 612.5, catalogue.GPU_CLOCK: 1.755e9, catalogue.GPU_TEMPERATURE: 61.0}
        values |= {series_key(metric, *gpu): value for metric, value in gauges.items()}
        values |= {series_key(catalogue.GPU_ECC, *gpu, kind): 0.0 for kind in ("corrected", "uncorrected")}
        values[series_key(catalogue.GPU_NVLINK, *gpu)] = 0.0
    return values


def _info() -> RunInfo:
    return RunInfo(
        id="6d37660b-2949-44c7-b923-9a4f0f709993",
        world_size=NODES * RANKS,
        mesh=AXES,
        started_wall_ns=0,
        versions={"torch": "2.13.0", "traincope": "0.1.0"},
        command="train.py",
        settings={},
    )


def _status(rank: int, node: int) -> RankStatus:
    coords = {axis: rank % size for axis, size in AXES.items()}
    info = RankInfo(
        coord=RankCoord(rank=rank, coords=coords),
        host=Host(name=f"node-{node:04}", boot_id="boot"),
        pid=rank,
        started_wall_ns=0,
        ended_wall_ns=None,
        ending=None,
        probes={},
        recorder={},
        device={"name": "NVIDIA H100 80GB HBM3", "count": RANKS},
    )
    return RankStatus(
        rank=rank,
        info=info,
        state=RankState.ALIVE,
        last_record_ns=NOW_NS,
        last_record_wall_ns=NOW_NS,
        num_records=10**8,
        num_dropped=0,
    )


def _moment() -> Moment:
    return Moment(monotonic_ns=NOW_NS + 10**9, wall_ns=NOW_NS, cpu_ns=10**11)


if __name__ == "__main__":
    main()
