"""Groups between jobs: their members are ranks of several runs, so torch knows no group that joins them.

torchft, DiLoCo and other periodic averaging connect replica groups so. One run shows how long a rank was in such a
collective, but not whether it waited or sent. Runs that are read together show it: the durations of one collective on
all its members are compared, as within a run.

No name joins such a group across runs. Its members are found by what must be true of one group: equal size, a number
of its own for each member, and the same operations with the same bytes, which overlap in time one by one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Bools, Ints
from traincope.events import Flag
from traincope.timeline.clocks.clocks import ClockSource, RankClock
from traincope.timeline.collectives.elsewhere import Elsewhere, Hashes, Names, identities
from traincope.timeline.collectives.instances import closed_collectives
from traincope.timeline.timeline import RankTimeline, Timeline
from traincope.topology import BETWEEN_JOBS_AXIS, BETWEEN_JOBS_RULE, Group

MIN_PAIRED = 0.9
"""Share of the collectives of the time that two members have in common that must pair."""
MIN_PAIRS = 3
"""Fewest collectives that show that two groups are one."""
WALL_ERROR_NS = 50_000_000
"""Allowed error between the wall clocks of two hosts: NTP holds it to some ms."""


def with_groups_between_jobs(ranks: Sequence[RankTimeline], *, world_size: int) -> tuple[RankTimeline, ...]:
    """Return the ranks, with the groups marked that have members in other jobs.

    A group that torch does not know, as large as the run or smaller, has members elsewhere if the run's ranks have not
    each a number of their own in it.
    """
    members: dict[tuple[str, int], list[int]] = {}
    for group in (group for rank in ranks for group in rank.groups if group.member is not None):
        members.setdefault((group.key, group.size), []).append(group.member or 0)
    complete = len(ranks) == world_size
    beyond = {each for each, numbers in members.items() if complete and each[1] > 1 and {*numbers} != {*range(each[1])}}
    return tuple(
        replace(rank, groups=tuple(_marked(rank, group, beyond) for group in rank.groups))
        if any(group.between_jobs or (group.key, group.size) in beyond for group in rank.groups)
        else rank
        for rank in ranks
    )


def _marked(rank: RankTimeline, group: Group, beyond: set[tuple[str, int]]) -> Group:
    if not group.between_jobs and (group.member is None or (group.key, group.size) not in beyond):
        return group
    told = group.between_jobs or group.rule != "none"
    return replace(
        group,
        key=f"{group.key}@{rank.rank}",
        axis=group.axis if told else BETWEEN_JOBS_AXIS,
        rule=group.rule if told else BETWEEN_JOBS_RULE,
        between_jobs=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rank's collectives on one group between jobs, in order. Arrays have one entry per collective."""

    run: int
    """Position of its run among those read together."""
    rank: int
    group: Group
    clock: RankClock
    identity: Hashes
    operation: tuple[str, ...]
    num_bytes: Ints
    step: Ints
    start_ns: Ints
    end_ns: Ints
    bounded: Bools
    """The end is only an upper bound."""

    @property
    def duration_ns(self) -> Ints:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedGroup:
    """A group between jobs whose members are all known, with its collectives that all of them have."""

    axis: str
    members: tuple[Member, ...]
    rows: tuple[Ints, ...]
    """For each member, the positions of these collectives among its own."""

    @property
    def durations_ns(self) -> NDArray[np.int64]:
        """Members x collectives."""
        return np.stack([member.duration_ns[rows] for member, rows in zip(self.members, self.rows, strict=True)])

    @property
    def bounded(self) -> Bools:
        """True for a collective with a member whose end is only an upper bound."""
        each = [member.bounded[rows] for member, rows in zip(self.members, self.rows, strict=True)]
        bounded: Bools = np.any(each, axis=0)
        return bounded

    @property
    def on_one_clock(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Starts and ends, members x collectives; None if the members have clocks of their own."""
        first = self.members[0]
        if not all(_same_clock(first, member) for member in self.members):
            return None
        times = [_on_one_clock(first, member)[1] for member in self.members]
        starts, ends = (
            np.stack([each[side][rows] for each, rows in zip(times, self.rows, strict=True)]) for side in (0, 1)
        )
        return starts, ends

    @property
    def waits_ns(self) -> NDArray[np.int64]:
        """Members x collectives: the time until the last member joined; 0 where the records do not show it.

        All parts end at once, so durations show it, whatever the clocks. Where an end is only bounded, the starts do.
        """
        durations = self.durations_ns
        times = self.on_one_clock
        by_start = np.zeros_like(durations) if times is None else times[0].max(axis=0) - times[0]
        waits: NDArray[np.int64] = np.where(self.bounded, by_start, durations - durations.min(axis=0))
        return waits


def join_groups(timelines: Sequence[Timeline]) -> tuple[JoinedGroup, ...]:
    """Find the groups whose members are ranks of several of these runs."""
    found = [member for run, timeline in enumerate(timelines) for member in _members(run, timeline)]
    joined: list[JoinedGroup] = []
    taken: set[int] = set()
    for at, member in enumerate(found):
        if at in taken:
            continue
        others = _others(member, [(place, each) for place, each in enumerate(found) if place not in taken])
        if others is None:
            continue
        taken |= {at, *(place for place, _ in others)}
        members = (member, *(found[place] for place, _ in others))
        joined.append(_joined(members, [pairs for _, pairs in others]))
    return tuple(group for group in joined if len(group.rows[0]))


def with_joined(timelines: Sequence[Timeline], joined: Sequence[JoinedGroup]) -> tuple[Timeline, ...]:
    """Return the timelines, each with the transfers of its collectives on groups that others complete."""
    return tuple(
        timeline if (known := _elsewhere(run, joined)) is None else replace(timeline, elsewhere=known)
        for run, timeline in enumerate(timelines)
    )


def _members(run: int, timeline: Timeline) -> Iterator[Member]:
    clocks = {clock.rank: clock for clock in timeline.clocks}
    for rank in timeline.ranks:
        names = Names(operations=rank.names, groups=rank.groups, observation=rank.observation)
        for group in rank.groups:
            if not group.between_jobs:
                continue
            parts = [each[closed_collectives(each) & (each["group"] == group.number)] for each in rank.threads.values()]
            records = np.concatenate(parts)
            records = records[records["flags"] & Flag.POINT_TO_POINT == 0]
            records = records[np.argsort(records["start_ns"], kind="stable")]
            if len(records):
                yield Member(
                    run=run,
                    rank=rank.rank,
                    group=group,
                    clock=clocks[rank.rank],
                    identity=identities(records, names),
                    operation=tuple(rank.name(number) for number in records["name"].tolist()),
                    num_bytes=records["value"].astype(np.int64),
                    step=records["step"].astype(np.int64),
                    start_ns=records["start_ns"].astype(np.int64),
                    end_ns=records["end_ns"].astype(np.int64),
                    bounded=records["flags"] & Flag.DONE_BEFORE_WAIT > 0,
                )


Pairs = tuple[Ints, Ints]
"""Positions of the same collectives among those of two members."""


def _others(member: Member, found: Sequence[tuple[int, Member]]) -> list[tuple[int, Pairs]] | None:
    """Return the other members of a member's group, by their place in `found`; None if some are not known.

    The same rank of each other run comes first: replica groups are alike.
    """
    chosen: dict[int, tuple[int, Pairs]] = {}
    nearest = sorted(found, key=lambda each: (abs(each[1].rank - member.rank), each[0]))
    for place, other in nearest:
        unlike = other.group.size != member.group.size or other.group.member == member.group.member is not None
        number = other.run if other.group.member is None else other.group.member
        if other.run == member.run or unlike or number in chosen:
            continue
        pairs = _pairs(member, other)
        if pairs is not None:
            chosen[number] = place, pairs
    size = member.group.size or len(chosen) + 1
    return list(chosen.values()) if 1 < size == len(chosen) + 1 else None


def _pairs(one: Member, other: Member) -> Pairs | None:
    """Pair the collectives of two members in order; None unless almost all of the common time pair."""
    (starts, ends), (their_starts, their_ends), error_ns = _on_one_clock(one, other)
    first = max(starts[0], their_starts[0]) - error_ns
    last = min(ends[-1], their_ends[-1]) + error_ns
    ours, theirs = [], []
    at = place = 0
    while at < len(starts) and place < len(their_starts):
        same = one.operation[at] == other.operation[place] and one.num_bytes[at] == other.num_bytes[place]
        overlap = starts[at] <= their_ends[place] + error_ns and their_starts[place] <= ends[at] + error_ns
        if same and overlap:
            ours.append(at)
            theirs.append(place)
            at, place = at + 1, place + 1
        elif ends[at] < their_ends[place]:
            at += 1
        else:
            place += 1
    common = max(
        int(((starts >= first) & (ends <= last)).sum()), int(((their_starts >= first) & (their_ends <= last)).sum())
    )
    if len(ours) < max(MIN_PAIRS, MIN_PAIRED * common):
        return None
    return np.array(ours, dtype=np.int64), np.array(theirs, dtype=np.int64)


def _on_one_clock(one: Member, other: Member) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints], int]:
    """Starts and ends of both on one clock, and its error. Ranks of one host have the same monotonic clock."""
    if not _same_clock(one, other):
        return (one.start_ns, one.end_ns), (other.start_ns, other.end_ns), WALL_ERROR_NS
    by_ns = one.clock.wall_offset_ns - other.clock.wall_offset_ns
    return (one.start_ns, one.end_ns), (other.start_ns + by_ns, other.end_ns + by_ns), 0


def _same_clock(one: Member, other: Member) -> bool:
    own = {one.clock.source, other.clock.source} == {ClockSource.SAME_HOST}
    return own and one.clock.host == other.clock.host and not one.clock.corrections + other.clock.corrections


def _joined(members: tuple[Member, ...], pairs: Sequence[Pairs]) -> JoinedGroup:
    """Keep the collectives of the first member that each other member has."""
    common = pairs[0][0]
    for ours, _ in pairs[1:]:
        common = np.intersect1d(common, ours)
    rows = [common, *(theirs[np.searchsorted(ours, common)] for ours, theirs in pairs)]
    return JoinedGroup(axis=members[0].group.axis, members=members, rows=tuple(rows))


def _elsewhere(run: int, joined: Sequence[JoinedGroup]) -> Elsewhere | None:
    """Return the transfers of the collectives of one run's members; None without any."""
    columns = [
        (member.identity[rows], *_transfers(group))
        for group in joined
        for member, rows in zip(group.members, group.rows, strict=True)
        if member.run == run
    ]
    if not columns:
        return None
    identity, transfer_ns, splits = (np.concatenate(each) for each in zip(*columns, strict=True))
    order = np.argsort(identity)
    return Elsewhere(
        identity=identity[order],
        transfer_ns=transfer_ns[order],
        error_ns=np.zeros(len(order), dtype=np.int64),
        splits=splits[order],
    )


def _transfers(group: JoinedGroup) -> tuple[Ints, Bools]:
    """Return each collective's transfer, and whether it is known: the shortest part, or the time that all parts share.

    Where an end is only bounded, the shared time decides, which needs one clock.
    """
    shortest: Ints = group.durations_ns.min(axis=0)
    times = group.on_one_clock
    if times is None:
        return shortest, ~group.bounded
    starts, ends = times
    shared = np.maximum(ends.min(axis=0) - starts.max(axis=0), 0)
    return np.where(group.bounded, np.minimum(shortest, shared), shortest), np.ones(len(shortest), dtype=bool)
