"""Incremental reader of a segment that is being written. An event is read again as long as it may change."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Ints
from traincope.events import OPEN, RECORD_BYTES
from traincope.store.segments.segments import (
    HEADER_BYTES,
    RECORD_DTYPE,
    SegmentRecords,
    begun_records,
    plausible,
    read_header,
    segment_identity,
)

CHUNK_RECORDS = 1024
"""Events read at once. Most of the reserved space is still empty."""
SETTLING_NS = 100_000_000
"""Time after an event's end in which its flags may still be written. Until then it is read again."""


class SegmentTail:
    """Events that were read and not yet released, in order of start."""

    def __init__(self, path: Path) -> None:
        """Raises RunDirectoryError if the file name is not that of a segment."""
        self.path = path
        self.thread, self.index = segment_identity(path)
        self.records: NDArray[np.void] = np.empty(0, dtype=RECORD_DTYPE)
        self.num_read = 0
        """Number of events read from the file, including skipped ones."""
        self._rows: Ints = np.empty(0, dtype=np.int64)
        """Position in the file of each of `records`."""
        self._read_at_ns = 0

    def read(self, *, now_ns: int) -> NDArray[np.void]:
        """Read the file again, and return new events.

        Raises OSError if the file is gone, RunDirectoryError if it is not a segment.
        """
        with self.path.open("rb") as file:
            descriptor = file.fileno()
            if not self.num_read:
                read_header(os.pread(descriptor, HEADER_BYTES, 0), self.path)
            self._refresh(descriptor)
            new = self._extend(descriptor)
        self._read_at_ns = now_ns
        return new

    @property
    def segment(self) -> SegmentRecords:
        """The held events as a segment."""
        return SegmentRecords(thread=self.thread, index=self.index, records=self.records, lost_bytes=0)

    def release(self, before_ns: int) -> NDArray[np.void]:
        """Release all that ended before `before_ns`, and return it."""
        starts, ends = self.records["start_ns"], self.records["end_ns"]
        kept = (starts >= before_ns) | (ends >= before_ns) | (ends == OPEN)
        given_up: NDArray[np.void] = self.records[~kept]
        if len(given_up):
            self.records, self._rows = self.records[kept], self._rows[kept]
        return given_up

    def _refresh(self, descriptor: int) -> None:
        ends = self.records["end_ns"]
        changing = np.flatnonzero((ends == OPEN) | (ends >= self._read_at_ns - SETTLING_NS))
        if not len(changing):
            return
        rows = self._rows[changing]
        fresh = records_at(descriptor, int(rows[0]), int(rows[-1] - rows[0]) + 1)
        in_file = rows - rows[0] < len(fresh)
        changed = fresh[(rows - rows[0])[in_file]]
        valid = plausible(changed)
        self.records[changing[in_file][valid]] = changed[valid]

    def _extend(self, descriptor: int) -> NDArray[np.void]:
        parts = [np.empty(0, dtype=RECORD_DTYPE)]
        first = self.num_read
        while len(part := begun_records(records_at(descriptor, self.num_read, CHUNK_RECORDS))):
            parts.append(part)
            self.num_read += len(part)
            if len(part) < CHUNK_RECORDS:
                break
        new = np.concatenate(parts)
        valid = plausible(new)
        new, rows = new[valid], np.flatnonzero(valid) + first
        self.records, self._rows = np.concatenate([self.records, new]), np.concatenate([self._rows, rows])
        return new


def num_begun(path: Path) -> int:
    """Number of events in a segment, by some probes of it. Raises OSError."""
    with path.open("rb") as file:
        descriptor = file.fileno()
        above = 1
        while _is_begun(descriptor, above - 1):
            above *= 2
        below = above // 2  # events below are begun, the one at `above - 1` is not
        while below < above - 1:
            middle = (below + above) // 2
            below, above = (middle, above) if _is_begun(descriptor, middle - 1) else (below, middle)
    return below


def records_at(descriptor: int, first: int, count: int) -> NDArray[np.void]:
    """Read up to `count` complete events from a segment, beginning with event `first`."""
    raw = os.pread(descriptor, count * RECORD_BYTES, HEADER_BYTES + first * RECORD_BYTES)
    return np.frombuffer(raw, dtype=RECORD_DTYPE, count=len(raw) // RECORD_BYTES)


def _is_begun(descriptor: int, row: int) -> bool:
    return bool(records_at(descriptor, row, 1)["kind"].any())
