"""Wait chains: a rank that arrives late because it waited itself passes the wait on to the rank that it waited for.

The other rank is on another mesh axis. Of 2 x 8 ranks, one slow rank delays the 7 others of its tensor-parallel group,
and all 8 of them delay the other replica. A late rank passes on only the waiting that exceeds its waiter's. That part
counts against the ranks that it waited for, and so on. Equal waiting of both, as in ranks of one group, delays neither
relative to the other.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

MAX_HOPS = 4
"""Largest length of a wait chain: a mesh has few axes."""

Waiting = Mapping[tuple[int, int, str], int]
"""(waiting rank, rank waited for, axis) -> ns."""
Pairs = Mapping[int, Mapping[int, int]]
"""Waiting rank -> rank waited for -> ns."""


def follow_wait_chains(waited_for: Waiting) -> Waiting:
    """Return the same waits of the same ranks on the same axes, for the ranks at the ends of the wait chains."""
    direct = _pairs(waited_for)
    culprits = waited_for
    for _ in range(MAX_HOPS):
        before, culprits = culprits, _follow_once(waited_for, direct, _pairs(culprits))
        if culprits == before:
            break
    return culprits


def _pairs(waited_for: Waiting) -> Pairs:
    """Sum the waits over all axes."""
    sums: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for (waiting, culprit, _), ns in waited_for.items():
        sums[waiting][culprit] += ns
    return sums


def _follow_once(waited_for: Waiting, direct: Pairs, culprits: Pairs) -> Waiting:
    """Move the wait that each late rank passes on to the culprits of its own wait."""
    followed: dict[tuple[int, int, str], int] = defaultdict(int)
    totals = {rank: sum(waits.values()) for rank, waits in direct.items()}
    for (waiting, culprit, axis), ns in waited_for.items():
        passed_on = ns * _passed_on_ns(direct, totals, waiting, culprit) // max(direct[waiting][culprit], 1)
        parts = dict(
            _in_proportion(passed_on, {rank: of for rank, of in culprits.get(culprit, {}).items() if rank != waiting})
        )
        for rank, part in parts.items():
            followed[waiting, rank, axis] += part
        followed[waiting, culprit, axis] += ns - sum(parts.values())
    return {key: ns for key, ns in followed.items() if ns}


def _passed_on_ns(direct: Pairs, totals: Mapping[int, int], waiting: int, culprit: int) -> int:
    """Compute the part of a wait that the late rank passes on because it waited itself."""
    for_it = direct[waiting][culprit]
    late_waits = totals.get(culprit, 0) - direct.get(culprit, {}).get(waiting, 0)
    waiter_waits = totals[waiting] - for_it
    return min(max(late_waits - waiter_waits, 0), for_it)


def _in_proportion(ns: int, shares: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Divide `ns` in proportion to the shares, in whole ns that sum to at most `ns`."""
    total = sum(shares.values())
    return ((rank, ns * share // total) for rank, share in shares.items() if total)
