"""Waits of a training for other jobs of its workflow (`traincope.wait_for`), by the role of the job."""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.attribution.terms import JOB_WAIT
from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.arrays import Ints, chosen
from traincope.events import Kind, Phase
from traincope.timeline import RankTimeline, Timeline


def job_waits(timeline: Timeline, ledger: Ledger) -> Mapping[str, int]:
    """Divide the ledger's `job_wait` among the awaited roles, in ns over ranks and steps, the largest first.

    Steps are the timed ones, as those of every term that light steps have too. What lies within such a wait, a garbage
    collection for example, has terms of its own: then the division is in proportion to the waits' lengths.
    """
    lengths: dict[str, int] = defaultdict(int)
    total_ns = 0
    for rank, own in zip(ledger.ranks, ranks_of(timeline, ledger), strict=True):
        total_ns += rank.known(JOB_WAIT)[0]
        inside = timed_waits(own, rank)
        for number, ns in zip(inside["name"].tolist(), _length_ns(inside).tolist(), strict=True):
            lengths[own.name(number)] += ns
    all_ns = sum(lengths.values())
    by_role = {role: total_ns * ns // all_ns for role, ns in lengths.items() if ns}
    return dict(sorted(by_role.items(), key=lambda item: -item[1]))


def waits(rank: RankTimeline) -> NDArray[np.void]:
    """Return the records of the training thread's waits for other jobs. An open one ends at the rank's last instant."""
    records = rank.main
    return rank.closed(chosen(records, (records["kind"] == Kind.PHASE) & (records["phase"] == Phase.JOB_WAIT)))


def timed_waits(rank: RankTimeline, ledger: RankLedger) -> NDArray[np.void]:
    """Return those of `waits` that lie in the steps of the ledger's `job_wait`: the timed ones, without the warm-up."""
    records = waits(rank)
    steps = ledger.timed if JOB_WAIT in ledger.every_step else ledger.counted
    return chosen(records, np.isin(records["step"], ledger.numbers[steps]))


def ranks_of(timeline: Timeline, ledger: Ledger) -> list[RankTimeline]:
    """Return the timeline's ranks in the ledger's order."""
    ranks = {rank.rank: rank for rank in timeline.ranks}
    return [ranks[rank.rank] for rank in ledger.ranks]


def _length_ns(records: NDArray[np.void]) -> Ints:
    lengths: Ints = records["end_ns"] - records["start_ns"]
    return lengths
