"""Changes to a recorded run of one host that put some ranks on another host with a known clock."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traincope.events import OPEN, Kind
from traincope.store import RankRecords, RunRecords
from traincope.topology import Host


def moved(run: RunRecords, ranks: Collection[int], *, ahead_ns: int, drift: float, wall_ahead_ns: int) -> RunRecords:
    """Set these ranks' monotonic clock ahead and faster, and their wall clock ahead."""
    others = [
        _moved(rank, ahead_ns=ahead_ns, drift=drift, wall_ahead_ns=wall_ahead_ns) if rank.rank in ranks else rank
        for rank in run.ranks
    ]
    return replace(run, ranks=tuple(others))


def _moved(rank: RankRecords, *, ahead_ns: int, drift: float, wall_ahead_ns: int) -> RankRecords:
    segments = []
    for segment in rank.segments:
        records = segment.records.copy()
        for name in ("start_ns", "end_ns"):
            records[name] = _shown(records[name], ahead_ns=ahead_ns, drift=drift)
        records["value"] += np.where(records["kind"] == Kind.CLOCK, wall_ahead_ns, 0)
        segments.append(replace(segment, records=records))
    info = replace(rank.info, host=Host(name="elsewhere", boot_id="elsewhere"))
    return replace(rank, segments=tuple(segments), info=info)


def _shown(times: NDArray[np.int64], *, ahead_ns: int, drift: float) -> NDArray[np.int64]:
    return np.where(times == OPEN, OPEN, times + ahead_ns + np.rint(times * drift).astype(np.int64))
