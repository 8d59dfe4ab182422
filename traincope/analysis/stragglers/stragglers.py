"""Stragglers: the rank that the others waited for, if the evidence is sufficient to name it.

In every collective the rank that arrives last waits least. The exposed wait of the others counts against that rank, or
along wait chains against the rank that it waited for itself. A rank is named only if it caused most of all wait among
its peers and a significant share of their time. The confidence is high if its own work is also longer than its peers'.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from traincope.analysis.attribution.stalls import StallTotal
from traincope.analysis.attribution.terms import COMPUTE, UNATTRIBUTED
from traincope.analysis.confidence import HIGH, MEDIUM
from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.analysis.stragglers.wait_chains import Waiting, follow_wait_chains
from traincope.timeline import Timeline
from traincope.topology import PIPELINE_AXIS

MATERIAL = 0.02
"""Smallest share of a peer's step that its wait for a named rank takes."""
OWN_WORK = ("data_wait", "gc", "checkpoint_stall", "compile", UNATTRIBUTED)
"""Terms, in addition to compute, that are a rank's own work."""


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
class Straggler:
    """A named straggler."""

    rank: int
    confidence: str
    """high: it caused the wait, and its own work was longer than its peers'. medium: only the first."""
    caused_share: float
    """Share of step time that a rank lost by waiting for it: the mean over the ranks that waited."""
    excess_ratio: float
    """The rank's own work / median of its peers' work - 1."""
    cause: str | None = None
    """Ledger term in which its own work exceeds its peers' most; None if its work is not longer."""
    axes: tuple[str, ...] = ()
    """Mesh axes on which most of the wait was for it."""
    gain_ratio: float | None = None
    """Share of step time saved if it were as fast as its next slowest peer; None if its work is not longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """Waits of all ranks, and the named stragglers (often none)."""

    ranks: tuple[RankWait, ...]
    named: tuple[Straggler, ...]


def stragglers(timeline: Timeline, ledger: Ledger, stall_totals: Mapping[int, tuple[StallTotal, ...]]) -> Stragglers:
    """Find stragglers from the stalls of each rank's training thread in counted steps, by the last rank to join."""
    stages = {rank.rank: rank.stage for rank in timeline.ranks}
    waited_for = follow_wait_chains(_waited_for(stall_totals, stages=stages))
    ranks = tuple(_rank_wait(rank, waited_for) for rank in ledger.ranks)
    return Stragglers(ranks=ranks, named=_named(ranks, waited_for, ledger=ledger, stages=stages))


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


def _rank_wait(rank: RankLedger, waited_for: Waiting) -> RankWait:
    compute = sum(rank.total(term) or 0 for term in COMPUTE)
    return RankWait(
        rank=rank.rank,
        compute_ns=compute,
        own_ns=compute + sum(rank.total(term) or 0 for term in OWN_WORK),
        own_wait_ns=sum(ns for (waiting, _, _), ns in waited_for.items() if waiting == rank.rank),
        straggler_wait_ns=sum(ns for (_, culprit, _), ns in waited_for.items() if culprit == rank.rank),
    )


def _named(
    ranks: tuple[RankWait, ...],
    waited_for: Waiting,
    *,
    ledger: Ledger,
    stages: Mapping[int, int | None],
) -> tuple[Straggler, ...]:
    """Name at most one rank: the one that caused most of the wait, unless others are nearly as slow."""
    total = sum(rank.straggler_wait_ns for rank in ranks)
    if len(ranks) < 2 or total == 0:
        return ()
    worst = max(ranks, key=lambda rank: rank.straggler_wait_ns)
    wall_ns = ledger.wall_ns / len(ranks)
    num_victims = len({waiting for (waiting, culprit, _), ns in waited_for.items() if culprit == worst.rank and ns})
    share = worst.straggler_wait_ns / num_victims / wall_ns
    dominant = worst.straggler_wait_ns / total > (1 + 1 / len(ranks)) / 2
    if share < MATERIAL or not dominant:
        return ()
    peers = [rank for rank in ranks if rank is not worst and stages[rank.rank] == stages[worst.rank]]
    usual_ns = median(rank.own_ns for rank in peers) if peers else worst.own_ns
    longer = (worst.own_ns - usual_ns) / wall_ns > MATERIAL
    gain = min((worst.own_ns - max(rank.own_ns for rank in peers)) / wall_ns, share) if longer else None
    if gain is not None and gain <= MATERIAL:
        return ()
    return (
        Straggler(
            rank=worst.rank,
            confidence=HIGH if longer else MEDIUM,
            caused_share=share,
            excess_ratio=worst.own_ns / usual_ns - 1 if usual_ns else 0.0,
            cause=_cause(worst, peers, ledger) if longer else None,
            axes=_axes_of(worst.rank, waited_for),
            gain_ratio=gain,
        ),
    )


def _cause(worst: RankWait, peers: list[RankWait], ledger: Ledger) -> str:
    """Find the term in which the rank exceeds the median of its peers most."""
    ledgers = {rank.rank: rank for rank in ledger.ranks}

    def excess(term: str) -> float:
        usual = median(ledgers[peer.rank].total(term) or 0 for peer in peers)
        return (ledgers[worst.rank].total(term) or 0) - usual

    return max((*COMPUTE, *OWN_WORK), key=excess)


def _axes_of(rank: int, waited_for: Waiting) -> tuple[str, ...]:
    """List the axes on which at least half of the wait was for this rank."""
    total: dict[str, int] = defaultdict(int)
    caused: dict[str, int] = defaultdict(int)
    for (_, culprit, axis), ns in waited_for.items():
        total[axis] += ns
        caused[axis] += ns if culprit == rank else 0
    return tuple(sorted(axis for axis, ns in caused.items() if ns and 2 * ns >= total[axis]))
