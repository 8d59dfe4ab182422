"""Whom waiting was for in the end: a rank that arrives last may be late only because it waited itself.

Its lateness then is another's, whom it met on another mesh axis: of 2 x 8 ranks one that is slow holds up the 7 of its
tensor-parallel group, and all 8 of them hold up the other replica. By how much more than the rank that waits for it it
had waited for others, so much of its lateness it brought along; that is laid at the door of those it waited for, and so
on. What both had waited alike, as ranks of one group do, delays neither against the other.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

HOPS = 4
"""So far lateness is followed; a mesh has few axes."""

Waiting = Mapping[tuple[int, int, str], int]
"""(waiting rank, rank waited for, axis) -> ns."""
Pairs = Mapping[int, Mapping[int, int]]
"""Waiting rank -> rank waited for -> ns."""


def rooted(waited_for: Waiting) -> Waiting:
    """The same waiting, of the same ranks on the same axes, for those who were late on their own."""
    direct = _pairs(waited_for)
    roots = waited_for
    for _ in range(HOPS):
        before, roots = roots, _followed(waited_for, direct, _pairs(roots))
        if roots == before:
            break
    return roots


def _pairs(waited_for: Waiting) -> Pairs:
    """Over all axes."""
    sums: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for (waiting, late, _), ns in waited_for.items():
        sums[waiting][late] += ns
    return sums


def _followed(waited_for: Waiting, direct: Pairs, roots: Pairs) -> Waiting:
    """What each late rank brought along, at those who were the roots of its own waiting."""
    told: dict[tuple[int, int, str], int] = defaultdict(int)
    for (waiting, late, axis), ns in waited_for.items():
        brought = ns * _brought(direct, waiting, late) // max(direct[waiting][late], 1)
        parts = dict(_shared(brought, {rank: of for rank, of in roots.get(late, {}).items() if rank != waiting}))
        for rank, part in parts.items():
            told[waiting, rank, axis] += part
        told[waiting, late, axis] += ns - sum(parts.values())
    return {key: ns for key, ns in told.items() if ns}


def _brought(direct: Pairs, waiting: int, late: int) -> int:
    """Of what one rank waited for another, how much of that other's lateness was not its own."""
    theirs = {rank: ns for rank, ns in direct.get(late, {}).items() if rank != waiting}
    ours = {rank: ns for rank, ns in direct[waiting].items() if rank != late}
    return min(max(sum(theirs.values()) - sum(ours.values()), 0), direct[waiting][late])


def _shared(ns: int, shares: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """In proportion to the shares, in whole ns, no more than there are."""
    total = sum(shares.values())
    return ((rank, ns * share // total) for rank, share in shares.items() if total)
