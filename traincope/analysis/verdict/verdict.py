"""The verdict: faults first, then losses by estimated gain x confidence, or that the run is healthy."""

from collections.abc import Sequence

from traincope.analysis.attribution.terms import COMPUTE, is_part
from traincope.analysis.communication.axis_operations import AxisOperation
from traincope.analysis.communication.call_sites import RankCalls
from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.efficiency.experts import ExpertLoads
from traincope.analysis.efficiency.utilization import Ratios
from traincope.analysis.faults.anomalies.apart import ranks_apart
from traincope.analysis.faults.anomalies.corruption import StateChecks
from traincope.analysis.faults.anomalies.data_order import DataOrder
from traincope.analysis.faults.anomalies.fed_data import FedData
from traincope.analysis.faults.anomalies.late_backwards import late_backwards
from traincope.analysis.faults.anomalies.learning_rates import different_rates
from traincope.analysis.faults.anomalies.left_out_updates import left_out_updates
from traincope.analysis.faults.anomalies.outside_units import never_equal, outside_units
from traincope.analysis.faults.anomalies.stale_rollouts import stale_rollouts
from traincope.analysis.faults.anomalies.unreduced import unreduced_gradients
from traincope.analysis.faults.faults import Fault
from traincope.analysis.faults.hangs.hang import Hang
from traincope.analysis.faults.lost_hosts import hung_before, lost_hosts
from traincope.analysis.faults.shortages import OutOfMemory
from traincope.analysis.faults.slow_code import SampledWindow
from traincope.analysis.faults.stream import causes
from traincope.analysis.kernels.gpu_partition import GpuPartition
from traincope.analysis.kernels.kernels import Kernels
from traincope.analysis.kernels.unfused import Unfused
from traincope.analysis.ledger.host_shortages import HostShortage
from traincope.analysis.ledger.ledger import Ledger
from traincope.analysis.ledger.run_ahead import RunAhead
from traincope.analysis.memory.census import GrownTensors
from traincope.analysis.memory.snapshots import RankSnapshot
from traincope.analysis.memory.uses import MemoryUse
from traincope.analysis.pipeline.bubble import Bubble
from traincope.analysis.reliability.reliability import Reliability
from traincope.analysis.replaying.prices import Prices
from traincope.analysis.stragglers.roots import Root
from traincope.analysis.stragglers.slowdown import Slowdown
from traincope.analysis.stragglers.stragglers import Stragglers
from traincope.analysis.verdict.bad_state import (
    added_after_reduction,
    bad_state,
    left_out,
    never_the_same,
    outside_of_units,
    parts_apart,
    unequal_rates,
    unreduced,
)
from traincope.analysis.verdict.changed_steps import changed_steps
from traincope.analysis.verdict.checkpoint_cadence import checkpoint_cadence, lost_by_restarts
from traincope.analysis.verdict.data_findings import data_findings, rollout_findings
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, ordered, percent
from traincope.analysis.verdict.hang_findings import ended_stops, hang_findings
from traincope.analysis.verdict.losses.host_losses import python_work
from traincope.analysis.verdict.losses.kernel_losses import kernels_below_peak, unfused_kernels
from traincope.analysis.verdict.losses.slowdowns import slowdown_findings, stretch_findings
from traincope.analysis.verdict.losses.verdict_costs import cost_findings
from traincope.analysis.verdict.lost_connections import lost_host_findings
from traincope.analysis.verdict.memory_findings import memory_growth, snapshot_findings
from traincope.analysis.verdict.rank_failures import rank_failures
from traincope.analysis.verdict.slow_spells import spell_findings
from traincope.analysis.verdict.traced_gpus import (
    partly_unclassified,
    traced_gpus,
    unclassified_kernels,
    untraced_gpus,
)
from traincope.store.job.hang_notices import StopState
from traincope.timeline import Timeline
from traincope.units import count


def verdict(
    timeline: Timeline,
    ledger: Ledger,
    bubble: Bubble | None,
    comm: tuple[AxisOperation, ...],
    stragglers: Stragglers,
    roots: tuple[Root, ...] = (),
    *,
    faults: Sequence[Fault] = (),
    shortages: Sequence[HostShortage] = (),
    hangs: Sequence[Hang] = (),
    memory: Sequence[MemoryUse] = (),
    state: StateChecks | None = None,
    grown: Sequence[GrownTensors] = (),
    out_of_memory: Sequence[OutOfMemory] = (),
    snapshots: Sequence[RankSnapshot] = (),
    experts: ExpertLoads | None = None,
    gpus: Sequence[GpuPartition] = (),
    ahead: RunAhead | None = None,
    ratios: Ratios | None = None,
    kernels: Kernels | None = None,
    unfused: Unfused | None = None,
    slowdown: Slowdown | None = None,
    prices: Prices | None = None,
    reliability: Reliability | None = None,
    windows: Sequence[SampledWindow] = (),
    calls: Sequence[RankCalls] = (),
    order: DataOrder | None = None,
    fed: FedData | None = None,
) -> tuple[Finding, ...]:
    """Ordered findings, the most important first; never empty. All arguments are of the same timeline.

    Imported traces without steps are judged by `gpus` alone, imported snapshots of memory by `snapshots`.
    """
    over = [hang for hang in hangs if hang.state is StopState.OVER]
    hangs = [hang for hang in hangs if hang.state is not StopState.OVER]
    unexplained = [hang for hang in hangs if not any(causes(fault, hang) for fault in faults)]
    lost, hung = lost_host_findings(timeline, faults, hangs), hang_findings(timeline, unexplained, faults)
    findings = in_order_of_cause(tuple(lost), tuple(hung), hung_before=hung_before(lost_hosts(timeline), hangs))
    findings += rank_failures(timeline, faults, hangs, out_of_memory)
    findings += bad_state(timeline, faults, state)
    drifting = outside_units(timeline, calls)
    findings += unreduced(unreduced_gradients(timeline, calls)) if drifting is None else outside_of_units(drifting)
    findings += parts_apart(ranks_apart(timeline))
    findings += never_the_same(never_equal(timeline, calls))
    findings += added_after_reduction(late_backwards(timeline))
    findings += left_out(left_out_updates(timeline))
    findings += data_findings(timeline, order, fed)
    findings += rollout_findings(stale_rollouts(timeline))
    findings += unequal_rates(different_rates(timeline))  # also a consequence of a rank that resumes from another step
    findings += ended_stops(timeline, over)
    if timeline.run.logbook is not None:
        return (_only_a_logbook(reliability),)
    if timeline.run.info.imported and not ledger.wall_ns:
        traced = traced_gpus(timeline, gpus, kernels) if gpus or not snapshots else ()
        return ordered([*findings, *traced, *snapshot_findings(snapshots)])
    running = any(finding.kind == FindingKind.RUNNING for finding in findings)
    if not ledger.wall_ns:
        return ordered(findings if running else [*findings, _no_steps()])
    prices = Prices(ledger=ledger) if prices is None else prices
    findings += untraced_gpus(timeline)
    findings += unclassified_kernels(timeline, kernels)
    findings += cost_findings(
        timeline,
        ledger,
        bubble,
        comm,
        stragglers,
        prices,
        roots,
        experts,
        ahead,
        faults=faults,
        shortages=shortages,
        windows=windows,
        calls=calls,
    )
    if ratios is not None and (ahead is not None or gpus):
        findings += kernels_below_peak(ratios, kernels, by_marks=ahead is not None)
    findings += unfused_kernels(unfused)
    findings += slowdown_findings(slowdown)
    findings += stretch_findings(slowdown)
    findings += changed_steps(timeline, ledger)
    findings += lost_by_restarts(timeline)
    findings += checkpoint_cadence(reliability)
    findings += memory_growth(memory, grown)
    real_faults = [fault for fault in faults if fault.is_fault]
    if len(findings) == running:
        healthy = _healthy(ledger, partly_unclassified(timeline, kernels))
        findings.append(_faults_only(real_faults) if real_faults else python_work(timeline, ledger) or healthy)
    else:
        late = {straggler.rank for straggler in stragglers.named}
        stretches = () if slowdown is None else slowdown.stretches
        findings += spell_findings(timeline, ledger, late=late, stretches=stretches)
    return ordered(findings)


def in_order_of_cause(lost: Sequence[Finding], hung: Sequence[Finding], *, hung_before: bool = False) -> list[Finding]:
    """Order findings about lost hosts and hangs: a lost host explains a hang, unless the hang's cause is certain.

    `hung_before`: the cause of the hang was known before a host was lost.
    """
    certain = hung_before or any(finding.confidence == HIGH for finding in hung[:1])
    causes = [finding for finding in lost if finding.confidence != UNKNOWN and not certain]
    return [*causes, *hung, *(finding for finding in lost if finding not in causes)]


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


def _only_a_logbook(reliability: Reliability | None) -> Finding:
    number = 0 if reliability is None else reliability.num_interruptions
    evidence = "a list of runs and interruptions was imported, so nothing is known about single steps"
    if reliability is not None and reliability.causes:
        first = reliability.causes[0]
        most = f"{first.cause.replace('_', ' ')} ({percent(first.ratio)})"
        evidence = f"{count(number, 'interruption')}, the most common cause: {most}"
    return Finding(kind=FindingKind.INTERRUPTIONS, confidence=MEDIUM, evidence=evidence, advice="")


def _no_steps() -> Finding:
    return Finding(
        kind=FindingKind.NO_STEPS,
        confidence=UNKNOWN,
        evidence="no complete training step was recorded, so the use of time is unknown",
        advice="Run at least two steps. If the recorder does not detect steps, call run.step() once per iteration.",
    )


def _healthy(ledger: Ledger, but: str) -> Finding:
    compute = sum(ledger.share(term) or 0.0 for term in COMPUTE)
    parts = [f"{percent(ratio)} is {term}" for term in ledger.order if is_part(term) and (ratio := ledger.share(term))]
    time = ", ".join([f"{percent(compute)} of step time is compute", *parts])
    return Finding(
        kind=FindingKind.HEALTHY,
        confidence=MEDIUM,
        evidence=f"{time}, and no loss reaches {percent(MIN_SHARE)}{but}",
        advice="",
    )
