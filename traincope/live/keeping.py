"""What becomes of full segments and old rows.

Segments become Parquet, of which the older ones are thinned, to keep within the disk's budget.

Thinned, a segment keeps every so-maniest step, those around what was odd on any rank of the node, and what happened
between steps; events, and what the recorder says of itself, it keeps in any case. What was left out is told as
dropped, and such steps enter no sum of the report; their ledger rows stay, after two days those of an hour as one.
Where all are thinned the oldest go, but for a thread's first, which tells how it began.
"""

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.errors import RunDirectoryError
from traincope.events import NO_PEER, NO_STEP, Kind
from traincope.live.rank import RankTail
from traincope.store import RECORD_DTYPE, SegmentRecords
from traincope.store.compacted import is_thinned, read_compacted, write_compacted
from traincope.store.layout import COMPACTED, SEGMENT, in_order, records_of
from traincope.store.segments import read_segment
from traincope.store.thinning import HOUR_NS, thin_rows

EVERY = 16
"""Of the steps of a thinned segment so-maniest are kept whole."""
RECENT_SECONDS = 600.0
"""What was compacted since stays whole, unless that alone is over the budget."""
ROWS_EVERY_NS = 6 * HOUR_NS
ALWAYS = (Kind.EVENT, Kind.CLOCK, Kind.DROPPED, Kind.FLOPS)


class Keeper:
    """Of the segments of a node's ranks."""

    def __init__(self, *, disk_budget_bytes: int) -> None:
        """`disk_budget_bytes`: of each thread of a rank."""
        self._budget_bytes = disk_budget_bytes
        self._thinned: dict[Path, bool] = {}

    def tidy(self, tail: RankTail) -> None:
        """Compact what is full. Raises OSError, MissingDependencyError."""
        full = tail.full_segments()
        for segment in full:
            compact(segment.path)
            tail.forget(segment)
        for thread in sorted({segment.thread for segment in full}):
            self._keep_within(tail.directory, thread, odd_steps=tail.odd_steps)

    def _keep_within(self, directory: Path, thread: str, *, odd_steps: Iterable[int]) -> None:
        files = [path for path in records_of(directory, thread=thread) if path.stem.rpartition("-")[0] == thread]
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


class RowKeeper:
    """Of the rows of a node's ranks: it looks through them when it begins, and then now and then."""

    def __init__(self) -> None:
        self._due_ns: dict[int, int] = {}

    def tidy(self, tail: RankTail, *, now_ns: int) -> None:
        """`now_ns`: `time.monotonic_ns()`. Raises OSError."""
        if now_ns >= self._due_ns.get(tail.rank, 0):
            self._due_ns[tail.rank] = now_ns + ROWS_EVERY_NS
            thin_rows(tail.directory, rank=tail.rank)


class Idle:
    """Keeps segments as they are: without pyarrow there is nothing else to do."""

    def tidy(self, tail: RankTail) -> None:
        for segment in tail.full_segments():
            tail.forget(segment)


def compact(path: Path) -> None:
    """A segment that nobody writes to, into Parquet. One that is damaged stays as it is.

    Raises OSError, MissingDependencyError; the segment is then still there.
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
    """Segments whose compaction was cut short when they had been compacted already."""
    for path in directory.glob(f"*{COMPACTED}"):
        path.with_suffix(SEGMENT).unlink(missing_ok=True)


def thin(path: Path, *, odd_steps: Iterable[int]) -> None:
    """Raises as `read_compacted` and `write_compacted`."""
    segment = read_compacted(path)
    kept = _worth_keeping(segment.records, odd_steps=odd_steps)
    write_compacted(path.parent, _without(segment, kept), thinned=True)


def remove(path: Path, *, first: Path) -> None:
    """What it held is told as dropped by the `first` of its thread. Raises as `read_compacted`."""
    gone, beginning = read_compacted(path).records, read_compacted(first)
    earlier = int(gone["value"][gone["kind"] == Kind.DROPPED].sum())
    whole = ~np.isin(beginning.records["step"], gone["step"][gone["step"] != NO_STEP])
    left = _without(beginning, whole | np.isin(beginning.records["kind"], ALWAYS))
    lost = int(np.count_nonzero(gone["kind"] != Kind.DROPPED)) + earlier
    records = np.concatenate([left.records, _dropped(lost, at=left.records[-1:])])
    write_compacted(first.parent, replace(left, records=records), thinned=True)
    path.unlink()


def _worth_keeping(records: NDArray[np.void], *, odd_steps: Iterable[int]) -> NDArray[np.bool_]:
    odd = np.array(sorted(odd_steps), dtype=np.int64)
    around = np.concatenate([odd - 1, odd, odd + 1])
    steps = records["step"]
    kept: NDArray[np.bool_] = (steps == NO_STEP) | (steps % EVERY == 0) | np.isin(steps, around)
    return kept | np.isin(records["kind"], ALWAYS)


def _without(segment: SegmentRecords, kept: NDArray[np.bool_]) -> SegmentRecords:
    lost = len(kept) - int(np.count_nonzero(kept))
    records = np.concatenate([segment.records[kept], _dropped(lost, at=segment.records[-1:])])
    return replace(segment, records=records if lost else segment.records)


def _dropped(count: int, *, at: NDArray[np.void]) -> NDArray[np.void]:
    """The record that tells of it, at the instant of another."""
    record = np.zeros(1, dtype=RECORD_DTYPE)
    record["start_ns"] = record["end_ns"] = at["start_ns"]
    record["step"], record["peer"], record["kind"], record["value"] = NO_STEP, NO_PEER, Kind.DROPPED, count
    return record
