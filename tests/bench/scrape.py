"""What a scrape costs at 10,000 ranks: `python -m tests.bench.scrape`.

1,250 nodes of 8 ranks, each with all that a training on six mesh axes and GPUs has to say; every node is scraped once
as a Prometheus asks: OpenMetrics, gzipped. CPU is this process', that of an agent for one scrape.
"""

import gc
import gzip
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from traincope import metrics
from traincope.live.distributions import Histogram
from traincope.live.samples import Moment, samples
from traincope.live.series import Series, series
from traincope.live.state import State
from traincope.live.window import RankState, RankStatus
from traincope.metrics import MAX_SERIES_PER_RANK, Exemplar
from traincope.store.cards import RankInfo, RunInfo
from traincope.topology import Host, RankCoord
from traincope_exporters.prometheus import Application, application

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
    """Of one node."""

    cpu_ms: float
    text_bytes: int
    sent_bytes: int
    series: int
    rank_series: int
    """Of the rank that has most."""


def main() -> None:
    """Measure and print; what was imported is frozen, as an agent does."""
    gc.collect()
    gc.freeze()
    show([scrape(node) for node in range(NODES)])


def scrape(node: int) -> Scrape:
    """One node, once."""
    state = a_state(node)
    told = samples(state, host=f"node-{node:04}", moment=_moment(), hardware=_hardware(node))
    answering = _application(state, node)
    began = time.process_time()
    (sent,) = answering(REQUEST, lambda *_: None)
    cpu_ms = 1e3 * (time.process_time() - began)
    text = gzip.decompress(sent)
    by_rank = [sample.labels[2] for sample in told if sample.metric.per_rank]
    return Scrape(
        cpu_ms=cpu_ms,
        text_bytes=len(text),
        sent_bytes=len(sent),
        series=sum(not line.startswith(b"#") for line in text.splitlines()),
        rank_series=max(by_rank.count(rank) for rank in set(by_rank)),
    )


def _application(state: State, node: int) -> Application:
    hardware = _hardware(node)
    return application(lambda: samples(state, host=f"node-{node:04}", moment=_moment(), hardware=hardware))


def show(scrapes: list[Scrape]) -> None:
    """The middle and the worst node, and all of them together."""
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
        ("series of a rank", str(most), str(MAX_SERIES_PER_RANK[1]), _judged(most, MAX_SERIES_PER_RANK[1])),
        ("series of a node", f"{median(scrape.series for scrape in scrapes):.0f}", "", ""),
        ("series of all nodes", f"{sum(scrape.series for scrape in scrapes):,}", "", ""),
        (f"samples a second at {INTERVAL_SECONDS} s", f"{per_second:,.0f}", "", ""),
        (f"network at {INTERVAL_SECONDS} s, MB/s", f"{megabytes:.2f}", "", ""),
    )
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _judged(measured: float, budget: float) -> str:
    return "within" if measured <= budget else "MISSED"


def a_state(node: int) -> State:
    """After a day of training; every rank's numbers are its own."""
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


def _counters(ranks: range) -> Iterator[tuple[Series, int]]:
    for rank in ranks:
        yield series(metrics.STEPS, rank), 17_280
        yield series(metrics.WALL, rank), 86_400 * 10**9 + rank
        yield series(metrics.CAUSED_WAIT, rank), 10**9 * rank
        for number, (term, axis) in enumerate(_terms()):
            yield series(metrics.LEDGER, rank, term, axis), 10**12 + 1_234_567 * (rank + number)
    yield series(metrics.TOKENS), 9 * 10**12
    yield series(metrics.OWN_TIME), 10**11
    for axis, operation in _collectives():
        yield series(metrics.COLLECTIVE_BYTES, axis, operation), 7 * 10**14
        yield series(metrics.COLLECTIVE_TRANSFER, axis, operation), 10**13
        yield series(metrics.COLLECTIVE_WAIT, axis, operation), 10**12


def _terms() -> Iterator[tuple[str, str]]:
    yield from ((term, "") for term in (*HOST_TERMS, "checkpoint_stall", "compile"))
    yield from ((term, axis) for axis in AXES for term in ("exposed_transfer", "exposed_wait") if axis != "pp")
    yield "exposed_transfer", "pp"


def _collectives() -> Iterator[tuple[str, str]]:
    return ((axis, operation) for axis in AXES for operation in OPERATIONS)


def _gauges(ranks: range) -> Iterator[tuple[Series, float]]:
    for rank in ranks:
        yield series(metrics.LAST_STEP, rank), 17_279
        yield series(metrics.STEP_DURATION, rank), 5.0123456 + rank / 1e6
        for measure in ("allocated", "reserved", "peak allocated"):
            yield series(metrics.MEMORY, rank, measure), 7.1e10 + rank
    for metric, value in ((metrics.MFU, 0.4123), (metrics.MFU_PAPER, 0.4312), (metrics.HFU, 0.4523)):
        yield series(metric), value
    for name in ("loss", "grad_norm", "lr"):
        yield series(metrics.LOGGED, name), 1.2345678
    yield series(metrics.BUBBLE, 3), 0.0812
    yield series(metrics.BUBBLE_THEORY), 0.0789
    for part in ("schedule", "imbalance", "jitter"):
        yield series(metrics.BUBBLE_PART, 3, part), 0.0271
    for axis, operation in _collectives():
        yield series(metrics.BUS_BANDWIDTH, axis, operation), 3.1e11


def _histograms(ranks: range) -> Iterator[tuple[Series, Histogram]]:
    labels = {"step": "17279", "rank": str(ranks[0])}
    examples = {at: Exemplar(value=1.0, labels=labels, wall_ns=NOW_NS) for at in (4, 5, 6)}
    yield series(metrics.STEP_TIMES), _histogram(len(metrics.STEP_TIMES.buckets), examples)
    for axis, operation in _collectives():
        yield series(metrics.COLLECTIVE_TIMES, axis, operation), _histogram(len(metrics.COLLECTIVE_TIMES.buckets), {})


def _histogram(bounds: int, examples: dict[int, Exemplar]) -> Histogram:
    return Histogram(counts=tuple(range(1000, 1001 + bounds)), sum_ns=86_400 * 10**9, examples=examples)


def _hardware(node: int) -> dict[Series, float]:
    told: dict[Series, float] = {}
    for rank in range(node * RANKS, (node + 1) * RANKS):
        gpu = (rank, f"GPU-00000000-0000-0000-0000-{rank:012}")
        gauges = {metrics.GPU_POWER: 612.5, metrics.GPU_CLOCK: 1.755e9, metrics.GPU_TEMPERATURE: 61.0}
        told |= {series(metric, *gpu): value for metric, value in gauges.items()}
        told |= {series(metrics.GPU_ECC, *gpu, kind): 0.0 for kind in ("corrected", "uncorrected")}
        told[series(metrics.GPU_NVLINK, *gpu)] = 0.0
    return told


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
        rank=rank, info=info, state=RankState.ALIVE, last_record_ns=NOW_NS, num_records=10**8, num_dropped=0
    )


def _moment() -> Moment:
    return Moment(monotonic_ns=NOW_NS + 10**9, wall_ns=NOW_NS, cpu_ns=10**11)


if __name__ == "__main__":
    main()
