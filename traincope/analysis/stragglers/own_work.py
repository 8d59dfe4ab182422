"""Own work of every rank in every step, relative to its peers: it shows which rank is slow, and since when."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.attribution.terms import COMPUTE, UNATTRIBUTED, is_part
from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.arrays import Floats, Ints
from traincope.events import Kind
from traincope.timeline import RankTimeline, Timeline

OWN_WORK = ("data_wait", "gc", "checkpoint_stall", "compile", UNATTRIBUTED)
"""Terms, in addition to compute, that no other rank can cause."""
OF_DEVICE = ("sync", "launch_gap", "kernel_wait", "exposed_memory")
"""Terms that a rank's device causes, or another rank through its device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWork:
    """Own work: compute and all other time that no other rank can cause. Arrays are ranks x steps."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    """Host of each rank."""
    steps: NDArray[np.int64]
    """Counted steps, ascending."""
    own_ns: NDArray[np.float64]
    """Own work; NaN if the rank did not complete the step."""
    excess_ratio: NDArray[np.float64]
    """Own work / median of the rank's peers in that step - 1. Peers are the ranks of its pipeline stage."""


def own_work(timeline: Timeline, ledger: Ledger) -> OwnWork | None:
    """Compute the own work of all ranks; None without counted steps."""
    if not ledger.rank_steps:
        return None
    steps = counted_steps(ledger.ranks)
    own_ns = np.stack([by_step(rank, steps, own_terms(rank)) for rank in ledger.ranks])
    hosts = {rank.rank: rank.info.host.name for rank in timeline.run.ranks}
    excess = np.full_like(own_ns, np.nan)
    for rows in peers(timeline, ledger):
        excess[rows] = own_ns[rows] / _medians(own_ns[rows]) - 1
    return OwnWork(
        ranks=tuple(rank.rank for rank in ledger.ranks),
        hosts=tuple(hosts.get(rank.rank, "") for rank in ledger.ranks),
        steps=steps,
        own_ns=own_ns,
        excess_ratio=excess,
    )


def own_terms(rank: RankLedger) -> tuple[str, ...]:
    """Terms that no other rank can cause, apart from the communication in parts that are not training."""
    return (*COMPUTE, *OWN_WORK, *filter(is_part, rank.terms))


def counted_steps(ranks: Sequence[RankLedger]) -> Ints:
    """Return the numbers of the steps that count on any of these ranks, ascending."""
    return np.unique(np.concatenate([rank.numbers[rank.counted] for rank in ranks]))


def by_step(rank: RankLedger, steps: Ints, terms: Sequence[str]) -> Floats:
    """Return the rank's own time in these terms in the steps, ns; NaN for steps that it did not complete."""
    known = [ns for term in terms if (ns := rank.own(term)) is not None]
    return placed(rank, steps, np.sum([np.zeros_like(rank.wall_ns), *known], axis=0))


def placed(rank: RankLedger, steps: Ints, ns: Ints) -> Floats:
    """Return the values, one per step of the rank, for these steps; NaN for steps that it did not complete."""
    result = np.full(len(steps), np.nan)
    result[np.searchsorted(steps, rank.numbers[rank.counted])] = ns[rank.counted]
    return result


def place(rank: RankTimeline) -> tuple[frozenset[int], frozenset[str]]:
    """Return the rank's pipeline stages and mesh axes: ranks of one place are peers.

    Without a mesh that has an axis for the pipeline, the rank's actions show its stages.
    """
    actions = rank.of_kind(Kind.ACTION)["peer"] if rank.stage is None else np.array([rank.stage])
    return frozenset(np.unique(actions).tolist()), frozenset(rank.coords)


def peers(timeline: Timeline, ledger: Ledger) -> tuple[list[int], ...]:
    """Return the rows of the ranks that have the same work to do: of one place."""
    places = {rank.rank: place(rank) for rank in timeline.ranks}
    rows = defaultdict(list)
    for row, rank in enumerate(ledger.ranks):
        rows[places[rank.rank]].append(row)
    return tuple(rows.values())


def _medians(own_ns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median of each step over the ranks that completed it; NaN without such ranks, or if it is 0."""
    ordered = np.sort(own_ns, axis=0)  # NaN last
    known = np.count_nonzero(~np.isnan(own_ns), axis=0)
    columns = np.arange(own_ns.shape[1])
    low, high = ordered[np.maximum(known - 1, 0) // 2, columns], ordered[known // 2 % len(ordered), columns]
    middle = np.where(known % 2 == 1, low, (low + high) / 2)
    return np.where(middle > 0, middle, np.nan)
