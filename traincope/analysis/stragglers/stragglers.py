"""Stragglers: the ranks that the others wait for, if the evidence is sufficient to name them.

A straggler is late step after step (`persistence`): its own work exceeds that of its peers, and its peers wait while it
does not. Its cause is the term in which its work exceeds its peers' most. A slow link makes no straggler: transfers are
no own work. Along wait chains, each wait counts against the rank that arrived last for another reason than a wait.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traincope.analysis.attribution.stalls import StallTotal
from traincope.analysis.attribution.terms import BUBBLE, COMPUTE
from traincope.analysis.confidence import HIGH, MEDIUM
from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.analysis.stragglers.host_usage import HostUsage, host_usage
from traincope.analysis.stragglers.own_work import OF_DEVICE, by_step, counted_steps, own_terms, peers, placed
from traincope.analysis.stragglers.patterns import Pattern, pattern
from traincope.analysis.stragglers.persistence import (
    MAX_CHANCE,
    MIN_STEPS_PER_BLOCK,
    Late,
    Peers,
    Work,
    late_by_fixed_work,
    late_ranks,
    latest_so_far,
    material_terms,
    steps_needed,
)
from traincope.analysis.stragglers.slow_groups import SlowGroup, slow_groups
from traincope.analysis.stragglers.wait_chains import Waiting, follow_wait_chains
from traincope.arrays import Bools, Floats, Ints
from traincope.timeline import RankTimeline, Timeline
from traincope.topology import PIPELINE_AXIS
from traincope.units import count, numbers, share

MAX_CHANCE_SO_FAR = 0.02
"""Largest chance at which the latest rank is mentioned where the evidence against it does not suffice to name it."""
MOSTLY = 0.8
"""Share of all waits for other ranks from which the rank that they are for is mentioned."""
SHOWN_TERM = 0.1
"""Smallest share of the excess of a term that is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWait:
    """Own work and waits of one rank, summed over the counted steps."""

    rank: int
    compute_ns: int
    own_ns: int
    """Own work: compute and all other time that no other rank can cause."""
    own_wait_ns: int
    """Exposed wait for other ranks."""
    straggler_wait_ns: int
    """Straggler wait: exposed wait of other ranks for this rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermExcess:
    """A term in which a straggler's work exceeds its peers', in its late steps."""

    term: str
    own_ns: float
    """Mean of the straggler per late step."""
    peers_ns: float
    """Mean of a peer: the median of the ranks that are not late."""

    @property
    def ns(self) -> float:
        return self.own_ns - self.peers_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A named straggler."""

    rank: int
    confidence: str
    """high: its peers waited, and its own work was longer. medium: its device may have waited for other ranks, or the
    steps are few, and its optimizer's work and CPU time show it.
    """
    caused_share: float
    """Share of step time that a rank lost by waiting for it: the mean over the ranks that waited."""
    excess_ratio: float
    """The rank's own work / that of its peers - 1."""
    late_ns: float
    """Mean lateness per step: its excess over its peers, at most what they waited longer than it did."""
    gain_ratio: float
    """Share of step time that is saved if all named ranks are as fast as their peers: the mean lateness, or the result
    of a replay.
    """
    terms: tuple[TermExcess, ...]
    """Terms in which its work exceeds its peers' in its late steps, the largest excess first."""
    pattern: Pattern
    peers: tuple[int, ...] = ()
    """The ranks that it is compared with."""
    usage: HostUsage | None = None
    """None if the kernel's counts were not recorded."""
    axes: tuple[str, ...] = ()
    """Mesh axes on which most of the wait was for it, or for it and other named ranks."""
    chance: float | None = None
    """Chance that a healthy run has a rank with such a lead, if it is not small enough to name it by that alone."""

    @property
    def cause(self) -> str:
        """The term in which its work exceeds its peers' most."""
        return self.terms[0].term

    @property
    def lacks_core(self) -> bool:
        return self.usage is not None and self.usage.lacks_core(self.late_ns)

    @property
    def lacks_memory(self) -> bool:
        return self.usage is not None and self.usage.lacks_memory(self.late_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """Waits of all ranks, and the named stragglers (often none)."""

    ranks: tuple[RankWait, ...]
    """Empty if nothing shows who waits for whom: no collective of imported traces is matched across ranks."""
    named: tuple[Straggler, ...]
    """The latest first."""
    groups: tuple[SlowGroup, ...] = ()
    """Hosts, racks and rails of the named ranks."""
    steps: int = 0
    """Steps that could be compared."""
    steps_needed: int = 0
    """Fewest such steps after which a rank can be named. 0: no rank has a peer."""
    short: tuple[int, ...] = ()
    """Ranks that are late because they lack cores, as others of their host do. They are not named."""
    likely: Straggler | None = None
    """The latest rank if none is named, with the chance of such a lead in a healthy run; None if that is above
    MAX_CHANCE_SO_FAR. With a cause that other evidence shows, the verdict names it.
    """


def late_so_far(stragglers: Stragglers) -> str | None:
    """Name the rank that is latest so far, with the number of steps and the chance that it is noise."""
    likely = stragglers.likely
    if likely is None:
        return None
    return f"rank {likely.rank} is late, so far ({count(stragglers.steps, 'step')}, {odds(likely)})"


def odds(likely: Straggler) -> str:
    """Return `1 chance in 171 that it is noise`."""
    return f"1 chance in {1 / (likely.chance or 1.0):,.0f} that it is noise"


def why_none(stragglers: Stragglers) -> str:
    """Say why no rank is named."""
    likely = stragglers.likely
    if not stragglers.steps_needed:
        return "no rank has a peer to compare with"
    if stragglers.steps < stragglers.steps_needed:
        few = f"too few steps to name a rank: {stragglers.steps:,} of {stragglers.steps_needed:,}"
        return few if likely is None else f"{few}; rank {likely.rank} so far, with {odds(likely)}"
    if stragglers.short:
        return (
            f"{numbers(stragglers.short, 'rank')} {'is' if len(stragglers.short) == 1 else 'are'} late by lack of cores"
        )
    return f"no rank is late step after step{_mostly_for(stragglers.ranks)}"


def _mostly_for(ranks: Sequence[RankWait]) -> str:
    """Name the rank that most of the waits were for: its delays vary too much to tell them from noise."""
    total_ns = sum(each.straggler_wait_ns for each in ranks)
    latest = max(ranks, key=lambda each: each.straggler_wait_ns, default=None)
    if latest is None or latest.straggler_wait_ns < MOSTLY * total_ns or not total_ns:
        return ""
    return f": {share(latest.straggler_wait_ns / total_ns)} of the waits are for rank {latest.rank}, but not steadily"


def stragglers(timeline: Timeline, ledger: Ledger, stall_totals: Mapping[int, tuple[StallTotal, ...]]) -> Stragglers:
    """Find stragglers from the ledger's terms by step, and from the last rank to join each collective."""
    waited_for, ranks = _waits(timeline, ledger, stall_totals)
    groups = [rows for rows in peers(timeline, ledger) if len(rows) > 1]
    found = (_Compared.of([ledger.ranks[row] for row in rows]) for rows in groups if ledger.rank_steps)
    compared = [group for group in found if len(group.ranks) > 1 and len(group.steps)]
    tests = sum(len(group.ranks) for group in compared)
    timelines = {rank.rank: rank for rank in timeline.ranks}
    named = [
        straggler for group in compared for straggler in group.late(timelines, waited_for=waited_for, num_tests=tests)
    ]
    late = tuple(sorted(named, key=lambda straggler: (-straggler.late_ns, straggler.rank)))
    longest = max(compared, key=lambda group: len(group.steps), default=None)
    needed = 0 if longest is None else steps_needed(longest.wall_ns, num_tests=tests)
    likely = None
    if longest is not None and len(compared) == 1 and not late:
        likely = longest.likely(timelines, waited_for=waited_for, num_tests=tests)
        if likely is not None and len(longest.steps) >= needed and _is_certain(likely, ranks):
            late = (likely,)
        elif likely is not None and len(longest.steps) < needed:
            late = tuple(longest.by_fixed_work(likely.rank, timelines, waited_for=waited_for))
    return Stragglers(
        ranks=() if _is_unmatched(timeline) else ranks,
        named=_with_axes(late, waited_for),
        groups=slow_groups(timeline.run, [straggler.rank for straggler in late]),
        steps=0 if longest is None else len(longest.steps),
        steps_needed=needed,
        likely=None if late or likely is None else _with_axes((likely,), waited_for)[0],
    )


def _is_certain(likely: Straggler, ranks: Sequence[RankWait]) -> bool:
    """Return whether noise has as small a chance as where a rank is named, and almost all waits are for this rank: in
    short runs, noise in bursts makes the chance look smaller than it is, but it rarely spares all other ranks.
    """
    caused = {each.rank: each.straggler_wait_ns for each in ranks}
    return (likely.chance or 1.0) <= MAX_CHANCE and caused[likely.rank] >= MOSTLY * max(sum(caused.values()), 1)


def _is_unmatched(timeline: Timeline) -> bool:
    groups = [group for rank in timeline.ranks for group in rank.groups]
    return bool(groups) and not any(group.matched for group in groups)


def rank_waits(
    timeline: Timeline, ledger: Ledger, stall_totals: Mapping[int, tuple[StallTotal, ...]]
) -> tuple[RankWait, ...]:
    """Sum own work and waits of each rank of the ledger, in its order."""
    return _waits(timeline, ledger, stall_totals)[1]


def _waits(
    timeline: Timeline, ledger: Ledger, stall_totals: Mapping[int, tuple[StallTotal, ...]]
) -> tuple[Waiting, tuple[RankWait, ...]]:
    stages = {rank.rank: rank.stage for rank in timeline.ranks}
    waited_for = follow_wait_chains(_waited_for(stall_totals, stages=stages))
    own_wait_ns: dict[int, int] = defaultdict(int)
    straggler_wait_ns: dict[int, int] = defaultdict(int)
    for (waiting, culprit, _), ns in waited_for.items():
        own_wait_ns[waiting] += ns
        straggler_wait_ns[culprit] += ns
    return waited_for, tuple(
        _rank_wait(rank, own_wait_ns=own_wait_ns[rank.rank], straggler_wait_ns=straggler_wait_ns[rank.rank])
        for rank in ledger.ranks
    )


def _waited_for(stall_totals: Mapping[int, tuple[StallTotal, ...]], *, stages: Mapping[int, int | None]) -> Waiting:
    """Sum exposed wait in counted steps: (waiting rank, last rank to arrive, axis) -> ns.

    Only between peers of one stage: stages wait for each other because of the schedule, and the replay of the
    pipeline explains the rest.
    """
    waited_for: dict[tuple[int, int, str], int] = defaultdict(int)
    for rank, stalls in stall_totals.items():
        for stall in stalls:
            peer = stall.last in stages and stall.last != rank and stages[stall.last] == stages[rank]
            if peer and stall.axis != PIPELINE_AXIS:
                waited_for[rank, stall.last, stall.axis] += stall.wait_ns
    return waited_for


def _rank_wait(rank: RankLedger, *, own_wait_ns: int, straggler_wait_ns: int) -> RankWait:
    compute = sum(rank.total(term) or 0 for term in COMPUTE)
    return RankWait(
        rank=rank.rank,
        compute_ns=compute,
        own_ns=sum(int(ns[rank.counted].sum()) for term in own_terms(rank) if (ns := rank.own(term)) is not None),
        own_wait_ns=own_wait_ns,
        straggler_wait_ns=straggler_wait_ns,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """Ranks that have the same work to do, in the steps that all of them completed. Arrays are ranks x steps."""

    ranks: tuple[RankLedger, ...]
    steps: Ints
    work: Work
    """All own work, and that of devices."""
    waits_ns: Floats
    """Exposed wait and pipeline idle time."""
    wall_ns: Floats
    """Mean time of each step."""

    @classmethod
    def of(cls, ranks: list[RankLedger]) -> "_Compared":
        steps = counted_steps(ranks)
        completed = np.stack([np.isin(steps, rank.numbers[rank.counted]) for rank in ranks])
        most = 2 * completed.sum(axis=1) > len(steps)  # a rank that ended early leaves the others their steps
        chosen = [rank for rank, kept in zip(ranks, most, strict=True) if kept]
        common = completed[most].all(axis=0)

        def summed(*terms: str) -> Floats:
            return np.array([by_step(rank, steps, terms)[common] for rank in chosen])

        waits = (term for term in ranks[0].terms if term.startswith("exposed_wait[") or term in BUBBLE)
        inside = np.array([placed(rank, steps, rank.waits_inside_ns)[common] for rank in chosen])
        return cls(
            ranks=tuple(chosen),
            steps=steps[common],
            work={term: summed(term) for term in (*own_terms(ranks[0]), *OF_DEVICE) if term in ranks[0].terms},
            waits_ns=summed(*waits) + inside,
            wall_ns=summed(*ranks[0].terms).mean(axis=0) if chosen else np.empty(0),
        )

    def likely(self, timelines: Mapping[int, RankTimeline], *, waited_for: Waiting, num_tests: int) -> Straggler | None:
        """Return the latest rank, if the chance of its lead is at most MAX_CHANCE_SO_FAR."""
        late, chance = latest_so_far(self._peers(self._own, num_tests=num_tests)) or (None, 1.0)
        if late is None or chance > MAX_CHANCE_SO_FAR:
            return None
        straggler = self._straggler(late, self._own, MEDIUM, waited_for)
        if not straggler.terms:
            return None
        return replace(straggler, usage=self._usage(late.row, late.peers, timelines), chance=chance)

    def by_fixed_work(
        self, rank: int, timelines: Mapping[int, RankTimeline], *, waited_for: Waiting
    ) -> Iterator[Straggler]:
        """Yield the latest rank of few steps as a straggler, if its optimizer's work shows it, and its CPU time agrees:
        the kernel counts that apart from the clock, and no other process makes it longer.
        """
        row = next(row for row, each in enumerate(self.ranks) if each.rank == rank)
        late = late_by_fixed_work(self._peers(self._own, num_tests=1), at=row)
        usage = None if late is None else self._usage(row, late.peers, timelines)
        if late is not None and usage is not None and usage.runs_longer(late.late_ns):
            yield replace(self._straggler(late, self._own, MEDIUM, waited_for), usage=usage)

    @property
    def _own(self) -> Work:
        """Material terms without those of devices."""
        return {term: ns for term, ns in material_terms(self.work, self.wall_ns).items() if term not in OF_DEVICE}

    def _peers(self, work: Work, *, num_tests: int) -> Peers:
        return Peers(work=work, waits_ns=self.waits_ns, wall_ns=self.wall_ns, num_tests=num_tests)

    def late(
        self, timelines: Mapping[int, RankTimeline], *, waited_for: Waiting, num_tests: int
    ) -> Iterator[Straggler]:
        """Yield the stragglers: by own work; without any, by the work of devices too."""
        material, own = material_terms(self.work, self.wall_ns), self._own
        ways = [(HIGH, own), (MEDIUM, material)] if len(material) > len(own) else [(HIGH, own)]
        for confidence, work in ways:
            found = late_ranks(self._peers(work, num_tests=len(ways) * num_tests))
            if found:
                for late in found:
                    straggler = self._straggler(late, work, confidence, waited_for)
                    if straggler.terms:
                        yield replace(straggler, usage=self._usage(late.row, late.peers, timelines))
                return

    def _straggler(self, late: Late, work: Work, confidence: str, waited_for: Waiting) -> Straggler:
        found, steps = pattern(self.steps, late.excess_ns, stretch=late.stretch, blurred=MIN_STEPS_PER_BLOCK)
        own_ns = np.sum(list(work.values()), axis=0).mean(axis=1)
        rank, usual = self.ranks[late.row], list(late.peers)
        return Straggler(
            rank=rank.rank,
            confidence=confidence,
            caused_share=_caused_share(rank, waited_for),
            excess_ratio=float(own_ns[late.row] / max(np.median(own_ns[usual]), 1.0)) - 1,
            late_ns=late.late_ns,
            gain_ratio=late.late_ns / float(self.wall_ns.mean()),
            terms=_excesses({term: work[term] for term in late.terms or work}, late.row, usual, steps),
            pattern=found,
            peers=tuple(self.ranks[row].rank for row in usual),
        )

    def _usage(self, row: int, usual: Sequence[int], timelines: Mapping[int, RankTimeline]) -> HostUsage | None:
        rank = timelines[self.ranks[row].rank]
        bounds = {step.number: (step.start_ns, step.end_ns) for step in rank.steps}
        return host_usage(
            rank,
            [timelines[self.ranks[peer].rank] for peer in usual],
            between_ns=(bounds[int(self.steps[0])][0], bounds[int(self.steps[-1])][1]),
            step_ns=float(self.wall_ns.mean()),
        )


def _excesses(work: Work, row: int, usual: list[int], late: Bools) -> tuple[TermExcess, ...]:
    """List the excess of a rank in these terms, in its late steps, the largest first. Empty if no term is longer."""
    means = {term: ns[:, late].mean(axis=1) for term, ns in work.items()}
    excesses = [
        TermExcess(term=term, own_ns=float(ns[row]), peers_ns=float(np.median(ns[usual]))) for term, ns in means.items()
    ]
    ordered = sorted(excesses, key=lambda excess: -excess.ns)
    return tuple(excess for excess in ordered if excess.ns > 0 and excess.ns >= SHOWN_TERM * ordered[0].ns)


def _caused_share(rank: RankLedger, waited_for: Waiting) -> float:
    """Return the share of step time that a rank that waited for this one lost on average."""
    caused: dict[int, int] = defaultdict(int)
    for (waiting, culprit, _), ns in waited_for.items():
        if culprit == rank.rank:
            caused[waiting] += ns
    return sum(caused.values()) / max(len(caused), 1) / max(rank.total_wall_ns, 1)


def _with_axes(named: tuple[Straggler, ...], waited_for: Waiting) -> tuple[Straggler, ...]:
    """Add the axes on which at least half of the wait was for the named ranks, to those that have their part of it."""
    total: dict[str, int] = defaultdict(int)
    caused: dict[tuple[int, str], int] = defaultdict(int)
    for (_, culprit, axis), ns in waited_for.items():
        total[axis] += ns
        caused[culprit, axis] += ns
    parts = {axis: sum(caused[straggler.rank, axis] for straggler in named) for axis in total}

    def axes(rank: int) -> tuple[str, ...]:
        mostly = (axis for axis in total if 2 * parts[axis] >= total[axis] > 0)
        return tuple(sorted(axis for axis in mostly if 2 * len(named) * caused[rank, axis] >= total[axis]))

    return tuple(replace(straggler, axes=axes(straggler.rank)) for straggler in named)
