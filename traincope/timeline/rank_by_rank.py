"""The ranks of a run one by one, on the common axis, for a run that does not fit into memory.

The clocks of all ranks need the collectives of all of them. So a first pass keeps only these of each rank, and a second
one reads each rank again.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.store import RankRecords
from traincope.store.reading import read_again, read_run, require_readable
from traincope.timeline.building import CLOCK_KINDS, clocks_of, open_run, rank_timeline
from traincope.timeline.clocks.clocks import RankClock
from traincope.timeline.timeline import RankTimeline


def each_rank(path: str | Path) -> Iterator[tuple[RankTimeline, RankRecords]]:
    """Yield the timeline of each rank that has records, as in `open_run`, and these records, in rank order.

    It needs memory for one rank and for the collectives of all, if the caller lets go of a rank before the next one.
    Only an imported run is opened whole: its records come from traces. Raises like `open_run`, and RunDirectoryError
    if a rank can no longer be read or lacks a file that the system refused.
    """
    run = read_run(path, reduce=_for_clocks)
    require_readable(run)
    if run.info.imported:
        whole = open_run(path)
        records = {rank.rank: rank for rank in whole.run.ranks}
        yield from ((rank, records[rank.rank]) for rank in whole.ranks)
        return
    clocks = clocks_of(run)
    ranks = [replace(rank, segments=rank.segments[:1]) for rank in run.ranks if rank.segments]
    del run
    for kept in ranks:
        yield _read(kept, clocks[kept.rank])


def _read(kept: RankRecords, clock: RankClock) -> tuple[RankTimeline, RankRecords]:
    rank = read_again(kept)
    return rank_timeline(rank, clock), rank


def _for_clocks(rank: RankRecords) -> RankRecords:
    segments = tuple(replace(segment, records=_kept(segment.records)) for segment in rank.segments)
    return replace(rank, segments=segments, details={}, looks=())


def _kept(records: NDArray[np.void]) -> NDArray[np.void]:
    """The records of which clocks are computed, and those with the first and the last instant."""
    if not len(records):
        return records
    chosen = np.isin(records["kind"], CLOCK_KINDS)
    chosen[[records["start_ns"].argmin(), records["start_ns"].argmax(), records["end_ns"].argmax()]] = True
    return records[chosen]
