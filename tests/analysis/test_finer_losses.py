"""Losses by cause: sums over ranks by hand, of a run of which every part is known."""

from dataclasses import replace

import pytest

from tests.report.example import MS, START_NS, analysis
from traincope.analysis import (
    Analysis,
    AxisOperation,
    ClassTime,
    Contention,
    ExpertLoads,
    Finding,
    FindingKind,
    FinerLoss,
    Goodput,
    Kernels,
    LayerLoad,
    LossKind,
    Scope,
    Uneven,
    finer_losses,
    price_of,
    rank_hours,
)
from traincope.analysis.kernel_classes import Family
from traincope.analysis.kernels import Source
from traincope.analysis.overlap import Overlap
from traincope.analysis.peaks import Peak
from traincope.analysis.products import Rated
from traincope.analysis.utilization import Ratios
from traincope.store import Attempt

HOUR_NS = 3_600_000_000_000
CLEAN = {0: "clean", 1: "clean"}


def bare() -> Analysis:
    """The example's 600 ms, without its bubble and without waiting."""
    found = analysis()
    return replace(found, bubble=None, stragglers=replace(found.stragglers, ranks=(), named=()))


def told(found: Analysis) -> list[tuple[str, str, str, int]]:
    return [(loss.kind.value, loss.of, loss.scope.value, loss.ns) for loss in finer_losses(found)]


def attempt(number: int, *, endings: dict[int, str | None]) -> Attempt:
    return Attempt(
        number=number,
        began_ns=START_NS,
        first_step_ns=START_NS,
        last_ns=START_NS,
        num_steps=1,
        steps_ns=0,
        kept_steps=None,
        kept_ns=0,
        loaded=False,
        checkpoint_stall_ns=0,
        evaluation_ns=0,
        endings=endings,
    )


def job(*attempts: Attempt) -> Goodput:
    """Of 100 s: 60 in steps, of which 10 were lost."""
    return Goodput(
        attempts=attempts,
        elapsed_ns=100_000 * MS,
        steps_done=6,
        steps_ns=60_000 * MS,
        steps_lost=1,
        lost_ns=10_000 * MS,
        reason=None,
        startup_ns=5_000 * MS,
        restart_ns=20_000 * MS,
        checkpoint_stall_ns=8_000 * MS,
        evaluation_ns=0,
        other_ns=7_000 * MS,
    )


def operation(*, uneven: Uneven | None = None, beside: tuple[Contention, ...] = ()) -> AxisOperation:
    return replace(analysis().comm[0], axis="ep", operation="all_to_all", uneven=uneven, contention=beside)


def test_stages_and_ranks_are_told_apart_the_largest_first_and_what_took_nothing_is_left_out() -> None:
    found = analysis()
    assert found.bubble is not None
    late = replace(found.bubble.stages[1], stage=1, others=(3,), schedule_ns=70 * MS, imbalance_ns=0)
    found = replace(found, bubble=replace(found.bubble, stages=(found.bubble.stages[0], late)))
    assert told(found) == [
        ("bubble.schedule", "stages 1, 3", "steps", 70 * MS),
        ("bubble.schedule", "stage 0", "steps", 60 * MS),
        ("caused_wait", "rank 1", "steps", 15 * MS),
        ("bubble.imbalance", "stage 0", "steps", 12 * MS),
        ("bubble.jitter", "stage 0", "steps", -3 * MS),
        ("bubble.jitter", "stages 1, 3", "steps", -3 * MS),
    ]


def test_what_the_job_lost_counts_for_each_of_its_ranks() -> None:
    """Its times are those of one rank, of two."""
    found = replace(bare(), goodput=job(attempt(0, endings={0: None, 1: None}), attempt(1, endings=CLEAN)))
    assert told(found) == [
        ("restart", "", "job", 40_000 * MS),
        ("lost_steps", "", "job", 20_000 * MS),
        ("checkpoint_stall", "", "job", 16_000 * MS),
        ("outside_steps", "", "job", 14_000 * MS),
        ("startup", "", "job", 10_000 * MS),
    ]


def test_attempts_of_different_size_have_no_rank_hours_and_lost_steps_that_nobody_knows_neither() -> None:
    assert told(replace(bare(), goodput=job(attempt(0, endings={0: None}), attempt(1, endings=CLEAN)))) == []
    unknown = replace(job(attempt(0, endings=CLEAN)), steps_lost=None, lost_ns=None)
    assert "lost_steps" not in {kind for kind, *_ in told(replace(bare(), goodput=unknown))}


def test_contention_and_uneven_messages_are_by_axis_and_operation() -> None:
    row = operation(
        uneven=Uneven(ranks=(1,), ratio=1.5, cost_ns=4 * MS),
        beside=(
            Contention(axis="fsdp", count=8, compared=6, extra_ns=6 * MS),
            Contention(axis="pp", count=3, compared=0, extra_ns=None),
        ),
    )
    assert told(replace(bare(), comm=(row,))) == [
        ("contention", "ep all_to_all beside fsdp", "steps", 6 * MS),
        ("uneven_messages", "ep all_to_all", "steps", 4 * MS),
    ]


def test_kernels_are_by_class_and_say_that_they_are_of_traces() -> None:
    """Products took 50 of which 30 at peak; what is not rated has no loss."""
    gemm = ClassTime(
        name="gemm",
        family=Family.COMPUTE,
        count=2,
        total_ns=60 * MS,
        fused_ns=0,
        rated=Rated(took_ns=50 * MS, ideal_ns=30.0 * MS),
    )
    kernels = Kernels(
        source=Source.DEVICE,
        ranks=(0,),
        steps=(3,),
        num_traces=1,
        classes=(gemm, replace(gemm, name="norm", rated=None)),
        longest=(),
        overlap=Overlap(beside_ns=9 * MS, compared_ns=9 * MS, slowdown_ns=3 * MS),
    )
    assert told(replace(bare(), kernels=kernels)) == [
        ("kernel_inefficiency", "gemm", "traces", 20 * MS),
        ("overlap_slowdown", "", "traces", 3 * MS),
    ]


def test_below_peak_is_a_share_of_the_counted_steps() -> None:
    """Of 600 ms 25 % and 5 %."""
    found = bare()
    waterfall = {"ideal": 0.4, "redundant": 0.05, "kernel_inefficiency": 0.25}
    rated = replace(found.utilization, ratios=Ratios(mfu=0.4, waterfall=waterfall))
    assert told(replace(found, utilization=rated)) == [
        ("kernel_inefficiency", "forward and backward", "steps", 150 * MS),
        ("redundant", "forward and backward", "steps", 30 * MS),
    ]


def mixture(*, peak: Peak | None, **settings: object) -> Analysis:
    """20 rows of padding in each of the 3 counted steps."""
    found = bare()
    run = replace(found.timeline.run, info=replace(found.timeline.run.info, settings=settings))
    loads = ExpertLoads(layers=(LayerLoad(layer=0, tokens=(40, 40)),), padding=20, dropped=0)
    return replace(
        found,
        timeline=replace(found.timeline, run=run),
        utilization=replace(found.utilization, peak=peak),
        experts=loads,
    )


def test_padding_costs_what_its_rows_take_at_peak() -> None:
    """3 steps of 20 rows of 1e6 FLOPs at 1e12 a second: 60 us."""
    peak = Peak(device="test", flops={"bfloat16": 1e12, "float32": 1e11}, source="by hand")
    assert told(mixture(peak=peak, flops_per_routed_token=1e6)) == [("expert_padding", "", "steps", 60_000)]
    slower = mixture(peak=peak, flops_per_routed_token=1e6, flops_dtype="float32")
    assert told(slower) == [("expert_padding", "", "steps", 600_000)]
    assert told(mixture(peak=peak)) == told(mixture(peak=None, flops_per_routed_token=1e6)) == []


def test_hot_experts_cost_what_their_finding_says_that_evening_them_out_saves() -> None:
    hot = Finding(
        kind=FindingKind.HOT_EXPERT, ranks=(1, 3), confidence="high", evidence="", advice="", estimated_gain_ratio=0.225
    )
    assert told(replace(bare(), verdict=(hot,))) == [("hot_expert", "ranks 1, 3", "steps", 135 * MS)]


def test_two_ranks_for_half_an_hour_are_one_rank_hour_and_its_price() -> None:
    loss = FinerLoss(kind=LossKind.RESTART, of="", scope=Scope.JOB, ns=2 * HOUR_NS // 2)
    assert rank_hours(loss.ns) == 1.0
    assert price_of(1.5, price_per_gpu_hour=2.5) == pytest.approx(3.75)
    assert price_of(None, price_per_gpu_hour=2.5) is price_of(1.5, price_per_gpu_hour=None) is None
