"""Losses by cause of a run whose every part is known."""

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
    Goodput,
    Kernels,
    LayerLoad,
    LossKind,
    LossPart,
    MessageImbalance,
    Scope,
    loss_breakdown,
    price_of,
    rank_hours,
)
from traincope.analysis.context import Context
from traincope.analysis.efficiency.peaks import Peak
from traincope.analysis.efficiency.utilization import Ratios
from traincope.analysis.kernels.kernel_classes import Family
from traincope.analysis.kernels.kernels import Source
from traincope.analysis.kernels.overlap import Overlap
from traincope.analysis.kernels.time_at_peak import Rated
from traincope.store import Attempt

HOUR_NS = 3_600_000_000_000
CLEAN = {0: "clean", 1: "clean"}


def bare() -> Analysis:
    """The example's 600 ms, without its bubble and without waiting."""
    result = analysis()
    return replace(result, bubble=None, stragglers=replace(result.stragglers, ranks=(), named=()))


def losses_of(result: Analysis) -> list[tuple[str, str, str, int]]:
    return [(loss.kind.value, loss.subject, loss.scope.value, loss.ns) for loss in loss_breakdown(result)]


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
    """100 s, 60 of them in steps; 10 of these were lost."""
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


def operation(
    *, message_imbalance: MessageImbalance | None = None, contention: tuple[Contention, ...] = ()
) -> AxisOperation:
    return replace(
        analysis().comm[0],
        axis="ep",
        operation="all_to_all",
        message_imbalance=message_imbalance,
        contention=contention,
    )


def test_stages_and_ranks_are_listed_largest_first_without_zeros() -> None:
    result = analysis()
    assert result.bubble is not None
    late = replace(result.bubble.stages[1], stage=1, others=(3,), schedule_ns=70 * MS, imbalance_ns=0)
    result = replace(result, bubble=replace(result.bubble, stages=(result.bubble.stages[0], late)))
    assert losses_of(result) == [
        ("bubble.schedule", "stages 1, 3", "steps", 70 * MS),
        ("bubble.schedule", "stage 0", "steps", 60 * MS),
        ("straggler_wait", "rank 1", "steps", 15 * MS),
        ("bubble.imbalance", "stage 0", "steps", 12 * MS),
        ("bubble.jitter", "stage 0", "steps", -3 * MS),
        ("bubble.jitter", "stages 1, 3", "steps", -3 * MS),
    ]


def test_losses_of_the_job_count_for_each_rank() -> None:
    """The goodput has the times of one of the two ranks."""
    result = replace(bare(), goodput=job(attempt(0, endings={0: None, 1: None}), attempt(1, endings=CLEAN)))
    assert losses_of(result) == [
        ("restart", "", "job", 40_000 * MS),
        ("lost_steps", "", "job", 20_000 * MS),
        ("checkpoint_stall", "", "job", 16_000 * MS),
        ("outside_steps", "", "job", 14_000 * MS),
        ("startup", "", "job", 10_000 * MS),
    ]


def test_different_attempts_and_unknown_lost_steps_have_no_rank_hours() -> None:
    assert losses_of(replace(bare(), goodput=job(attempt(0, endings={0: None}), attempt(1, endings=CLEAN)))) == []
    unknown = replace(job(attempt(0, endings=CLEAN)), steps_lost=None, lost_ns=None)
    assert "lost_steps" not in {kind for kind, *_ in losses_of(replace(bare(), goodput=unknown))}


def test_contention_and_message_imbalance_are_by_axis_and_operation() -> None:
    row = operation(
        message_imbalance=MessageImbalance(ranks=(1,), ratio=1.5, cost_ns=4 * MS),
        contention=(
            Contention(axis="fsdp", count=8, compared=6, extra_ns=6 * MS),
            Contention(axis="pp", count=3, compared=0, extra_ns=None),
        ),
    )
    assert losses_of(replace(bare(), comm=(row,))) == [
        ("contention", "ep all_to_all during fsdp", "steps", 6 * MS),
        ("message_imbalance", "ep all_to_all", "steps", 4 * MS),
    ]


def test_kernels_are_by_class_in_the_scope_of_traces() -> None:
    """Products took 50, at peak 30. A class without a rate has no loss."""
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
        overlap=Overlap(num_beside=3, beside_ns=9 * MS, num_compared=3, compared_ns=9 * MS, difference_ns=3 * MS),
    )
    assert losses_of(replace(bare(), kernels=kernels)) == [
        ("kernel_inefficiency", "gemm", "traces", 20 * MS),
        ("overlap_slowdown", "", "traces", 3 * MS),
    ]


def test_below_peak_is_a_share_of_the_counted_steps() -> None:
    """25 % and 5 % of 600 ms."""
    result = bare()
    waterfall = {"ideal": 0.4, "redundant_compute": 0.05, "kernel_inefficiency": 0.25}
    rated = replace(result.utilization, ratios=Ratios(mfu=0.4, waterfall=waterfall))
    assert losses_of(replace(result, utilization=rated)) == [
        ("kernel_inefficiency", "forward and backward", "steps", 150 * MS),
        ("redundant_compute", "forward and backward", "steps", 30 * MS),
    ]


def mixture(*, peak: Peak | None, **settings: object) -> Analysis:
    """20 rows of padding in each of the 3 counted steps."""
    result = bare()
    run = replace(result.timeline.run, info=replace(result.timeline.run.info, settings=settings))
    loads = ExpertLoads(layers=(LayerLoad(layer=0, tokens=(40, 40)),), padding=20, dropped=0)
    return replace(
        result,
        context=Context(replace(result.timeline, run=run)),
        utilization=replace(result.utilization, peak=peak, experts=loads),
    )


def test_padding_costs_the_time_of_its_rows_at_peak() -> None:
    """3 steps of 20 rows of 1e6 FLOPs at 1e12 a second: 60 us."""
    peak = Peak(device="test", flops={"bfloat16": 1e12, "float32": 1e11}, source="by hand")
    assert losses_of(mixture(peak=peak, flops_per_routed_token=1e6)) == [("expert_padding", "", "steps", 60_000)]
    slower = mixture(peak=peak, flops_per_routed_token=1e6, flops_dtype="float32")
    assert losses_of(slower) == [("expert_padding", "", "steps", 600_000)]
    assert losses_of(mixture(peak=peak)) == losses_of(mixture(peak=None, flops_per_routed_token=1e6)) == []


def test_hot_experts_cost_their_findings_gain() -> None:
    hot = Finding(
        kind=FindingKind.HOT_EXPERT, ranks=(1, 3), confidence="high", evidence="", advice="", estimated_gain_ratio=0.225
    )
    assert losses_of(replace(bare(), verdict=(hot,))) == [("hot_expert", "ranks 1, 3", "steps", 135 * MS)]


def test_two_ranks_for_half_an_hour_are_one_rank_hour_and_its_price() -> None:
    loss = LossPart(kind=LossKind.RESTART, subject="", scope=Scope.JOB, ns=2 * HOUR_NS // 2)
    assert rank_hours(loss.ns) == 1.0
    assert price_of(1.5, price_per_gpu_hour=2.5) == pytest.approx(3.75)
    assert price_of(None, price_per_gpu_hour=2.5) is price_of(1.5, price_per_gpu_hour=None) is None
