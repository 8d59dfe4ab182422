"""The verdict: faults first, then losses by estimated gain x confidence, or that the run is healthy."""

from collections.abc import Sequence

from traincope.analysis.attribution.terms import COMPUTE
from traincope.analysis.communication.axis_operations import AxisOperation
from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.efficiency.experts import ExpertLoads
from traincope.analysis.faults.anomalies.corruption import StateChecks
from traincope.analysis.faults.anomalies.memory import MemoryUse
from traincope.analysis.faults.faults import Fault
from traincope.analysis.faults.hangs.hang import Hang
from traincope.analysis.kernels.gpu_partition import GpuPartition
from traincope.analysis.kernels.unfused import Unfused
from traincope.analysis.ledger.ledger import Ledger
from traincope.analysis.ledger.run_ahead import RunAhead
from traincope.analysis.pipeline.bubble import Bubble
from traincope.analysis.stragglers.roots import Root
from traincope.analysis.stragglers.slowdown import Slowdown
from traincope.analysis.stragglers.stragglers import Stragglers
from traincope.analysis.verdict.bad_state import bad_state
from traincope.analysis.verdict.changed_steps import changed_steps
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, ordered, percent
from traincope.analysis.verdict.hang_findings import hang_findings
from traincope.analysis.verdict.losses.slowdowns import slowdown_findings
from traincope.analysis.verdict.losses.unfused_kernels import unfused_kernels
from traincope.analysis.verdict.losses.verdict_costs import cost_findings
from traincope.analysis.verdict.lost_connections import lost_host_findings
from traincope.analysis.verdict.rank_failures import rank_failures
from traincope.analysis.verdict.traced_gpus import traced_gpus
from traincope.timeline import Timeline


def verdict(
    timeline: Timeline,
    ledger: Ledger,
    bubble: Bubble | None,
    comm: tuple[AxisOperation, ...],
    stragglers: Stragglers,
    roots: tuple[Root, ...] = (),
    *,
    faults: Sequence[Fault] = (),
    hangs: Sequence[Hang] = (),
    memory: Sequence[MemoryUse] = (),
    state: StateChecks | None = None,
    experts: ExpertLoads | None = None,
    gpus: Sequence[GpuPartition] = (),
    ahead: RunAhead | None = None,
    unfused: Unfused | None = None,
    slowdown: Slowdown | None = None,
) -> tuple[Finding, ...]:
    """Ordered findings, the most important first; never empty. All arguments are of the same timeline.

    Imported traces without steps are judged by `gpus` alone.
    """
    lost, hung = lost_host_findings(timeline, faults, hangs), hang_findings(timeline, hangs, faults)
    findings = [*in_order_of_cause(tuple(lost), tuple(hung)), *rank_failures(timeline, faults, hangs)]
    findings += bad_state(timeline, faults, state)
    if timeline.run.info.imported and not ledger.wall_ns:
        return ordered([*findings, *traced_gpus(gpus)])
    if not ledger.wall_ns:
        return ordered([*findings, _no_steps()])
    findings += cost_findings(ledger, bubble, comm, stragglers, roots, experts, ahead)
    findings += unfused_kernels(unfused)
    findings += slowdown_findings(slowdown)
    findings += changed_steps(timeline, ledger)
    findings += _memory_growth([use for use in memory if use.leak])
    real_faults = [fault for fault in faults if fault.is_fault]
    return ordered(findings) or (_faults_only(real_faults) if real_faults else _healthy(ledger),)


def in_order_of_cause(lost: Sequence[Finding], hung: Sequence[Finding]) -> list[Finding]:
    """Order findings about lost hosts and hangs: a lost host explains a hang, unless the hang's cause is certain."""
    certain = any(finding.confidence == HIGH for finding in hung[:1])
    causes = [finding for finding in lost if finding.confidence != UNKNOWN and not certain]
    return [*causes, *hung, *(finding for finding in lost if finding not in causes)]


def _memory_growth(leaks: Sequence[MemoryUse]) -> list[Finding]:
    """One finding for all ranks, with the evidence of the one that grows fastest."""
    if not leaks:
        return []
    worst = max(leaks, key=lambda use: use.growth_bytes_per_step or 0.0)
    evidence = (
        f"{worst.measure} memory grows steadily, on rank {worst.rank} by "
        f"{(worst.growth_bytes_per_step or 0.0) / 1024:.1f} KiB per step to {worst.last_bytes / 2**20:.0f} MiB"
    )
    return [
        Finding(
            kind=FindingKind.MEMORY_GROWTH,
            ranks=tuple(sorted({use.rank for use in leaks})),
            confidence=MEDIUM,
            evidence=evidence,
            advice="Release tensors kept from step to step: sum losses with .item(), and empty lists and caches.",
        )
    ]


def _faults_only(faults: Sequence[Fault]) -> Finding:
    """Finding of a run that loses no time but has faults: a run whose loss is NaN is not healthy."""
    first = faults[0]
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    return Finding(
        kind=FindingKind.FAULTS,
        ranks=first.ranks,
        steps=() if first.step is None else (first.step,),
        confidence=first.confidence,
        evidence=f"no loss reaches {percent(MIN_SHARE)} of step time, but there are faults: {first.what}{more}",
        advice="",
    )


def _no_steps() -> Finding:
    return Finding(
        kind=FindingKind.NO_STEPS,
        confidence=UNKNOWN,
        evidence="no complete training step was recorded, so the use of time is unknown",
        advice="Run at least two steps. If the recorder does not detect steps, call run.step() once per iteration.",
    )


def _healthy(ledger: Ledger) -> Finding:
    compute = sum(ledger.share(term) or 0.0 for term in COMPUTE)
    return Finding(
        kind=FindingKind.HEALTHY,
        confidence=MEDIUM,
        evidence=f"{percent(compute)} of step time is compute, and no loss reaches {percent(MIN_SHARE)}",
        advice="",
    )
