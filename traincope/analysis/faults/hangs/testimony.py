"""Testimony of the ranks about a stop: how a culprit left, errors of its threads, whom a barrier missed."""

from collections.abc import Iterator
from dataclasses import replace

from traincope.analysis.faults.exceptions import ended_threads, exception_of, exit_of
from traincope.analysis.faults.hangs.hang import Hang
from traincope.events import MONITORED, Flag, Kind
from traincope.store import RankRecords
from traincope.store.job.communication_errors import ranks_that_failed_to_pass
from traincope.timeline import RankTimeline, Timeline
from traincope.units import duration, numbers

ENDED = "ended its run before"


def with_testimony(timeline: Timeline, hang: Hang) -> Hang:
    """The same stop with what its ranks recorded about it."""
    records = {rank.rank: rank for rank in timeline.run.ranks}
    culprits = [rank for rank in timeline.ranks if rank.rank in hang.culprits]
    evidence = hang.evidence
    for rank in culprits:
        left = exit_of(rank, records[rank.rank])
        if left is not None:
            ended, how = f"rank {rank.rank} {ENDED}", f"rank {rank.rank} {left[1].last}"
            evidence = evidence.replace(ended, how) if ended in evidence else f"{how}; {evidence}"
    phrases = [phrase for rank in culprits for phrase in _threads(rank, records[rank.rank], hang)]
    phrases += [
        f"the {MONITORED} of rank {rank} missed {numbers(missed, 'rank')}"
        for rank, missed in missed_ranks(timeline)
        if set(missed) == set(hang.culprits)
    ]
    return replace(hang, evidence="; ".join([evidence, *phrases])) if phrases or evidence != hang.evidence else hang


def missed_ranks(timeline: Timeline) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Rank -> the ranks that its failed `monitored_barrier` names."""
    records = {rank.rank: rank for rank in timeline.run.ranks}
    for rank in timeline.ranks:
        ended = exception_of(rank, records[rank.rank])
        members = () if ended is None else _members(rank)
        for each in () if ended is None else ended[1].raised:
            missed = ranks_that_failed_to_pass(each.message)
            if missed and max(missed) < len(members):
                yield rank.rank, tuple(members[number] for number in missed)
                break


def _members(rank: RankTimeline) -> tuple[int, ...]:
    """Ranks of the group of the last `monitored_barrier` that failed; empty without one."""
    calls = rank.of_kind(Kind.COLLECTIVE)
    for call in calls[calls["flags"] & Flag.RAISED > 0][::-1]:
        if rank.name(int(call["name"])) == MONITORED and int(call["group"]) < len(rank.groups):
            return rank.groups[int(call["group"])].ranks
    return ()


def _threads(rank: RankTimeline, records: RankRecords, hang: Hang) -> Iterator[str]:
    """The last error of another thread of the rank, if it came before the end of the stop."""
    until_ns = rank.last_ns if hang.until_ns is None else hang.until_ns
    before = [each for each in ended_threads(rank, records) if each[0] <= until_ns]
    for at_ns, what in before[-1:]:
        yield f"{what}, {duration(until_ns - at_ns)} before" if at_ns < hang.since_ns else what
