"""Collectives on GPUs between instants of the host's clock that NCCL's records prove.

A kernel begins after the call that launches it, and ends before NCCL's thread on the host sees its end. Each such pair
of instants bounds the offset from the GPU's timer to the host's clock. So a call long before its kernel, or a thread
that sees an end late, moves no instant by more than the bound that other collectives of the rank give.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traincope.timeline.clocks.bounds import Evidence, bounded_offsets
from traincope.timeline.collectives.nccl import NcclRuns, nccl_runs
from traincope.timeline.timeline import TRAINING_THREAD, RankTimeline, Timeline


def proved_collectives(timeline: Timeline) -> Timeline:
    """Return a timeline of only the joined collectives, none of which began before its start or ended after its end."""
    runs = nccl_runs(timeline)
    none = {rank.rank: rank.main[:0] for rank in timeline.ranks}
    proved = none | {number: _proved(each) for number, each in runs.items()}
    return replace(timeline, ranks=tuple(_only(rank, proved[rank.rank]) for rank in timeline.ranks))


def _only(rank: RankTimeline, records: NDArray[np.void]) -> RankTimeline:
    return replace(rank, threads={TRAINING_THREAD: records})


def _proved(runs: NcclRuns) -> NDArray[np.void]:
    records = runs.calls.copy()
    records["end_ns"] = runs.seen_ns
    timed = np.flatnonzero(runs.timed)
    start_ns, end_ns = runs.device_start_ns[timed], runs.device_end_ns[timed]
    evidence = Evidence(
        upper_at_ns=end_ns,
        upper_ns=runs.seen_ns[timed] - end_ns,
        lower_at_ns=start_ns,
        lower_ns=runs.calls["start_ns"][timed] - start_ns,
    )
    offsets = bounded_offsets(evidence, begin_ns=int(start_ns.min()), end_ns=int(end_ns.max())) if len(timed) else None
    if offsets is not None:
        earliest_ns = offsets.convert(start_ns) - offsets.bounds_ns(start_ns)
        latest_ns = offsets.convert(end_ns) + offsets.bounds_ns(end_ns)
        records["start_ns"][timed] = np.maximum(records["start_ns"][timed], earliest_ns)
        records["end_ns"][timed] = np.minimum(records["end_ns"][timed], latest_ns)
    return records
