"""Graph of which rank waited for which, its ends and its cycles.

An edge leads from a rank to each member that did not join the collective in which it waits. A rank at the end of the
edges waits for no other: it is the culprit. Ranks that wait for each other in a cycle are a deadlock.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from traincope.analysis.faults.hangs.evidence.calls import Call
from traincope.analysis.faults.hangs.evidence.standing import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """`rank` waited in `call` for `other`, which did not join it."""

    rank: int
    other: int
    call: Call
    absent: bool
    """The records show that `other` did not join. Otherwise they do not show whether it did."""
    waited: bool
    """The records show that `rank` waited. Otherwise it stood where it may have waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The first cause of a stop: ranks that wait for no rank outside of them."""

    ranks: tuple[int, ...]
    cycle: bool
    """The ranks wait for each other."""
    edges: tuple[Edge, ...]
    """Direct waits for these ranks."""
    victims: tuple[int, ...]
    """All ranks that waited for them, directly or through others."""


def edges_of(standings: Mapping[int, Standing]) -> tuple[Edge, ...]:
    """All waits for members that did not join."""
    return tuple(
        Edge(rank=rank, other=other, call=call, absent=joined is False, waited=each.certain)
        for rank, each in standings.items()
        for call in each.waits
        for other in call.members
        if other != rank and (joined := _joined(standings.get(other), call)) is not True
    )


def _joined(other: Standing | None, call: Call) -> bool | None:
    return None if other is None else other.calls.joined(call)


def sources(edges: Iterable[Edge]) -> tuple[Source, ...]:
    """The groups of ranks at the ends of all chains of waits, by their lowest rank."""
    edges = tuple(edges)
    after: dict[int, set[int]] = {}
    for edge in edges:
        after.setdefault(edge.rank, set()).add(edge.other)
        after.setdefault(edge.other, set())
    reach = {rank: _reached(rank, after) for rank in after}
    chosen = []
    for ranks in sorted({_component(rank, reach) for rank in after}):
        if all(other in ranks for rank in ranks for other in after[rank]):
            victims = tuple(sorted(rank for rank in after if rank not in ranks and reach[rank] & set(ranks)))
            direct = tuple(edge for edge in edges if edge.other in ranks)
            chosen.append(Source(ranks=ranks, cycle=len(ranks) > 1, edges=direct, victims=victims))
    return tuple(chosen)


def _reached(rank: int, after: Mapping[int, set[int]]) -> set[int]:
    """Ranks at which a chain of waits from `rank` passes; `rank` itself only if a cycle returns to it."""
    seen: set[int] = set()
    pending = deque(after[rank])
    while pending:
        other = pending.popleft()
        if other not in seen:
            seen.add(other)
            pending.extend(after[other])
    return seen


def _component(rank: int, reach: Mapping[int, set[int]]) -> tuple[int, ...]:
    """The ranks of the same cycle, or the rank alone."""
    return tuple(sorted({rank, *(other for other in reach[rank] if rank in reach[other])}))
