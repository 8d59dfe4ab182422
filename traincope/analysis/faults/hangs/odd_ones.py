"""Ranks of a deadlock that did something else than the other ranks of the job.

In a deadlock each rank waits for another one, so the waits do not show which of them left the common way. The ranks
outside of it may: they issued the same kinds of collectives in groups of their own, or count messages by the same tags.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from traincope.analysis.faults.hangs.evidence.calls import RankCalls
from traincope.analysis.faults.hangs.evidence.standing import Standing
from traincope.analysis.faults.hangs.evidence.waiting import Edge
from traincope.analysis.faults.hangs.hang import Differs
from traincope.units import numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    ranks: tuple[int, ...]
    """Empty if only the deviation is known, and not who deviates."""
    differs: Differs
    why: str


Issued = tuple[tuple[int, str], ...]
"""Number of members and operation of each collective, in order."""


def odd_ones(cycle: Collection[int], inside: Sequence[Edge], standings: Mapping[int, Standing]) -> Odd | None:
    """Find the ranks of a cycle with other tags or collectives than the rest; None if nothing shows it.

    `inside`: the waits of the cycle's ranks for each other.
    """
    return _other_tags(inside, standings) or _other_collectives(cycle, standings)


def _other_tags(inside: Sequence[Edge], standings: Mapping[int, Standing]) -> Odd | None:
    """Both ends of one way wait for messages of different tags. Those of all other waiting ranks decide."""
    ways = {edge.rank: edge.call.channel for edge in inside if edge.call.channel.direct}
    tags = {rank: way.tag for rank, way in ways.items()}
    one_way = len({(way.group, way.source, way.destination) for way in ways.values()}) == 1
    if len(tags) != 2 or not one_way or len({*tags.values()}) == 1:
        return None
    waiting = {
        rank: {call.channel.tag for call in each.waits if call.channel.direct} for rank, each in standings.items()
    }
    votes = Counter(tag for rank_tags in waiting.values() for tag in rank_tags)
    usual = max(tags.values(), key=lambda tag: votes[tag])
    decided = 2 * votes[usual] > sum(map(bool, waiting.values()))
    ends = " and ".join(f"rank {rank} has {tag}" for rank, tag in sorted(tags.items()))
    others = [rank for rank, rank_tags in waiting.items() if usual in rank_tags and rank not in tags]
    wait = "waits" if len(others) == 1 else "wait"
    agrees = f"; {numbers(others, 'rank')} {wait} for {usual} too" if decided and others else ""
    return Odd(
        ranks=tuple(rank for rank, tag in tags.items() if tag != usual) if decided else (),
        differs=Differs.TAG,
        why=f"both ends of one message have different tags: {ends}{agrees}",
    )


def _other_collectives(cycle: Collection[int], standings: Mapping[int, Standing]) -> Odd | None:
    """A rank issued other collectives since the last one that all ranks completed. Those outside of the cycle agree."""
    issued = _since_common({rank: each.calls for rank, each in standings.items()})
    outside = {each for rank, each in issued.items() if rank not in cycle}
    if len(outside) != 1 or not (usual := outside.pop()):
        return None
    odd = tuple(sorted(rank for rank in cycle if not _begins_alike(issued[rank], usual)))
    if not odd or 2 * len(odd) >= len(issued):
        return None
    alike = numbers(sorted(issued.keys() - {*odd}), "rank")
    size, operation = next(each for each, own in zip(usual, issued[odd[0]], strict=False) if each != own)
    return Odd(
        ranks=odd,
        differs=Differs.OPERATION,
        why=(
            f"since the last collective that all ranks completed, {alike} issued {operation} in groups of {size}, and "
            f"{numbers(odd, 'rank')} did not"
        ),
    )


def _begins_alike(first: Issued, second: Issued) -> bool:
    common = min(len(first), len(second))
    return first[:common] == second[:common]


def _since_common(calls: Mapping[int, RankCalls]) -> Mapping[int, Issued]:
    """Rank -> its collectives since the last one that all ranks completed; empty without such a one."""
    done = [{call.identity for call in each.calls if not call.unfinished} for each in calls.values()]
    common = set.intersection(*done) if done else set()
    found = {}
    for rank, each in calls.items():
        places = [at for at, call in enumerate(each.calls) if call.identity in common and not call.channel.direct]
        if not places:
            return {}
        later = (call for call in each.calls[places[-1] + 1 :] if not call.channel.direct)
        found[rank] = tuple((len(call.group.ranks), call.operation) for call in later)
    return found
