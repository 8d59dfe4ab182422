"""Findings about stragglers, and about hosts, racks and rails of them. The advice follows the cause."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import numpy as np

from traincope.analysis.attribution.terms import BUBBLE
from traincope.analysis.confidence import MEDIUM
from traincope.analysis.efficiency.samples import gpu_samples
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.faults.slow_code import SampledWindow, SlowCode
from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.analysis.stragglers.patterns import Pattern, Shape
from traincope.analysis.stragglers.slow_groups import GroupKind, SlowGroup, place_name
from traincope.analysis.stragglers.stragglers import Straggler, odds
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, Weighted, percent, with_gain
from traincope.analysis.verdict.losses.late_causes import OWN_CODE, SHARE, Evidence, late_cause, where
from traincope.analysis.verdict.losses.slow_links import ADVICE, shown
from traincope.arrays import Bools
from traincope.timeline import Timeline

CLOCK = "SM clock"
SLOW_CLOCK = 0.95
"""Clock of a GPU relative to that of the other ranks' GPUs below which it is slow."""
MAX_TERMS = 2
"""Terms that a finding shows; JSON has all."""

GROUPS = {
    GroupKind.HOST: "Compare that host with the others: other processes, power, cooling, file system and network.",
    GroupKind.RACK: "Look for what the hosts of that rack share: power, cooling, file system and switch.",
    GroupKind.NVLINK: "Look for what the hosts of that NVLink domain share: its switches, power and cooling.",
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


def straggler_findings(evidence: Evidence) -> Weighted:
    """One finding for each group of stragglers, and for each straggler in none."""
    stragglers = evidence.stragglers
    named = {straggler.rank: straggler for straggler in stragglers.named}
    grouped = set()
    for group in stragglers.groups:
        members = [named[rank] for rank in group.ranks if rank in named]
        if members:
            grouped |= {member.rank for member in members}
            latest = max(members, key=lambda member: member.late_ns)
            yield latest.caused_share, _group_finding(group, latest, evidence, joint=len(named) > len(members))
    for rank, straggler in named.items():
        if rank not in grouped:
            yield straggler.caused_share, _finding(straggler, evidence, joint=len(named) > 1)


def sampled_findings(evidence: Evidence, ledger: Ledger) -> Weighted:
    """One finding for each rank that is not named, but whose samples show work that its peers do not do.

    The samples of a window are significant by themselves, also where few steps have detail. The gain is that in the
    window's steps.
    """
    named = {straggler.rank for straggler in evidence.stragglers.named}
    lines: dict[int, tuple[SampledWindow, SlowCode]] = {}
    for window in (window for window in evidence.windows if not window.early):
        for line in window.slow:
            if line.rank not in named and line.is_its_own and _is_awaited(ledger, window, line):
                lines.setdefault(line.rank, (window, line))
    for rank, (window, line) in lines.items():
        share = min((line.ns - line.peers_ns) / _mean_wall_ns(ledger, window), 1.0)
        if share >= MIN_SHARE:
            yield (
                share,
                Finding(
                    kind=FindingKind.STRAGGLER,
                    ranks=(rank,),
                    confidence=MEDIUM,
                    evidence=(
                        f"in steps {window.first_step} to {window.last_step} the others wait for rank {rank}, which "
                        f"does work that they do not do: {where(line)}"
                    ),
                    advice=with_gain(OWN_CODE, share),
                    estimated_gain_ratio=share,
                ),
            )


def _is_awaited(ledger: Ledger, window: SampledWindow, line: SlowCode) -> bool:
    """Return whether the other ranks communicate longer in the window than this one, by half of the line's excess."""
    waits_ns = {
        rank.rank: float(np.mean(rank.waits_inside_ns[rows]))
        + sum(float(np.mean(ns[rows])) for term, ns in rank.terms.items() if ns is not None and _is_wait(term))
        for rank in ledger.ranks
        if (rows := _rows(rank, window)).any()
    }
    others = [ns for rank, ns in waits_ns.items() if rank != line.rank]
    return (
        line.rank in waits_ns
        and bool(others)
        and median(others) - waits_ns[line.rank] >= SHARE * (line.ns - line.peers_ns)
    )


def _is_wait(term: str) -> bool:
    return term.startswith(("exposed_wait[", "exposed_transfer[")) or term in BUBBLE


def _mean_wall_ns(ledger: Ledger, window: SampledWindow) -> float:
    return float(np.mean([rank.wall_ns[rows].mean() for rank in ledger.ranks if (rows := _rows(rank, window)).any()]))


def _rows(rank: RankLedger, window: SampledWindow) -> Bools:
    chosen: Bools = (rank.numbers >= window.first_step) & (rank.numbers <= window.last_step)
    return chosen


def _finding(straggler: Straggler, evidence: Evidence, *, joint: bool) -> Finding:
    cause = late_cause(straggler, evidence)
    return Finding(
        kind=FindingKind.STRAGGLER,
        ranks=(straggler.rank,),
        confidence=straggler.confidence,
        evidence="; ".join(filter(None, (_late(straggler), longer(straggler), cause.evidence))),
        advice=_with_gain(cause.advice, straggler, joint=joint),
        estimated_gain_ratio=straggler.gain_ratio,
    )


def _group_finding(group: SlowGroup, latest: Straggler, evidence: Evidence, *, joint: bool) -> Finding:
    links = evidence.links.of_ranks(group.ranks, peers=evidence.peers(latest.rank))
    name = place_name(group.kind, group.name)
    of = "all" if len(group.ranks) == group.size else f"{len(group.ranks)} of {group.size}"
    return Finding(
        kind=FindingKind.STRAGGLER,
        ranks=group.ranks,
        confidence=latest.confidence,
        evidence=f"{name} is slow: {of} of its ranks are late step after step; the latest: {_late(latest)}; "
        f"{longer(latest)}" + (f"; {shown(links)}" if links else ""),
        advice=_with_gain(f"{ADVICE[links[0].kind]}." if links else GROUPS[group.kind], latest, joint=joint),
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
    how = "step after step" if straggler.chance is None else f"with {odds(straggler)}"
    late = f"rank {straggler.rank} is late {how}, by {straggler.late_ns / 1e6:.1f} ms on average"
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
