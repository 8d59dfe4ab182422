"""Maximum number of series per rank. Cardinality is the cost of a Prometheus over 10,000 ranks."""

from dataclasses import replace

from tests.live.sample_table import SampleTable, sample_table
from tests.live.windows import MS, ranks, records, window
from tests.timeline.build import Row as Record
from tests.timeline.build import action
from traincope.analysis import Fault, FaultKind
from traincope.analysis.attribution.terms import (
    BUBBLE,
    COMPUTE,
    OTHER_COMPUTE,
    UNATTRIBUTED,
    exposed_transfer,
    exposed_wait,
)
from traincope.events import Kind, Phase
from traincope.live.metrics.folding import folded
from traincope.live.metrics.samples import Moment, samples
from traincope.live.metrics.series import SeriesKey, series_key
from traincope.live.metrics.state import begin
from traincope.live.window import Window
from traincope.metrics import catalogue
from traincope.metrics.catalogue import MAX_FOLDED_PER_RANK, MAX_SERIES_PER_RANK
from traincope.metrics.metric import Fold
from traincope.store.side_tables.rows import Row

AXES = ("pp", "dp_replicate", "fsdp", "cp", "tp", "ep")
SEEN_BY_A_HOST = ("data_wait", "checkpoint_stall", "gc", "compile", "sync", UNATTRIBUTED)
PAIRS = tuple(f"group:{other},9" for other in range(9))
"""Unnamed groups."""
TERMS = (
    *(term for term in COMPUTE if term != OTHER_COMPUTE),
    *(term(axis) for axis in AXES for term in (exposed_transfer, exposed_wait) if (term, axis) != (exposed_wait, "pp")),
    *BUBBLE,
    *SEEN_BY_A_HOST,
)
"""All terms of a step on six axes, on the clock of a host: the live rows stand on it."""
AT = Moment(monotonic_ns=10**12, wall_ns=10**18, cpu_ns=0)
GPU = ("0", "GPU-00000000-0000-0000-0000-000000000001")


def widest(*more: Record, level: int = 1) -> Window:
    """Every term has time, each rank has three measures of memory (each step has one), and there is a fault."""
    measures = [
        Record(kind=Kind.MEMORY, start_ns=1, end_ns=1, name=name, value=1, step=1)
        for name in ("allocated", "peak allocated")
    ]
    rank_records = ranks(0, 1, more=[*measures, *more], level=level)
    result = window(records(rank_records))
    row = Row(
        rank=0, step=1, start_ns=0, wall_ns=MS * len(TERMS), own_ns=1, anomalous=False, terms=dict.fromkeys(TERMS, MS)
    )
    spike = Fault(kind=FaultKind.SPIKE, at_ns=1, ranks=(0,), what="loss jumps to 9")
    return replace(result, rows=(row,), faults=(spike,))


def hardware() -> dict[SeriesKey, float]:
    gauges = (catalogue.GPU_POWER, catalogue.GPU_CLOCK, catalogue.GPU_TEMPERATURE, catalogue.GPU_NVLINK)
    return {
        **{series_key(metric, *GPU): 1.0 for metric in gauges},
        **{series_key(catalogue.GPU_ECC, *GPU, kind): 0.0 for kind in ("corrected", "uncorrected")},
        series_key(catalogue.GPU_THROTTLED, *GPU, "hardware slowdown"): 1.0,
        series_key(catalogue.GPU_ENERGY, GPU[1]): 1.0,
    }


def counted(result: SampleTable) -> int:
    return len(result.of_rank(0))


def test_by_default_a_rank_on_six_axes_and_a_gpu_has_at_most_10_series() -> None:
    """Eight, and one each for the reason of throttling and the kind of fault that occurred."""
    listed = samples(begin(widest()), host="node-3", moment=AT, hardware=hardware())
    of_rank = [sample for sample in folded(listed) if sample.metric.per_rank and sample.labels[2] == "0"]
    assert len(of_rank) == MAX_FOLDED_PER_RANK == 10
    assert sum(sample.metric in (catalogue.GPU_THROTTLED, catalogue.FAULTS) for sample in of_rank) == 2


def test_folded_series_are_sums_and_extremes_over_the_ranks_of_the_node() -> None:
    both = {
        **hardware(),
        series_key(catalogue.GPU_CLOCK, "1", "GPU-2"): 0.5,
        series_key(catalogue.GPU_POWER, "1", "GPU-2"): 3.0,
        series_key(catalogue.GPU_POWER, "2", "GPU-2"): 3.0,  # two ranks share this GPU
    }
    every = samples(begin(widest()), host="node-3", moment=AT, hardware=both)
    values = {(sample.metric.name, sample.labels[2:]): sample.value for sample in folded(every)}
    assert values[catalogue.GPU_CLOCK.name, ("", "")] == 0.5
    assert values[catalogue.GPU_POWER.name, ("", "")] == 4.0
    rows_of = [sample for sample in every if sample.metric is catalogue.LEDGER]
    for term in {sample.labels[3:] for sample in rows_of}:
        expected = sum(float(sample.value) for sample in rows_of if sample.labels[3:] == term)  # type: ignore[arg-type]
        assert values[catalogue.LEDGER.name, ("", *term)] == expected
    unfolded = [sample for sample in every if sample.metric.fold is None]
    assert [sample for sample in folded(every) if sample.metric.fold is None] == unfolded
    names = {sample.metric.name for sample in folded(every)}
    assert not names & {metric.name for metric in catalogue.CATALOGUE if metric.fold is Fold.OMIT}


def test_the_energy_counters_of_a_node_are_not_added() -> None:
    """A sum over 1, 8, then 3 GPUs would read as a growth of the counters and as a reset."""
    both = {series_key(catalogue.GPU_ENERGY, "GPU-1"): 5e9, series_key(catalogue.GPU_ENERGY, "GPU-2"): 7e9}
    every = folded(samples(begin(widest()), host="node-3", moment=AT, hardware=both))
    energies = {sample.labels[2:]: sample.value for sample in every if sample.metric is catalogue.GPU_ENERGY}
    assert energies == {("GPU-1",): 5e9, ("GPU-2",): 7e9}


def test_a_rank_on_six_axes_and_a_gpu_has_at_most_40_series() -> None:
    actions = [action(kind, MS, 2 * MS, stage=0, microbatch=0, at=1) for kind in "FB"]
    result = sample_table(begin(widest(*actions)), hardware=hardware())
    terms = {labels[1:] for labels in result.of(catalogue.LEDGER) if labels[0] == "0"}
    assert len(terms) == 4 + 11 + 1 + 6
    assert counted(result) == MAX_SERIES_PER_RANK[1] == 40


def test_any_number_of_unnamed_groups_adds_two_series() -> None:
    result = widest()
    (row,) = result.rows
    terms = {**row.terms, **{term(pair): MS for pair in PAIRS for term in (exposed_transfer, exposed_wait)}}
    wall_ns = MS * len(terms)
    named, more = (
        sample_table(begin(replace(result, rows=(chosen,))))
        for chosen in (row, replace(row, terms=terms, wall_ns=wall_ns))
    )
    assert counted(more) - counted(named) == 2
    assert more.of(catalogue.LEDGER)["0", "exposed_wait", "other"] == len(PAIRS) * MS / 1e9


def test_at_level_2_a_rank_has_at_most_150_series() -> None:
    modules = [
        Record(kind=Kind.SPAN, start_ns=MS + at, end_ns=2 * MS, name=f"layers.{at}", phase=Phase.FORWARD, step=1)
        for at in range(500)
    ]
    actions = [action(kind, MS, 2 * MS, stage=stage, microbatch=0, at=1) for kind in "FIW" for stage in (0, 3)]
    result = sample_table(begin(widest(*modules, *actions, level=2)), hardware=hardware())
    assert len(result.of(catalogue.MODULE_TIME)) == 97
    assert sum(result.of(catalogue.MODULE_TIME).values()) == sum(MS - at for at in range(500)) / 1e9
    assert counted(result) <= MAX_SERIES_PER_RANK[2] == 150
