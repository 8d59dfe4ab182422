"""Losses by cause, finer than the ledger's terms: a class of kernels, a pair of axes, a stage, a rank.

They include what the job lost outside of its steps. They may overlap: a rank that others wait for can be late because
of its experts, and a checkpoint between two steps belongs to the job but to no step. So they are compared, never added
up.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from traincope.analysis.communication.axis_operations import AxisOperation
from traincope.analysis.efficiency.declared_flops import positive
from traincope.analysis.efficiency.experts import ExpertLoads
from traincope.analysis.efficiency.goodput import Goodput
from traincope.analysis.efficiency.utilization import Utilization
from traincope.analysis.efficiency.work import DEFAULT_DTYPE
from traincope.analysis.kernels.kernels import Kernels
from traincope.analysis.ledger.ledger import Ledger
from traincope.analysis.pipeline.bubble import Bubble, StageBubble
from traincope.analysis.stragglers.stragglers import Stragglers
from traincope.analysis.verdict.findings import Finding, FindingKind
from traincope.timeline import Timeline

RATED = "forward and backward"
"""Subject of the ledger's kernel inefficiency."""


class Scope(StrEnum):
    """Time that contains a loss."""

    STEPS = "steps"
    """The counted steps, as in the ledger."""
    TRACES = "traces"
    """The steps whose kernels were traced."""
    JOB = "job"
    """All attempts, as in goodput."""


class LossKind(StrEnum):
    """Cause of a loss; the value is its name in JSON."""

    KERNEL_INEFFICIENCY = "kernel_inefficiency"
    REDUNDANT_COMPUTE = "redundant_compute"
    """FLOPs that the model does not need, at peak."""
    EXPERT_PADDING = "expert_padding"
    """Part of redundant compute: rows of experts that no token took."""
    UNFUSED_KERNELS = "unfused_kernels"
    """At most what fusion of chains of kernels saves."""
    OVERLAP_SLOWDOWN = "overlap_slowdown"
    CONTENTION = "contention"
    MESSAGE_IMBALANCE = "message_imbalance"
    HOT_EXPERT = "hot_expert"
    STRAGGLER_WAIT = "straggler_wait"
    LATE_RANK = "late_rank"
    """Exposed wait until this rank joined; wait chains are not followed, as in `straggler_wait`."""
    AWAITED_JOB = "awaited_job"
    """Wait for another job, by its role."""
    PART = "part"
    """Content of a part of the step that is not training, by its term outside of it."""
    AMBIGUOUS_WAIT = "ambiguous_wait"
    """Part of a transfer that may be wait."""
    RECORDER = "recorder"
    """The recorder's own time."""
    DATA_FED_AGAIN = "data_fed_again"
    """Steps on batches that the state had had."""
    BUBBLE_SCHEDULE = "bubble.schedule"
    BUBBLE_IMBALANCE = "bubble.imbalance"
    BUBBLE_JITTER = "bubble.jitter"
    LOST_STEPS = "lost_steps"
    ROLLED_BACK_STEPS = "rolled_back_steps"
    SKIPPED_STEPS = "skipped_steps"
    STARTUP = "startup"
    RESTART = "restart"
    CHECKPOINT_STALL = "checkpoint_stall"
    EVALUATION = "evaluation"
    OUTSIDE_STEPS = "outside_steps"
    """Time between steps, and in incomplete steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPart:
    """Loss by one cause."""

    kind: LossKind
    subject: str
    """Class, axes, stage or rank; empty if there is only one loss of the kind."""
    scope: Scope
    ns: int
    """Sum over all ranks; negative if it was a gain."""


Losses = Iterator[tuple[LossKind, str, float | None]]
"""Kind, subject, and ns; None if unknown."""


class Results(Protocol):
    """Results that losses are computed from; an `Analysis` has them all."""

    @property
    def timeline(self) -> Timeline: ...

    @property
    def ledger(self) -> Ledger: ...

    @property
    def comm(self) -> tuple[AxisOperation, ...]: ...

    @property
    def bubble(self) -> Bubble | None: ...

    @property
    def stragglers(self) -> Stragglers: ...

    @property
    def utilization(self) -> Utilization: ...

    @property
    def experts(self) -> ExpertLoads | None: ...

    @property
    def kernels(self) -> Kernels | None: ...

    @property
    def goodput(self) -> Goodput | None: ...

    @property
    def verdict(self) -> tuple[Finding, ...]: ...


def loss_breakdown(analysis: Results) -> tuple[LossPart, ...]:
    """Losses by cause, the largest first, without unknown ones and zeros.

    Losses in steps are those of the counted steps, scaled to the wall time of all steps.
    """
    larger = {Scope.STEPS: analysis.ledger.scale}
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
        LossPart(kind=kind, subject=subject, scope=scope, ns=round(larger.get(scope, 1.0) * ns))
        for scope, source in sources
        for kind, subject, ns in source
        if ns
    )
    return tuple(sorted(losses, key=lambda loss: -loss.ns))


def _below_peak(analysis: Results) -> Losses:
    shares = analysis.utilization.ratios.waterfall
    for kind in (LossKind.KERNEL_INEFFICIENCY, LossKind.REDUNDANT_COMPUTE):
        ratio = None if shares is None else shares[kind]
        yield kind, RATED, None if ratio is None else ratio * analysis.ledger.wall_ns


def _communication(analysis: Results) -> Losses:
    for row in analysis.comm:
        name = f"{row.axis} {row.operation}"
        if row.message_imbalance is not None:
            yield LossKind.MESSAGE_IMBALANCE, name, row.message_imbalance.cost_ns
        for other in row.contention:
            yield LossKind.CONTENTION, f"{name} during {other.axis}", other.extra_ns


def _experts(analysis: Results) -> Losses:
    yield LossKind.EXPERT_PADDING, "", padding_ns(analysis)
    yield from _hot_experts(analysis)


def padding_ns(analysis: Results) -> float | None:
    """Time of padding rows at peak. Each row counts with a token's forward and backward; recomputed rows count once."""
    ledger, settings, peak = analysis.ledger, analysis.timeline.run.info.settings, analysis.utilization.peak
    row_flops = positive(settings.get("flops_per_routed_token"))
    peak_flops = None if peak is None else peak.flops.get(str(settings.get("flops_dtype") or DEFAULT_DTYPE))
    if analysis.experts is None or row_flops is None or peak_flops is None:
        return None
    steps = ledger.rank_steps / len(ledger.ranks)
    return 1e9 * steps * analysis.experts.padding * row_flops / peak_flops


def _hot_experts(analysis: Results) -> Losses:
    """Time that others wait for hot experts, and their longer messages."""
    for finding in analysis.verdict:
        if finding.kind is FindingKind.HOT_EXPERT:
            ratio = finding.estimated_gain_ratio
            ns = None if ratio is None else ratio * analysis.ledger.wall_ns
            yield LossKind.HOT_EXPERT, _named("rank", finding.ranks), ns


def _stages(analysis: Results) -> Losses:
    for stage in analysis.bubble.stages if analysis.bubble else ():
        yield from stage_parts(stage)


def stage_parts(stage: StageBubble) -> Iterator[tuple[LossKind, str, int]]:
    """Kind, name of the stage, and ns of each part of its bubble."""
    name = _named("stage", (stage.stage, *stage.others))
    yield LossKind.BUBBLE_SCHEDULE, name, stage.schedule_ns
    yield LossKind.BUBBLE_IMBALANCE, name, stage.imbalance_ns
    yield LossKind.BUBBLE_JITTER, name, stage.jitter_ns


def _ranks(analysis: Results) -> Losses:
    for rank in analysis.stragglers.ranks:
        yield LossKind.STRAGGLER_WAIT, f"rank {rank.rank}", rank.straggler_wait_ns


def _kernels(analysis: Results) -> Losses:
    kernels = analysis.kernels
    if kernels is None:
        return
    for kernel_class in kernels.classes:
        yield LossKind.KERNEL_INEFFICIENCY, kernel_class.name, kernel_class.inefficiency_ns
    yield LossKind.OVERLAP_SLOWDOWN, "", None if kernels.overlap is None else kernels.overlap.slowdown_ns


def _job(analysis: Results) -> Losses:
    """Times of one rank, multiplied by the number of ranks."""
    job = analysis.goodput
    if job is None or job.num_ranks is None:
        return
    parts = (
        (LossKind.LOST_STEPS, job.lost_ns),
        (LossKind.ROLLED_BACK_STEPS, job.rolled_back_ns),
        (LossKind.SKIPPED_STEPS, job.skipped_ns),
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
