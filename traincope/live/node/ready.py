"""Selection of steps that can be reduced: no rank will change their events any more.

A wait is split from its transfer by the events of all ranks. So a step waits until all ranks have finished it, and
either all have finished the next step too, or one second has passed and every collective that began in the step has
ended. An asynchronous collective may be found complete long after. A rank that hangs delays the others only for
`PATIENCE_NS`.

Copies of other hosts' ranks arrive some seconds later. A step waits for those of ranks that are still being copied, up
to `AWAITED_NS`. After that, its groups that span hosts stay unsplit. Results about groups with hosts without copies are
waited for up to `RESULTS_AWAITED_NS`.

A GPU may reach its marks long after its host has queued them. A step waits for those of its end on every GPU, up to
`MARKS_AWAITED_NS`. After that it has the length of the hosts. One with detail has no terms, or, if marks measure fewer
than half of the steps, those of the hosts.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traincope.events import OPEN, Flag, Kind
from traincope.live.node.rank import MAIN, RankTail
from traincope.live.window import CopiedRank, RankStatus
from traincope.timeline.collectives.elsewhere import NO_IDENTITY, Elsewhere, identities
from traincope.timeline.collectives.instances import closed_collectives
from traincope.timeline.intervals.numbering import UNKNOWN

SETTLING_NS = 1_000_000_000
PATIENCE_NS = 30_000_000_000
AWAITED_NS = 15_000_000_000
"""Longest wait of a ready step for copies of other hosts' ranks. Two copies are about 4 seconds apart at most."""
RESULTS_AWAITED_NS = 30_000_000_000
"""Longest wait for the results of collectives with hosts without copies: they go up and down the tree of agents."""
MARKS_AWAITED_NS = 60_000_000_000
"""Longest wait of a ready step for its marks. A host is rarely more than a step ahead of its GPU."""
NO_READY_STEP = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of one rank."""

    done: int
    """Last step that was reduced."""
    ends_ns: Mapping[int, int]
    """Finished step that is not reduced -> its end on the host's monotonic clock."""
    open_since_ns: int | None
    """Start of the oldest open collective."""
    over: bool
    unmarked: frozenset[int] = frozenset()
    """Steps of `ends_ns` whose marks are awaited."""

    @property
    def finished(self) -> int:
        return max(self.ends_ns, default=self.done)


def progress(tail: RankTail, status: RankStatus) -> Progress:
    steps = tail.finished_steps()
    new = steps[steps["step"] > tail.done]
    return Progress(
        done=tail.done,
        ends_ns=dict(zip(new["step"].tolist(), new["end_ns"].tolist(), strict=True)),
        open_since_ns=tail.open_since_ns(),
        over=status.over,
        unmarked=tail.unmarked_steps(),
    )


def last_ready(ranks: Sequence[Progress], *, expected: int, now_ns: int) -> int:
    """Last step that can be reduced, or `NO_READY_STEP`. `expected`: number of ranks on the node."""
    finished = max((rank.finished for rank in ranks), default=NO_READY_STEP)
    running = [rank for rank in ranks if not rank.over]
    if not running or now_ns - _oldest_ns(ranks, default_ns=now_ns) > PATIENCE_NS:
        return finished
    if len(ranks) < expected:
        return NO_READY_STEP
    common = min(rank.finished for rank in running)
    return common if _settled(running, common, now_ns=now_ns) else common - 1


def last_arrived(ranks: Sequence[Progress], others: Sequence[CopiedRank], *, until: int, now_ns: int) -> int:
    """Last step up to `until` whose copies of other hosts' ranks have arrived, or are not waited for any more.

    A rank's part in a step is complete once its copies hold the end of the next step.
    """
    awaited = [other for other in others if now_ns - other.arrived_ns <= AWAITED_NS]
    if all(rank.over for rank in ranks) or not awaited:
        return until
    ended_ns: dict[int, int] = defaultdict(int)
    for step, end_ns in (item for rank in ranks for item in rank.ends_ns.items()):
        ended_ns[step] = max(ended_ns[step], end_ns)
    overdue = [step for step, end_ns in ended_ns.items() if now_ns - ended_ns.get(step + 1, end_ns) > AWAITED_NS]
    return min(until, max([min(map(_finished, awaited)) - 1, *overdue]))


def awaited_step(tail: RankTail, elsewhere: Elsewhere, *, seen: Collection[int], now_ns: int) -> int | None:
    """First step of a rank with a collective whose result from the agents of other hosts is still waited for.

    `seen`: ranks of which this agent has records. A group of these alone needs no result.
    """
    records = np.concatenate([part.records[closed_collectives(part.records)] for part in tail.records().segments])
    ranks = frozenset(seen)
    beyond = [number for number, group in enumerate(tail.groups) if not ranks.issuperset(group.ranks)]
    recent = (records["step"] > tail.done) & (now_ns - records["end_ns"] <= RESULTS_AWAITED_NS)
    awaited = records[recent & np.isin(records["group"], beyond)]
    missing = identities(awaited, tail.names_of_calls())
    awaited = awaited[(missing != NO_IDENTITY) & (elsewhere.find(missing) == UNKNOWN)]
    return int(awaited["step"].min()) if len(awaited) else None


def last_marked(ranks: Sequence[Progress], *, until: int, now_ns: int) -> int:
    """Last step up to `until` whose marks have come on every GPU, or are not waited for any more."""
    awaited = [
        step
        for rank in ranks
        if not rank.over
        for step in rank.unmarked
        if now_ns - rank.ends_ns[step] <= MARKS_AWAITED_NS
    ]
    return min([until, *(step - 1 for step in awaited)])


def _finished(other: CopiedRank) -> int:
    """Last complete step in the copies of a rank."""
    main = other.records.thread(MAIN)
    steps = main[(main["kind"] == Kind.STEP) & (main["end_ns"] != OPEN) & (main["flags"] & Flag.PARTIAL == 0)]
    return int(steps["step"].max(initial=NO_READY_STEP))


def _oldest_ns(ranks: Sequence[Progress], *, default_ns: int) -> int:
    """End of the oldest step that is not reduced."""
    return min((int(np.min(list(rank.ends_ns.values()))) for rank in ranks if rank.ends_ns), default=default_ns)


def _settled(running: Sequence[Progress], step: int, *, now_ns: int) -> bool:
    ends_ns = [rank.ends_ns[step] for rank in running if step in rank.ends_ns]
    if not ends_ns or all(rank.finished > step for rank in running):
        return True
    ended_ns = max(ends_ns)
    is_open = any(rank.open_since_ns is not None and rank.open_since_ns < ended_ns for rank in running)
    return now_ns - ended_ns >= SETTLING_NS and not is_open
