"""Retention of full segments and old rows.

Full segments become Parquet. The older ones are thinned to keep within the disk budget. A thinned segment keeps every
16th step, the steps around anomalies on any rank of the node, and events between steps. It always keeps EVENT, CLOCK,
DROPPED, FLOPS and USAGE events. Removed events are counted as dropped, and their steps enter no sum of the report. The
ledger rows stay; after two days the rows of an hour become one. If all segments are thinned, the oldest are removed,
except the first of a thread, which shows how the thread began.
"""

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.errors import RunDirectoryError
from traincope.events import NO_PEER, NO_STEP, Kind
from traincope.live.node.rank import RankTail
from traincope.store import RECORD_DTYPE, SegmentRecords
from traincope.store.layout import COMPACTED, SEGMENT, in_order, record_files
from traincope.store.segments.compacted import is_thinned, read_compacted, write_compacted
from traincope.store.segments.segments import read_segment
from traincope.store.side_tables.row_thinning import thin_rows
from traincope.store.side_tables.rows import HOUR_NS

STEP_STRIDE = 16
"""A thinned segment keeps one step in this many."""
RECENT_SECONDS = 600.0
"""Segments compacted within this time stay complete, unless they alone exceed the budget."""
ROW_THINNING_NS = 6 * HOUR_NS
ALWAYS_KEPT = (Kind.EVENT, Kind.CLOCK, Kind.DROPPED, Kind.FLOPS, Kind.USAGE)


class SegmentRetention:
    """Retention of the segments of a node's ranks."""

    def __init__(self, *, disk_budget_bytes: int) -> None:
        """`disk_budget_bytes`: budget of each thread of a rank."""
        self._budget_bytes = disk_budget_bytes
        self._thinned: dict[Path, bool] = {}

    def apply(self, tail: RankTail) -> None:
        """Compact full segments. Raises OSError, MissingDependencyError."""
        full = tail.full_segments()
        for segment in full:
            compact(segment.path)
            tail.forget(segment)
        for thread in sorted({segment.thread for segment in full}):
            self._keep_within(tail.directory, thread, odd_steps=tail.odd_steps)

    def _keep_within(self, directory: Path, thread: str, *, odd_steps: Iterable[int]) -> None:
        files = [path for path in record_files(directory, thread=thread) if path.stem.rpartition("-")[0] == thread]
        while sum(path.stat().st_size for path in files) > self._budget_bytes:
            compacted = in_order(path for path in files if path.suffix == COMPACTED)
            whole = [path for path in compacted if not self._is_thinned(path)]
            old = [path for path in whole if path.stat().st_mtime < time.time() - RECENT_SECONDS]
            if old or whole:
                path = (old or whole)[0]
                thin(path, odd_steps=odd_steps)
                self._thinned[path] = True
            elif len(compacted) > 1:
                remove(compacted[1], first=compacted[0])
                files.remove(compacted[1])
                self._thinned.pop(compacted[1])
            else:
                return

    def _is_thinned(self, path: Path) -> bool:
        if path not in self._thinned:
            self._thinned[path] = is_thinned(path)
        return self._thinned[path]


class RowRetention:
    """Retention of the rows of a node's ranks. It thins them at the start and then every `ROW_THINNING_NS`."""

    def __init__(self) -> None:
        self._due_ns: dict[int, int] = {}

    def apply(self, tail: RankTail, *, now_ns: int) -> None:
        """Thin the rank's rows if it is time. `now_ns`: `time.monotonic_ns()`. Raises OSError."""
        if now_ns >= self._due_ns.get(tail.rank, 0):
            self._due_ns[tail.rank] = now_ns + ROW_THINNING_NS
            thin_rows(tail.directory, rank=tail.rank)


class NoRetention:
    """Keep segments as they are. Without pyarrow they cannot be compacted."""

    def apply(self, tail: RankTail) -> None:
        for segment in tail.full_segments():
            tail.forget(segment)


def compact(path: Path) -> None:
    """Convert a segment that is no longer written to Parquet. A damaged one stays as it is.

    Raises OSError, MissingDependencyError; the segment then still exists.
    """
    try:
        segment = read_segment(path)
    except (FileNotFoundError, RunDirectoryError):
        return
    if segment.lost_bytes or segment.garbled:
        return
    write_compacted(path.parent, segment)
    path.unlink(missing_ok=True)


def remove_leftovers(directory: Path) -> None:
    """Remove segments that were compacted by an agent that was killed before it removed them."""
    for path in directory.glob(f"*{COMPACTED}"):
        path.with_suffix(SEGMENT).unlink(missing_ok=True)


def thin(path: Path, *, odd_steps: Iterable[int]) -> None:
    """Thin a compacted segment. Raises as `read_compacted` and `write_compacted`."""
    segment = read_compacted(path)
    kept = _kept_by_thinning(segment.records, odd_steps=odd_steps)
    write_compacted(path.parent, _without(segment, kept), thinned=True)


def remove(path: Path, *, first: Path) -> None:
    """Remove a segment. The `first` segment of its thread counts its events as dropped. Raises as `read_compacted`."""
    removed, beginning = read_compacted(path).records, read_compacted(first)
    earlier = int(removed["value"][removed["kind"] == Kind.DROPPED].sum())
    whole = ~np.isin(beginning.records["step"], removed["step"][removed["step"] != NO_STEP])
    left = _without(beginning, whole | np.isin(beginning.records["kind"], ALWAYS_KEPT))
    num_lost = int(np.count_nonzero(removed["kind"] != Kind.DROPPED)) + earlier
    records = np.concatenate([left.records, _dropped(num_lost, at=left.records[-1:])])
    write_compacted(first.parent, replace(left, records=records), thinned=True)
    path.unlink()


def _kept_by_thinning(records: NDArray[np.void], *, odd_steps: Iterable[int]) -> NDArray[np.bool_]:
    odd = np.array(sorted(odd_steps), dtype=np.int64)
    around = np.concatenate([odd - 1, odd, odd + 1])
    steps = records["step"]
    kept: NDArray[np.bool_] = (steps == NO_STEP) | (steps % STEP_STRIDE == 0) | np.isin(steps, around)
    return kept | np.isin(records["kind"], ALWAYS_KEPT)


def _without(segment: SegmentRecords, kept: NDArray[np.bool_]) -> SegmentRecords:
    num_lost = len(kept) - int(np.count_nonzero(kept))
    records = np.concatenate([segment.records[kept], _dropped(num_lost, at=segment.records[-1:])])
    return replace(segment, records=records if num_lost else segment.records)


def _dropped(count: int, *, at: NDArray[np.void]) -> NDArray[np.void]:
    """DROPPED event with this count, at the time of event `at`."""
    record = np.zeros(1, dtype=RECORD_DTYPE)
    record["start_ns"] = record["end_ns"] = at["start_ns"]
    record["step"], record["peer"], record["kind"], record["value"] = NO_STEP, NO_PEER, Kind.DROPPED, count
    return record
