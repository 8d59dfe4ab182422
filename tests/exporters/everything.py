"""Samples of a job that has at least one value of every metric in the catalogue."""

from dataclasses import replace

import numpy as np

from tests.live.sample_table import HOST
from tests.live.windows import MS, RankState, Record, ranks, records, scalar, statuses, window
from tests.timeline.build import action
from traincope.analysis import Bubble, Fault, FaultKind, StageBubble
from traincope.analysis.attribution.stalls import AmbiguousWait
from traincope.analysis.attribution.terms import BUBBLE
from traincope.analysis.context import Context
from traincope.events import Kind, Phase
from traincope.live.metrics.samples import Moment, samples
from traincope.live.metrics.series import SeriesKey, series_key
from traincope.live.metrics.state import begin
from traincope.live.window import Window
from traincope.metrics import catalogue
from traincope.metrics.sample import Sample
from traincope.store import Attempt
from traincope.timeline import Timeline
from traincope.timeline.timeline import Marks

GPU = ("0", "GPU-1")
INTERRUPTED = Attempt(
    number=-1,
    began_ns=-1000 * MS,
    first_step_ns=None,
    last_ns=-500 * MS,
    num_steps=0,
    steps_ns=0,
    kept_steps=None,
    kept_ns=0,
    loaded=False,
    checkpoint_stall_ns=0,
    evaluation_ns=0,
    endings={0: "ValueError"},
)
"""An attempt before the current one, which failed before its first step."""


def everything(**logged: float) -> list[Sample]:
    """`logged`: additional values of `run.log()`."""
    return samples(
        begin(busy_window(**logged), earlier=(INTERRUPTED,)),
        host=HOST,
        moment=Moment(monotonic_ns=10**9, wall_ns=10**9, cpu_ns=1),
        hardware=hardware(),
    )


def busy_window(**logged: float) -> Window:
    more = [
        Record(kind=Kind.SPAN, start_ns=110 * MS, end_ns=125 * MS, name="layers.0", phase=Phase.FORWARD, step=1),
        action("F", 110 * MS, 112 * MS, stage=0, microbatch=0, at=1),
        Record(kind=Kind.EVENT, start_ns=150 * MS, end_ns=150 * MS, name="gpu xid", group=1, step=1),
        *(scalar(name, value, 1, at=1) for name, value in logged.items()),
    ]
    rank_records = ranks(0, 1, 2, more=more, level=2)
    rank_records[0] = replace(rank_records[0], details={1: {"xid": 79, "gpu": "GPU-1"}})
    states = (statuses(rank_records, last_ns=300 * MS)[0], statuses(rank_records, state=RankState.ENDED)[1])
    result = window(
        records(rank_records), states=states, faults=(_fault(FaultKind.XID, 150), _fault(FaultKind.CHECKPOINT, 160))
    )
    assert result.analysis is not None
    stage = StageBubble(
        stage=0, slowest=0, ranks=(0,), schedule_ns=20 * MS, imbalance_ns=-5 * MS, jitter_ns=MS, wall_ns=200 * MS
    )
    bubble = Bubble(
        schedule="1f1b", num_stages=2, num_microbatches=4, stages=(stage,), theory_ratio=0.2, replay_ratio=0.2
    )
    used, ledger = result.analysis.utilization, result.analysis.ledger
    work = {number: replace(rank, paper=rank.model, executed=rank.model) for number, rank in used.work.ranks.items()}
    utilization = replace(used, work=replace(used.work, ranks=work))
    parts = {term: np.full(3, ns) for term, ns in zip(BUBBLE, (20 * MS, -5 * MS, MS), strict=True)}
    first = replace(
        ledger.ranks[0],
        terms={**ledger.ranks[0].terms, **parts},
        ambiguous_waits={("fsdp", AmbiguousWait.RECORDS_MISSING): np.full(3, 4 * MS)},
    )
    ledger = replace(ledger, ranks=(first, *ledger.ranks[1:]))
    return replace(
        result,
        analysis=replace(
            result.analysis,
            context=Context(result.analysis.timeline, part=_with_marks(result.analysis.timeline)),
            bubble=bubble,
            utilization=utilization,
            ledger=ledger,
        ),
    )


def _with_marks(timeline: Timeline) -> Timeline:
    """Mark the begin of step 1 on rank 0, 2 ms ahead."""
    first, *others = timeline.ranks
    one = np.array([1])
    marks = Marks(step=one, phase=0 * one, at_ns=one * 100 * MS, ahead_ns=one * 2 * MS, collectives=first.main[:0])
    return replace(timeline, ranks=(replace(first, marks=marks), *others))


def _fault(kind: FaultKind, at_ms: int) -> Fault:
    what = "save checkpoint" if kind is FaultKind.CHECKPOINT else "XID 79: GPU has fallen off the bus"
    return Fault(kind=kind, at_ns=at_ms * MS, ranks=(0,), step=1, what=what, lasted_ns=0)


def hardware() -> dict[SeriesKey, float]:
    return {
        series_key(catalogue.GPU_POWER, *GPU): 612.5,
        series_key(catalogue.GPU_ENERGY, GPU[1]): 5e9,
        series_key(catalogue.GPU_CLOCK, *GPU): 1.755e9,
        series_key(catalogue.GPU_TEMPERATURE, *GPU): 61,
        series_key(catalogue.GPU_THROTTLED, *GPU, "hardware slowdown"): 1,
        series_key(catalogue.GPU_ECC, *GPU, "corrected"): 3,
        series_key(catalogue.GPU_NVLINK, *GPU): 0,
        series_key(catalogue.LINK_TRAFFIC, "mlx5_0/1", "sent"): 4e12,
        series_key(catalogue.LINK_ERRORS, "mlx5_0/1", "packet_seq_err"): 12,
        series_key(catalogue.LINK_UP, "mlx5_0/1"): 1,
        series_key(catalogue.LINK_SPEED, "mlx5_0/1"): 5e10,
        series_key(catalogue.SLOT_WIDTH, "0000:1a:00.0", "mlx5_0"): 0.5,
    }
