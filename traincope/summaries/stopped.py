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
    still_ns: int
    """Time from the first culprit's last record to the last look at a process; 0 if unknown."""


def stopped(summaries: Summaries) -> Stopped | None:
    """Find the culprits. None: no rank waits, all ended cleanly, or they run and no agent has looked at them.

    It costs as much as there are ranks and members of the groups in which a rank waits.
    """
    ranks = {rank.rank: rank for rank in summaries.ranks}
    endings = {rank.ending for rank in ranks.values()}
    looked = any(rank.looked_ns is not None for rank in ranks.values())
    waiting = {number: rank.waits for number, rank in ranks.items() if rank.waits}
    if not waiting or endings == {CLEAN} or (endings == {None} and not looked):
        return None
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
    if not roots:
        return Stopped(
            culprits=(),
            directly=tuple(sorted(waiting)),
            indirectly=(),
            axis=None,
            operation=None,
            step=None,
            doing=None,
            still_ns=0,
        )
    first, call = ranks.get(roots[0]), calls_of[roots[0]]
    seen_ns = max(rank.seen_ns for rank in ranks.values())
    return Stopped(
        culprits=tuple(roots),
        directly=direct,
        indirectly=tuple(sorted(set(waiting).difference(direct))),
        axis=call.axis,
        operation=call.operation,
        step=None if first is None else first.step,
        doing=None if first is None else first.doing,
        still_ns=0 if first is None else max(seen_ns - first.last_ns, 0),
    )


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
