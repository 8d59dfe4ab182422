"""Findings about stragglers, and about hosts, racks and rails of them. The advice follows the cause."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from traincope.analysis.attribution.terms import UNATTRIBUTED
from traincope.analysis.efficiency.samples import gpu_samples
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.stragglers.patterns import Pattern, Shape
from traincope.analysis.stragglers.slow_groups import GroupKind, SlowGroup
from traincope.analysis.stragglers.stragglers import Straggler, Stragglers
from traincope.analysis.verdict.findings import Finding, FindingKind, Weighted, percent, with_gain
from traincope.analysis.verdict.losses.host_losses import HOST_LOSSES
from traincope.timeline import Timeline

CLOCK = "SM clock"
SLOW_CLOCK = 0.95
"""Clock of a GPU relative to that of the other ranks' GPUs below which it is slow."""
MAX_TERMS = 2
"""Terms that a finding shows; JSON has all."""

CAUSES = {
    "data_wait": (
        "it waits for its data",
        "Compare that rank's data shard, file system and number of DataLoader workers with the other ranks'.",
    ),
    "gc": ("it collects garbage", HOST_LOSSES["gc"][1]),
    "checkpoint_stall": ("it saves or loads checkpoints", HOST_LOSSES["checkpoint_stall"][1]),
    "compile": ("it compiles", HOST_LOSSES["compile"][1]),
    UNATTRIBUTED: (
        "no probe covers what it does",
        "Wrap work that only this rank does (data, logging, metrics) in traincope.span(), and stop other jobs on its "
        "host.",
    ),
}
"""Ledger term of a straggler's longer work -> (what the rank does, advice). Other terms are compute."""
UNKNOWN_WORK = (
    "Look for work that only this rank does in that phase (hooks, logging, longer inputs), for other processes on its "
    "cores, and for slower clocks of its GPU (nvidia-smi -q)."
)
SLOW_CLOCKS = "Check power and cooling of that GPU (nvidia-smi -q), and replace it if its clocks stay low."
LACKS_CORE = (
    "Find what else runs on its cores (`pidstat -t 1` on its host). Give each rank cores of its own, and no more "
    "threads than cores (OMP_NUM_THREADS)."
)
LACKS_MEMORY = (
    "Free memory on its host (`free -h`): its pages come back from a disk. Also look at data that is read through mmap."
)
GROUPS = {
    GroupKind.HOST: "Compare that host with the others: other processes, power, cooling, file system and network.",
    GroupKind.RACK: "Look for what the hosts of that rack share: power, cooling, file system and switch.",
    GroupKind.RAIL: "Look for what these ranks share on all hosts: the slot of their GPU, its NUMA node and switch.",
}


def slow_clocks(timeline: Timeline, faults: Sequence[Fault]) -> Mapping[int, str]:
    """Rank -> evidence that its GPU's clocks were slow: a reason by NVML, or a clock below the others'."""
    samples = {each.rank: float(median(each.values)) for each in gpu_samples(timeline) if each.name == CLOCK}
    usual = median(samples.values()) if samples else 0.0
    slower = {
        rank: f"its GPU's clock is {clock:,.0f} MHz, the median of the ranks {usual:,.0f} MHz"
        for rank, clock in samples.items()
        if clock < SLOW_CLOCK * usual
    }
    throttled = {fault.ranks[0]: fault.what for fault in faults if fault.kind is FaultKind.THROTTLED}
    return slower | throttled


def straggler_findings(stragglers: Stragglers, clocks: Mapping[int, str]) -> Weighted:
    """One finding for each group of stragglers, and for each straggler in none. `clocks`: evidence of slow clocks."""
    named = {straggler.rank: straggler for straggler in stragglers.named}
    grouped = set()
    for group in stragglers.groups:
        members = [named[rank] for rank in group.ranks if rank in named]
        if members:
            grouped |= {member.rank for member in members}
            latest = max(members, key=lambda member: member.late_ns)
            yield latest.caused_share, _group_finding(group, latest, joint=len(named) > len(members))
    for rank, straggler in named.items():
        if rank not in grouped:
            yield straggler.caused_share, _finding(straggler, clocks.get(rank), joint=len(named) > 1)


def _finding(straggler: Straggler, clocks: str | None, *, joint: bool) -> Finding:
    does, advice = CAUSES.get(straggler.cause, ("", UNKNOWN_WORK if clocks is None else SLOW_CLOCKS))
    if straggler.lacks_core:
        advice = LACKS_CORE
    elif straggler.lacks_memory:
        advice = LACKS_MEMORY
    return Finding(
        kind=FindingKind.STRAGGLER,
        ranks=(straggler.rank,),
        confidence=straggler.confidence,
        evidence="; ".join(filter(None, (_late(straggler), longer(straggler), does, _host(straggler), clocks))),
        advice=_with_gain(advice, straggler, joint=joint),
        estimated_gain_ratio=straggler.gain_ratio,
    )


def _host(straggler: Straggler) -> str:
    """Return what the kernel counted, if that explains the lateness."""
    usage = straggler.usage
    if usage is not None and straggler.lacks_core:
        return (
            f"its thread waits {usage.core_wait_ns / 1e6:.1f} ms a step for a core, "
            f"the others' {usage.peers_core_wait_ns / 1e6:.1f} ms"
        )
    if usage is not None and straggler.lacks_memory:
        return (
            f"its thread waits for {usage.major_faults:,.0f} pages a step from a disk, "
            f"the others' for {usage.peers_major_faults:,.0f}"
        )
    return ""


def _group_finding(group: SlowGroup, latest: Straggler, *, joint: bool) -> Finding:
    name = f"local rank {group.name} of every host" if group.kind is GroupKind.RAIL else f"{group.kind} {group.name}"
    of = "all" if len(group.ranks) == group.size else f"{len(group.ranks)} of {group.size}"
    return Finding(
        kind=FindingKind.STRAGGLER,
        ranks=group.ranks,
        confidence=latest.confidence,
        evidence=f"{name} is slow: {of} of its ranks are late step after step; the latest: {_late(latest)}; "
        f"{longer(latest)}",
        advice=_with_gain(GROUPS[group.kind], latest, joint=joint),
        estimated_gain_ratio=latest.gain_ratio,
    )


def _with_gain(advice: str, straggler: Straggler, *, joint: bool) -> str:
    if not joint:
        return with_gain(advice, straggler.gain_ratio)
    return (
        f"{advice} Together with the other stragglers, this saves an estimated {percent(straggler.gain_ratio)} of step "
        "time."
    )


def _late(straggler: Straggler) -> str:
    late = f"rank {straggler.rank} is late step after step, by {straggler.late_ns / 1e6:.1f} ms on average"
    if straggler.caused_share < straggler.gain_ratio / 2:  # a later rank hides it
        return late
    return f"{late}: the ranks that wait for it lose {percent(straggler.caused_share)} of step time"


def longer(straggler: Straggler) -> str:
    """Return `forward takes 20.9 ms on rank 1, 10.9 ms on the others, since step 20`."""
    first, *others = straggler.terms[:MAX_TERMS]
    terms = [
        f"{first.term} takes {first.own_ns / 1e6:.1f} ms on rank {straggler.rank}, "
        f"{first.peers_ns / 1e6:.1f} ms on the others",
        *(f"{term.term} {term.own_ns / 1e6:.1f} and {term.peers_ns / 1e6:.1f} ms" for term in others),
    ]
    return ", ".join([*terms, *when(straggler.pattern)])


def when(pattern: Pattern) -> Iterator[str]:
    """Yield in which steps a rank is late; nothing for all steps."""
    if pattern.shape is Shape.PERIODIC:
        yield f"every {pattern.period_steps} steps"
    if pattern.shape is Shape.IRREGULAR:
        yield f"in {pattern.late_steps} single steps"
    if pattern.growth_ns_per_100_steps is not None:
        yield f"growing by {pattern.growth_ns_per_100_steps / 1e6:.1f} ms per 100 steps"
    if pattern.first_step is not None:
        yield f"since step {pattern.first_step}"
    if pattern.last_step is not None:
        yield f"up to step {pattern.last_step}"
