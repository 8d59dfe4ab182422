"""What the ranks share whose part of a collective stands still although all members joined it.

Some members got the result and the others did not; or, by NCCL's own records, the collective's kernel did not begin or
end on some. If all of these are on one host, NVLink domain, rack or rail, and not all members are, that place is named.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from traincope.analysis.faults.hangs.evidence.calls import Call
from traincope.analysis.stragglers.slow_groups import GroupKind, place_name, rank_groups
from traincope.arrays import chosen, joined
from traincope.store import RunRecords
from traincope.store.segments.nccl import NcclOperation, nccl_operations
from traincope.store.segments.segments import RECORD_DTYPE
from traincope.timeline import RankTimeline, Timeline
from traincope.timeline.collectives.nccl import FUNCTIONS, NCCL_KINDS, is_of_group
from traincope.units import numbers

UNKNOWN_MEMBERS = "the records do not show on which members it stands still, so what these share is unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Halted:
    """Members of a collective that stand still, while the others do not."""

    ranks: tuple[int, ...]
    lack: str
    """What they did not do, and the others did."""


def where_halted(timeline: Timeline, call: Call, *, lacking: Collection[int]) -> tuple[str | None, str]:
    """Return the common place of the members that stand still, None if it is unknown, and a phrase about them.

    `lacking`: members that are known to have no result.
    """
    halted = halted_members(timeline, call, lacking=lacking)
    if halted is None:
        return None, UNKNOWN_MEMBERS
    who = f"{numbers(halted.ranks, 'rank')} did not {halted.lack}, and the other members did"
    place, ranks = common_place(timeline.run, halted.ranks, call.members)
    if place is None:
        return None, f"{who}; what they share is unknown: no host, NVLink domain, rack or rail has them all"
    others = sorted({*ranks} & {*call.members} - {*halted.ranks})
    rest = f", which also has {numbers(others, 'rank')}" if others else ", and all members there"
    return place, f"{who}: all on {place}{rest}"


def halted_members(timeline: Timeline, call: Call, *, lacking: Collection[int]) -> Halted | None:
    """Return the members that stand still. None if the records do not tell them from the others."""
    members = sorted(call.members)
    if 0 < len(lacking) < len(members):
        return Halted(ranks=tuple(sorted(lacking)), lack="get its result")
    found = {rank.rank: _last_operation(rank, call) for rank in timeline.ranks if rank.rank in members}
    last = {rank: operation for rank, operation in found.items() if operation is not None}
    if len(last) < len(members) or len({_identity(operation) for operation in last.values()}) > 1:
        return None
    not_begun = tuple(rank for rank in members if not last[rank].begun)
    not_ended = tuple(rank for rank in members if last[rank].end_ns is None)
    if 0 < len(not_begun) < len(members):
        return Halted(ranks=not_begun, lack="begin it on their GPU")
    return Halted(ranks=not_ended, lack="end it on their GPU") if 0 < len(not_ended) < len(members) else None


def common_place(
    run: RunRecords, ranks: Collection[int], members: Collection[int]
) -> tuple[str | None, tuple[int, ...]]:
    """Return the place with the fewest members that has all these ranks, and not all members, and the ranks there. Of
    one rank it is the host.

    Without the records of a member, its place is unknown, and so is what the others share.
    """
    if not {*members} <= {rank.rank for rank in run.ranks}:
        return None, ()
    places = [
        (len({*members} & {*of}), place_name(kind, name), tuple(of))
        for kind, groups in rank_groups(run)
        for name, of in groups.items()
        if {*ranks} <= {*of} and not {*members} <= {*of} and (len(ranks) > 1 or kind is GroupKind.HOST)
    ]
    _, place, of = min(places, default=(0, None, ()))
    return place, of


def _last_operation(rank: RankTimeline, call: Call) -> NcclOperation | None:
    """Return the last operation of this rank that can be its part of the call."""
    parts = [np.empty(0, dtype=RECORD_DTYPE)]
    parts += [chosen(records, np.isin(records["kind"], NCCL_KINDS)) for records in rank.threads.values()]
    functions = FUNCTIONS.get(call.operation, ())
    fitting = [
        operation
        for operation in nccl_operations(joined(parts))
        if operation.function in functions and is_of_group(call.group, operation, rank.rank)
    ]
    return max(fitting, key=lambda operation: operation.number, default=None)


def _identity(operation: NcclOperation) -> tuple[int | None, str | None, int]:
    return operation.communicator, operation.function, operation.sequence
