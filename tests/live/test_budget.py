"""How many series a rank has at most: cardinality is what a Prometheus over 10,000 ranks pays for."""

from dataclasses import replace

from tests.live.told import Told, told
from tests.live.windows import MS, ranks, records, window
from tests.timeline.build import Row as Record
from tests.timeline.build import action
from traincope import metrics
from traincope.analysis import Fault, FaultKind
from traincope.analysis.terms import BUBBLE, COMPUTE, UNATTRIBUTED, exposed_transfer, exposed_wait
from traincope.events import Kind, Phase
from traincope.live.series import Series, series
from traincope.live.state import begin
from traincope.live.window import Window
from traincope.metrics import MAX_SERIES_PER_RANK
from traincope.store.rows import Row

AXES = ("pp", "dp_replicate", "fsdp", "cp", "tp", "ep")
SEEN_BY_A_HOST = ("data_wait", "checkpoint_stall", "gc", "compile", "sync", UNATTRIBUTED)
PAIRS = tuple(f"group:{other},9" for other in range(9))
"""Groups that have no name."""
TERMS = (
    *COMPUTE,
    *(term(axis) for axis in AXES for term in (exposed_transfer, exposed_wait) if (term, axis) != (exposed_wait, "pp")),
    *BUBBLE,
    *SEEN_BY_A_HOST,
)
"""All that a step on six axes can be."""
GPU = ("0", "GPU-00000000-0000-0000-0000-000000000001")


def widest(*more: Record, level: int = 1) -> Window:
    """Every term has time, on a GPU, and something went wrong."""
    measures = [
        Record(kind=Kind.MEMORY, start_ns=1, end_ns=1, name=name, value=1, step=1)
        for name in ("allocated", "reserved", "peak allocated")
    ]
    made = ranks(0, 1, more=[*measures, *more], level=level)
    found = window(records(made))
    row = Row(
        rank=0, step=1, start_ns=0, wall_ns=MS * len(TERMS), own_ns=1, anomalous=False, terms=dict.fromkeys(TERMS, MS)
    )
    memory = tuple(use for use in found.analysis.memory if use.measure != "resident") if found.analysis else ()
    spike = Fault(kind=FaultKind.SPIKE, at_ns=1, ranks=(0,), what="loss jumps to 9")
    analysis = None if found.analysis is None else replace(found.analysis, memory=memory)
    return replace(found, rows=(row,), analysis=analysis, faults=(spike,))


def hardware() -> dict[Series, float]:
    gauges = (metrics.GPU_POWER, metrics.GPU_CLOCK, metrics.GPU_TEMPERATURE, metrics.GPU_NVLINK)
    return {
        **{series(metric, *GPU): 1.0 for metric in gauges},
        **{series(metrics.GPU_ECC, *GPU, kind): 0.0 for kind in ("corrected", "uncorrected")},
        series(metrics.GPU_THROTTLED, *GPU, "hardware slowdown"): 1.0,
    }


def counted(found: Told) -> int:
    return len(found.of_rank(0))


def test_a_rank_on_six_axes_and_a_gpu_has_at_most_40_series() -> None:
    actions = [action(kind, MS, 2 * MS, stage=0, microbatch=0, at=1) for kind in "FB"]
    found = told(begin(widest(*actions)), hardware=hardware())
    terms = {labels[1:] for labels in found.of(metrics.LEDGER) if labels[0] == "0"}
    assert len(terms) == 4 + 11 + 1 + 6
    assert counted(found) == MAX_SERIES_PER_RANK[1] == 40


def test_groups_that_have_no_name_add_two_series_however_many_they_are() -> None:
    found = widest()
    (row,) = found.rows
    terms = {**row.terms, **{term(pair): MS for pair in PAIRS for term in (exposed_transfer, exposed_wait)}}
    wall_ns = MS * len(terms)
    named, more = (
        told(begin(replace(found, rows=(one,)))) for one in (row, replace(row, terms=terms, wall_ns=wall_ns))
    )
    assert counted(more) - counted(named) == 2
    assert more.of(metrics.LEDGER)["0", "exposed_wait", "other"] == len(PAIRS) * MS / 1e9


def test_at_level_2_it_has_at_most_150_however_many_modules_there_are() -> None:
    modules = [
        Record(kind=Kind.SPAN, start_ns=MS + at, end_ns=2 * MS, name=f"layers.{at}", phase=Phase.FORWARD, step=1)
        for at in range(500)
    ]
    actions = [action(kind, MS, 2 * MS, stage=stage, microbatch=0, at=1) for kind in "FIW" for stage in (0, 3)]
    found = told(begin(widest(*modules, *actions, level=2)), hardware=hardware())
    assert len(found.of(metrics.MODULE_TIME)) == 97
    assert sum(found.of(metrics.MODULE_TIME).values()) == sum(MS - at for at in range(500)) / 1e9
    assert counted(found) <= MAX_SERIES_PER_RANK[2] == 150
