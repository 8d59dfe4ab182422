"""Which rank the others waited for, and whether there is enough evidence to name it.

In every collective the rank that arrives last waits least; the exposed waiting of the others is
laid at its door, or where it had waited itself, at the door of whom it had waited for. A rank is
named only if it caused most of all waiting among its peers and a material part of their time; that
its own work was longer than its peers' too makes it certain.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from traincope.analysis.carried import Waiting, rooted
from traincope.analysis.host import Ints
from traincope.analysis.ledger import Ledger, RankLedger
from traincope.analysis.stalls import Standstill
from traincope.analysis.terms import COMPUTE, UNATTRIBUTED
from traincope.timeline import Instances, Timeline
from traincope.timeline.comparing import lowest
from traincope.topology import PIPELINE_AXIS

MATERIAL = 0.02
"""Share of a peer's step that its waiting for the rank must take."""
OWN_WORK = ("data_wait", "gc", "checkpoint_stall", "compile", UNATTRIBUTED)
"""Besides compute: what delays a rank on its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWait:
    """One rank, summed over the counted steps."""

    rank: int
    compute_ns: int
    own_ns: int
    """Its own work: compute, and everything else that no other rank can be the cause of."""
    own_wait_ns: int
    """Exposed waiting for others."""
    caused_wait_ns: int
    """Exposed waiting of others for this rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A rank that is named."""

    rank: int
    confidence: str
    """high: it caused the waiting and its own work was longer than its peers'; medium: the former."""
    caused_share: float
    """Share of step time that a rank which waited for it lost, mean over those."""
    excess_ratio: float
    """Its own work over the median of its peers', less 1."""
    cause: str | None = None
    """The ledger term of its own work that exceeds its peers' most; None if its work is not longer."""
    axes: tuple[str, ...] = ()
    """Mesh axes on which most of all waiting was for it."""
    gain_ratio: float | None = None
    """Share of step time saved if it were as quick as the next slowest of its peers; None if its work is not longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """All ranks, and those that are named (often none, and that is an answer)."""

    ranks: tuple[RankWait, ...]
    named: tuple[Straggler, ...]


def stragglers(timeline: Timeline, ledger: Ledger, stood_still: Mapping[int, tuple[Standstill, ...]]) -> Stragglers:
    """`stood_still` is what each rank's training thread lost in counted steps, by who came last."""
    stages = {rank.rank: rank.stage for rank in timeline.ranks}
    waited_for = rooted(_waited_for(stood_still, stages=stages))
    ranks = tuple(_rank_wait(rank, waited_for) for rank in ledger.ranks)
    return Stragglers(ranks=ranks, named=_named(ranks, waited_for, ledger=ledger, stages=stages))


def _waited_for(stood_still: Mapping[int, tuple[Standstill, ...]], *, stages: Mapping[int, int | None]) -> Waiting:
    """(waiting rank, rank that arrived last, axis) -> ns of exposed waiting in counted steps.

    Only between peers of one stage: that stages wait for each other is the schedule's doing, and
    what is more than that, the replay of the pipeline tells.
    """
    waited_for: dict[tuple[int, int, str], int] = defaultdict(int)
    for rank, lost in stood_still.items():
        for one in lost:
            peer = one.last in stages and one.last != rank and stages[one.last] == stages[rank]
            if peer and one.axis != PIPELINE_AXIS:
                waited_for[rank, one.last, one.axis] += one.wait_ns
    return waited_for


def last_to_arrive(instances: Instances) -> Ints:
    """For each instance, the rank that joined it last (of equals the lowest); -1 where nothing tells.

    That is the latest start, where no other host's clock may make its own the latest. Else it is the
    shortest part, for it waits for nobody; only of parts that were looked at late that says nothing.
    """
    by_start = _first_by(-instances.parts.start_ns, instances)
    by_duration = np.where(instances.by_clock, -1, _first_by(instances.parts.duration_ns, instances))
    return np.where(instances.complete, np.where(instances.starts_compare, by_start, by_duration), -1)


def _first_by(values_ns: Ints, instances: Instances) -> Ints:
    """For each instance, the rank of the part with the least value."""
    number, count = instances.number, len(instances)
    least = np.flatnonzero(values_ns == lowest(values_ns, number, count)[number])
    return lowest(instances.parts.rank[least], number[least], count)


def _rank_wait(rank: RankLedger, waited_for: Waiting) -> RankWait:
    compute = sum(rank.total(term) or 0 for term in COMPUTE)
    return RankWait(
        rank=rank.rank,
        compute_ns=compute,
        own_ns=compute + sum(rank.total(term) or 0 for term in OWN_WORK),
        own_wait_ns=sum(ns for (waiting, _, _), ns in waited_for.items() if waiting == rank.rank),
        caused_wait_ns=sum(ns for (_, culprit, _), ns in waited_for.items() if culprit == rank.rank),
    )


def _named(
    ranks: tuple[RankWait, ...],
    waited_for: Waiting,
    *,
    ledger: Ledger,
    stages: Mapping[int, int | None],
) -> tuple[Straggler, ...]:
    """At most one: the rank that caused most of the waiting, unless others are nearly as slow."""
    total = sum(rank.caused_wait_ns for rank in ranks)
    if len(ranks) < 2 or total == 0:
        return ()
    worst = max(ranks, key=lambda rank: rank.caused_wait_ns)
    wall_ns = ledger.wall_ns / len(ranks)
    num_victims = len({waiting for (waiting, culprit, _), ns in waited_for.items() if culprit == worst.rank and ns})
    share = worst.caused_wait_ns / num_victims / wall_ns
    dominant = worst.caused_wait_ns / total > (1 + 1 / len(ranks)) / 2
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
            confidence="high" if longer else "medium",
            caused_share=share,
            excess_ratio=worst.own_ns / usual_ns - 1 if usual_ns else 0.0,
            cause=_cause(worst, peers, ledger) if longer else None,
            axes=_axes_of(worst.rank, waited_for),
            gain_ratio=gain,
        ),
    )


def _cause(worst: RankWait, peers: list[RankWait], ledger: Ledger) -> str:
    """The term in which the rank exceeds the median of its peers most."""
    ledgers = {rank.rank: rank for rank in ledger.ranks}

    def excess(term: str) -> float:
        usual = median(ledgers[peer.rank].total(term) or 0 for peer in peers)
        return (ledgers[worst.rank].total(term) or 0) - usual

    return max((*COMPUTE, *OWN_WORK), key=excess)


def _axes_of(rank: int, waited_for: Waiting) -> tuple[str, ...]:
    """Axes on which at least half of the waiting was for this rank."""
    total: dict[str, int] = defaultdict(int)
    caused: dict[str, int] = defaultdict(int)
    for (_, culprit, axis), ns in waited_for.items():
        total[axis] += ns
        caused[axis] += ns if culprit == rank else 0
    return tuple(sorted(axis for axis, ns in caused.items() if ns and 2 * ns >= total[axis]))
