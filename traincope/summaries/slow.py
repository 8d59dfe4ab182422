"""Stragglers by the newest rows of all ranks: the test of `report` (`analysis/stragglers/persistence.py`) on rows.

An agent cannot split all waits from transfers, so exposed transfers count as waits here: a rank that the others wait
for has little of either.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traincope.analysis.attribution.terms import BUBBLE, COMPUTE
from traincope.analysis.stragglers.own_work import OWN_WORK
from traincope.analysis.stragglers.persistence import Peers, Work, late_ranks, material_terms, steps_needed
from traincope.arrays import Ints
from traincope.summaries.rank import RankSummary
from traincope.topology import PIPELINE_AXIS

WAITS = ("exposed_wait[", "exposed_transfer[")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """A rank whose own work is longer than its peers' step after step, while they wait and it does not."""

    rank: int
    terms: tuple[str, ...]
    """Ledger terms in which its work is longer; empty if only their sum is."""
    late_ns: float
    """Mean lateness per step, as `Straggler.late_ns`."""
    gain_ratio: float
    """Share of step time that is saved if it is as fast as its peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRanks:
    """The stragglers, and what the test had to stand on."""

    ranks: tuple[SlowRank, ...]
    """The latest first."""
    steps: int
    """Steps that were compared."""
    steps_needed: int
    """Fewest steps after which a rank can be named; 0: no rank has a peer."""


def slow_ranks(ranks: Sequence[RankSummary]) -> SlowRanks:
    """Compare each rank with those of its pipeline stage, in the steps of which all of them have terms."""
    peers: dict[object, list[RankSummary]] = defaultdict(list)
    for rank in ranks:
        peers[rank.coords.get(PIPELINE_AXIS), frozenset(rank.coords)].append(rank)
    groups = [_compared(group) for group in peers.values() if len(group) > 1]
    tested = [(group, each) for group, each in groups if len(group) > 1 and len(each.wall_ns)]
    num_tests = sum(len(group) for group, _ in tested)
    found = [
        SlowRank(
            rank=group[late.row].rank,
            terms=late.terms,
            late_ns=late.late_ns,
            gain_ratio=late.late_ns / float(each.wall_ns.mean()),
        )
        for group, each in tested
        for late in late_ranks(Peers(work=each.work, waits_ns=each.waits_ns, wall_ns=each.wall_ns, num_tests=num_tests))
    ]
    longest = max((each for _, each in tested), key=lambda each: len(each.wall_ns), default=None)
    return SlowRanks(
        ranks=tuple(sorted(found, key=lambda rank: (-rank.late_ns, rank.rank))),
        steps=0 if longest is None else len(longest.wall_ns),
        steps_needed=0 if longest is None else steps_needed(longest.wall_ns, num_tests=num_tests),
    )


def _compared(ranks: list[RankSummary]) -> tuple[list[RankSummary], Peers]:
    """The ranks that have most steps with detail, and their work in those that all of them have, without step 0."""
    detailed: dict[int, Ints] = {rank.rank: rank.rows.step[rank.rows.detailed] for rank in ranks}
    most = max(map(len, detailed.values()))
    chosen = [rank for rank in ranks if 2 * len(detailed[rank.rank]) > most]
    if not chosen:
        nothing = np.empty(0)
        return chosen, Peers(work={}, waits_ns=np.empty((0, 0)), wall_ns=nothing, num_tests=1)
    steps, num_ranks = np.unique(np.concatenate([detailed[rank.rank] for rank in chosen]), return_counts=True)
    steps = steps[(num_ranks == len(chosen)) & (steps > 0)]
    terms = {name: np.zeros((len(chosen), len(steps))) for name in sorted({n for r in chosen for n in r.rows.names})}
    wall_ns = np.empty((len(chosen), len(steps)), dtype=np.int64)
    for row, rank in enumerate(chosen):
        at = np.searchsorted(rank.rows.step, steps)
        wall_ns[row] = rank.rows.wall_ns[at]
        for name, ns in zip(rank.rows.names, rank.rows.terms_ns[:, at], strict=True):
            terms[name][row] = ns
    waits_ns = np.zeros((len(chosen), len(steps)))
    for name, ns in terms.items():
        if name in BUBBLE or name.startswith(WAITS):
            waits_ns += ns
    work: Work = {name: terms[name] for name in (*COMPUTE, *OWN_WORK) if name in terms}
    mean_ns = wall_ns.mean(axis=0)
    if len(steps):
        work = material_terms(work, mean_ns)
    return chosen, Peers(work=work, waits_ns=waits_ns, wall_ns=mean_ns, num_tests=1)
