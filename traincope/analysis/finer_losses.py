"""Losses by what causes them, finer than the ledger's terms: a class of kernels, a pair of axes, a stage, a rank.

Beside them what the job lost outside of its steps. They may overlap: a rank that others wait for can be late because
of its experts, and a checkpoint between two steps is the job's and no step's. So they are compared and never added up.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from traincope.analysis.analyze import Analysis
from traincope.analysis.bubble import StageBubble
from traincope.analysis.findings import FindingKind
from traincope.analysis.told import positive
from traincope.analysis.work import TOLD_DTYPE

RATED = "forward and backward"
"""What the ledger's kernel inefficiency is of."""


class Scope(StrEnum):
    """In which time a loss lies."""

    STEPS = "steps"
    """The counted steps, as the ledger's terms."""
    TRACES = "traces"
    """The steps of which kernels were traced."""
    JOB = "job"
    """All attempts, as goodput."""


class LossKind(StrEnum):
    """The value is what JSON says."""

    KERNEL_INEFFICIENCY = "kernel_inefficiency"
    REDUNDANT = "redundant"
    """FLOPs that the model did not need, at peak."""
    EXPERT_PADDING = "expert_padding"
    """Of those: rows of experts that no token took."""
    OVERLAP_SLOWDOWN = "overlap_slowdown"
    CONTENTION = "contention"
    UNEVEN_MESSAGES = "uneven_messages"
    HOT_EXPERT = "hot_expert"
    CAUSED_WAIT = "caused_wait"
    BUBBLE_SCHEDULE = "bubble.schedule"
    BUBBLE_IMBALANCE = "bubble.imbalance"
    BUBBLE_JITTER = "bubble.jitter"
    LOST_STEPS = "lost_steps"
    STARTUP = "startup"
    RESTART = "restart"
    CHECKPOINT_STALL = "checkpoint_stall"
    EVALUATION = "evaluation"
    OUTSIDE_STEPS = "outside_steps"
    """Between steps, and in those that were not completed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinerLoss:
    """One cause."""

    kind: LossKind
    of: str
    """Which class, axes, stage or rank; empty: there is one such loss."""
    scope: Scope
    ns: int
    """Over all ranks; negative where it was a gain."""


Found = Iterator[tuple[LossKind, str, float | None]]
"""Kind, of what, and ns; None where it is not known."""


def finer_losses(analysis: Analysis) -> tuple[FinerLoss, ...]:
    """The largest first; what is not known, or took no time, is left out."""
    sources = (
        (Scope.STEPS, _below_peak(analysis)),
        (Scope.STEPS, _communication(analysis)),
        (Scope.STEPS, _experts(analysis)),
        (Scope.STEPS, _stages(analysis)),
        (Scope.STEPS, _ranks(analysis)),
        (Scope.TRACES, _kernels(analysis)),
        (Scope.JOB, _job(analysis)),
    )
    losses = (
        FinerLoss(kind=kind, of=of, scope=scope, ns=round(ns))
        for scope, found in sources
        for kind, of, ns in found
        if ns
    )
    return tuple(sorted(losses, key=lambda loss: -loss.ns))


def _below_peak(analysis: Analysis) -> Found:
    shares = analysis.utilization.ratios.waterfall
    for kind in (LossKind.KERNEL_INEFFICIENCY, LossKind.REDUNDANT):
        ratio = None if shares is None else shares[kind]
        yield kind, RATED, None if ratio is None else ratio * analysis.ledger.wall_ns


def _communication(analysis: Analysis) -> Found:
    for row in analysis.comm:
        name = f"{row.axis} {row.operation}"
        if row.uneven is not None:
            yield LossKind.UNEVEN_MESSAGES, name, row.uneven.cost_ns
        for beside in row.contention:
            yield LossKind.CONTENTION, f"{name} beside {beside.axis}", beside.extra_ns


def _experts(analysis: Analysis) -> Found:
    yield LossKind.EXPERT_PADDING, "", _padding_ns(analysis)
    yield from _hot_experts(analysis)


def _padding_ns(analysis: Analysis) -> float | None:
    """Rows, each with what a token's would take forward and backward, at peak; recomputed ones count once."""
    ledger, settings, peak = analysis.ledger, analysis.timeline.run.info.settings, analysis.utilization.peak
    row_flops = positive(settings.get("flops_per_routed_token"))
    peak_flops = None if peak is None else peak.flops.get(str(settings.get("flops_dtype") or TOLD_DTYPE))
    if analysis.experts is None or row_flops is None or peak_flops is None:
        return None
    steps = ledger.rank_steps / len(ledger.ranks)
    return 1e9 * steps * analysis.experts.padding * row_flops / peak_flops


def _hot_experts(analysis: Analysis) -> Found:
    """What others wait for them, and their longer messages."""
    for finding in analysis.verdict:
        if finding.kind is FindingKind.HOT_EXPERT:
            ratio = finding.estimated_gain_ratio
            ns = None if ratio is None else ratio * analysis.ledger.wall_ns
            yield LossKind.HOT_EXPERT, _named("rank", finding.ranks), ns


def _stages(analysis: Analysis) -> Found:
    for stage in analysis.bubble.stages if analysis.bubble else ():
        name = _named("stage", (stage.stage, *stage.others))
        yield from ((kind, name, ns) for kind, ns in _bubble(stage))


def _bubble(stage: StageBubble) -> Iterator[tuple[LossKind, int]]:
    yield LossKind.BUBBLE_SCHEDULE, stage.schedule_ns
    yield LossKind.BUBBLE_IMBALANCE, stage.imbalance_ns
    yield LossKind.BUBBLE_JITTER, stage.jitter_ns


def _ranks(analysis: Analysis) -> Found:
    for rank in analysis.stragglers.ranks:
        yield LossKind.CAUSED_WAIT, f"rank {rank.rank}", rank.caused_wait_ns


def _kernels(analysis: Analysis) -> Found:
    found = analysis.kernels
    if found is None:
        return
    for one in found.classes:
        yield LossKind.KERNEL_INEFFICIENCY, one.name, one.inefficiency_ns
    yield LossKind.OVERLAP_SLOWDOWN, "", None if found.overlap is None else found.overlap.slowdown_ns


def _job(analysis: Analysis) -> Found:
    """A rank's times, on all of them."""
    job = analysis.goodput
    if job is None or job.num_ranks is None:
        return
    parts = (
        (LossKind.LOST_STEPS, job.lost_ns),
        (LossKind.STARTUP, job.startup_ns),
        (LossKind.RESTART, job.restart_ns),
        (LossKind.CHECKPOINT_STALL, job.checkpoint_stall_ns),
        (LossKind.EVALUATION, job.evaluation_ns),
        (LossKind.OUTSIDE_STEPS, job.other_ns),
    )
    for kind, ns in parts:
        yield kind, "", None if ns is None else ns * job.num_ranks


def _named(noun: str, numbers: tuple[int, ...]) -> str:
    return f"{noun}{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
