"""The verdict: deaths first, then what costs most; or that all is well."""

from collections.abc import Sequence

from traincope.analysis.bubble import Bubble
from traincope.analysis.comm import AxisOperation
from traincope.analysis.deaths import deaths
from traincope.analysis.experts import ExpertLoads
from traincope.analysis.faults import Fault
from traincope.analysis.findings import MEDIUM, UNKNOWN, WORTH_SAYING, Finding, FindingKind, percent
from traincope.analysis.gpu_partition import GpuPartition
from traincope.analysis.ledger import Ledger
from traincope.analysis.losses import losses
from traincope.analysis.memory import MemoryUse
from traincope.analysis.roots import Root
from traincope.analysis.stragglers import Stragglers
from traincope.analysis.terms import COMPUTE
from traincope.analysis.traced_gpus import traced_gpus
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
    memory: Sequence[MemoryUse] = (),
    experts: ExpertLoads | None = None,
    gpus: Sequence[GpuPartition] = (),
) -> tuple[Finding, ...]:
    """Ordered findings, the gravest first; never empty. What follows `faults` is of the same timeline.

    Of imported traces `gpus` is all that is known.
    """
    found = list(deaths(timeline, faults))
    if timeline.run.info.imported:
        return (*found, *traced_gpus(gpus))
    if not ledger.wall_ns:
        return (*found, _no_steps())
    found += losses(ledger, bubble, comm, stragglers, roots, experts)
    found += _growth([use for use in memory if use.leak])
    told = [fault for fault in faults if fault.is_fault]
    return tuple(found) or (_beside_time(told) if told else _healthy(ledger),)


def _growth(leaks: Sequence[MemoryUse]) -> list[Finding]:
    """One finding for all ranks, by the one that grows fastest."""
    if not leaks:
        return []
    worst = max(leaks, key=lambda use: use.growth_bytes_per_step or 0.0)
    evidence = (
        f"{worst.measure} memory grows steadily, on rank {worst.rank} by "
        f"{(worst.growth_bytes_per_step or 0.0) / 1024:.1f} KiB a step to {worst.last_bytes / 2**20:.0f} MiB"
    )
    return [
        Finding(
            kind=FindingKind.MEMORY_GROWTH,
            ranks=tuple(sorted({use.rank for use in leaks})),
            confidence=MEDIUM,
            evidence=evidence,
            advice="look for tensors kept from step to step: losses that are summed without .item(), lists, caches",
        )
    ]


def _beside_time(faults: Sequence[Fault]) -> Finding:
    """A run whose loss is NaN is not healthy, however well its time is spent."""
    first = faults[0]
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    return Finding(
        kind=FindingKind.FAULTS,
        ranks=first.ranks,
        steps=() if first.step is None else (first.step,),
        confidence=first.confidence,
        evidence=f"no loss of time takes {percent(WORTH_SAYING)} of a step, but there are faults: {first.what}{more}",
        advice="",
    )


def _no_steps() -> Finding:
    return Finding(
        kind=FindingKind.NO_STEPS,
        confidence=UNKNOWN,
        evidence="no complete training step was recorded, so there is nothing to say about time",
        advice="let it run for at least two steps; call run.step() once an iteration if steps are not found",
    )


def _healthy(ledger: Ledger) -> Finding:
    compute = sum(ledger.share(term) or 0.0 for term in COMPUTE)
    return Finding(
        kind=FindingKind.HEALTHY,
        confidence=MEDIUM,
        evidence=f"{percent(compute)} of a step is compute, and no loss takes {percent(WORTH_SAYING)} of it",
        advice="",
    )
