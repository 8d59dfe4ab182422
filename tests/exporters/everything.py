"""A job in which everything happened: of every metric of the catalogue there is a sample."""

from dataclasses import replace

from tests.live.told import HOST
from tests.live.windows import MS, RankState, Record, ranks, records, scalar, statuses, window
from tests.timeline.build import action
from traincope import metrics
from traincope.analysis import Bubble, Fault, FaultKind, StageBubble
from traincope.events import Kind, Phase
from traincope.live.samples import Moment, samples
from traincope.live.series import Series, series
from traincope.live.state import begin
from traincope.live.window import Window
from traincope.metrics import Sample

GPU = ("0", "GPU-1")


def everything(**logged: float) -> list[Sample]:
    """`logged`: further values of `run.log()`."""
    return samples(
        begin(busy_window(**logged)),
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
    made = ranks(0, 1, 2, more=more, level=2)
    made[0] = replace(made[0], details={1: {"xid": 79, "gpu": "GPU-1"}})
    states = (statuses(made, last_ns=300 * MS)[0], statuses(made, state=RankState.ENDED)[1])
    found = window(records(made), states=states, faults=(_fault(FaultKind.XID, 150), _fault(FaultKind.CHECKPOINT, 160)))
    assert found.analysis is not None
    stage = StageBubble(
        stage=0, slowest=0, ranks=(0,), schedule_ns=20 * MS, imbalance_ns=-5 * MS, jitter_ns=MS, wall_ns=200 * MS
    )
    bubble = Bubble(
        schedule="1f1b", num_stages=2, num_microbatches=4, stages=(stage,), theory_ratio=0.2, replay_ratio=0.2
    )
    ratios = replace(found.analysis.utilization.ratios, mfu_paper=0.11, hfu=0.12)
    utilization = replace(found.analysis.utilization, ratios=ratios)
    return replace(found, analysis=replace(found.analysis, bubble=bubble, utilization=utilization))


def _fault(kind: FaultKind, at_ms: int) -> Fault:
    what = "save checkpoint" if kind is FaultKind.CHECKPOINT else "XID 79: GPU has fallen off the bus"
    return Fault(kind=kind, at_ns=at_ms * MS, ranks=(0,), step=1, what=what, lasted_ns=0)


def hardware() -> dict[Series, float]:
    return {
        series(metrics.GPU_POWER, *GPU): 612.5,
        series(metrics.GPU_CLOCK, *GPU): 1.755e9,
        series(metrics.GPU_TEMPERATURE, *GPU): 61,
        series(metrics.GPU_THROTTLED, *GPU, "hardware slowdown"): 1,
        series(metrics.GPU_ECC, *GPU, "corrected"): 3,
        series(metrics.GPU_NVLINK, *GPU): 0,
    }
