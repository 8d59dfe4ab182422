"""The ranks for which a job stands still, from what every rank waits in at the end of its records.

A rank that waits in a collective waits for the members that have not joined it; in a message, for the other side. Who
is waited for and waits for no other rank is a culprit. This follows waits through any number of groups.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from traincope.events import CLEAN
from traincope.summaries.rank import LastCall, RankSummary
from traincope.summaries.reading import Summaries
from traincope.timeline.collectives.channels import Channel

Identity = tuple[Channel, int, int]
PATIENCE_NS = 30_000_000_000
"""A rank of a running job stands still if it has written no record for this long before the last look at it. Agents
look only while a job stands still, so an old look says nothing about now.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """Why a job stands still."""

    culprits: tuple[int, ...]
    """Empty: the waiting ranks wait for each other, or it is not known who has joined."""
    directly: tuple[int, ...]
    """Ranks that wait for a culprit itself."""
    indirectly: tuple[int, ...]
    """Ranks that wait for ranks that wait for it."""
    axis: str | None
    operation: str | None
    """Of the call that waits for the first culprit."""
    step: int | None
    doing: str | None
    """What the first culprit did; None: it has no records."""
    still_ns: int | None
    """Time from the first culprit's last record to the last look at a process; None if unknown."""


def stopped(summaries: Summaries) -> Stopped | None:
    """Find the culprits. None: no rank waits, all ended cleanly, a rank that others wait for has failed, or no look of
    an agent shows that running ranks stand still.

    It costs as much as there are ranks and members of the groups in which a rank waits.
    """
    ranks = {rank.rank: rank for rank in summaries.ranks}
    waiting = {number: rank.waits for number, rank in ranks.items() if rank.waits}
    absent: dict[Identity, tuple[int, ...]] = {}
    waits_for: dict[int, set[int]] = defaultdict(set)
    calls_of: dict[int, LastCall] = {}
    for number, calls in waiting.items():
        for call in calls:
            identity = (call.channel, call.window, call.sequence)
            if identity not in absent:
                absent[identity] = _absent(call, ranks)
            for other in absent[identity]:
                if other != number:
                    waits_for[number].add(other)
                    calls_of.setdefault(other, call)
    awaited = {other for others in waits_for.values() for other in others}
    roots = sorted(other for other in awaited if other not in waiting)
    direct = tuple(sorted(number for number, others in waits_for.items() if others.intersection(roots)))
    known = [ranks[root] for root in roots if root in ranks]
    if not any(_stands_still(ranks[number]) for number in direct or waiting):
        return None
    seen_ns = max((rank.seen_ns for rank in ranks.values() if rank.seen_ns is not None), default=None)
    if any(rank.ending not in (None, CLEAN) or not _is_silent(rank, seen_ns) for rank in known):
        return None
    if not roots:
        return Stopped(
            culprits=(),
            directly=tuple(sorted(waiting)),
            indirectly=(),
            axis=None,
            operation=None,
            step=None,
            doing=None,
            still_ns=None,
        )
    first, call = ranks.get(roots[0]), calls_of[roots[0]]
    still_ns = None if first is None or first.last_ns is None or seen_ns is None else seen_ns - first.last_ns
    return Stopped(
        culprits=tuple(roots),
        directly=direct,
        indirectly=tuple(sorted(set(waiting).difference(direct))),
        axis=call.axis,
        operation=call.operation,
        step=None if first is None else first.step,
        doing=None if first is None else first.doing,
        still_ns=still_ns,
    )


def _stands_still(rank: RankSummary) -> bool:
    """True if it ended, or if a look shows that its last record is its newest."""
    return rank.ending is not None or rank.silent_ns >= PATIENCE_NS


def _is_silent(rank: RankSummary, seen_ns: int | None) -> bool:
    """True if it wrote nothing while looks at other ranks were made: its own host may be lost."""
    quiet = rank.last_ns is None or seen_ns is None or seen_ns - rank.last_ns >= PATIENCE_NS
    return quiet or _stands_still(rank)


def _absent(call: LastCall, ranks: Mapping[int, RankSummary]) -> tuple[int, ...]:
    """Members that certainly have not joined the call, or that have no records."""
    return tuple(member for member in call.members if _has_joined(call, ranks.get(member)) is False)


def _has_joined(call: LastCall, rank: RankSummary | None) -> bool | None:
    """None: its summary does not show it."""
    if rank is None:
        return False
    last = rank.joined.get(call.channel)
    if last is None:
        return False if rank.whole and rank.ending != CLEAN else None
    return last >= (call.window, call.sequence)
