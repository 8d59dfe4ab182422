"""A segment that is being written, read as it grows: every record once, and again as long as it may change."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.events import OPEN, RECORD_BYTES
from traincope.store.segments import (
    HEADER_BYTES,
    RECORD_DTYPE,
    SegmentRecords,
    begun_of,
    make_sense,
    named,
    read_header,
)

CHUNK = 1024
"""Records read at once: of the space that is reserved most is still empty."""
SETTLING_NS = 100_000_000
"""A record's flags may be written after its end, and it is read again until they must be there."""

Ints = NDArray[np.int64]


class SegmentTail:
    """Holds the records that were read and not yet released, in the order they were begun."""

    def __init__(self, path: Path) -> None:
        """Raises RunDirectoryError where the file is not named as a segment is."""
        self.path = path
        self.thread, self.index = named(path)
        self.records: NDArray[np.void] = np.empty(0, dtype=RECORD_DTYPE)
        self.num_read = 0
        """Records of the file that were looked at, whatever became of them."""
        self._rows: Ints = np.empty(0, dtype=np.int64)
        """Where in the file each of `records` is."""
        self._read_at_ns = 0

    def read(self, *, now_ns: int) -> NDArray[np.void]:
        """Bring the records up to date; returns those that are new.

        Raises OSError where the file is gone, RunDirectoryError where it is no segment.
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
        """What is held of it."""
        return SegmentRecords(thread=self.thread, index=self.index, records=self.records, lost_bytes=0)

    @property
    def has_open(self) -> bool:
        return bool((self.records["end_ns"] == OPEN).any())

    def release(self, before_ns: int) -> NDArray[np.void]:
        """Give up what had ended before; returns it."""
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
        fresh = _records(descriptor, int(rows[0]), int(rows[-1] - rows[0]) + 1)
        there = rows - rows[0] < len(fresh)
        changed = fresh[(rows - rows[0])[there]]
        sound = make_sense(changed)
        self.records[changing[there][sound]] = changed[sound]

    def _extend(self, descriptor: int) -> NDArray[np.void]:
        parts = [np.empty(0, dtype=RECORD_DTYPE)]
        first = self.num_read
        while len(part := begun_of(_records(descriptor, self.num_read, CHUNK))):
            parts.append(part)
            self.num_read += len(part)
            if len(part) < CHUNK:
                break
        new = np.concatenate(parts)
        sound = make_sense(new)
        new, rows = new[sound], np.flatnonzero(sound) + first
        self.records, self._rows = np.concatenate([self.records, new]), np.concatenate([self._rows, rows])
        return new


def _records(descriptor: int, first: int, count: int) -> NDArray[np.void]:
    """Up to `count` whole records from the file."""
    raw = os.pread(descriptor, count * RECORD_BYTES, HEADER_BYTES + first * RECORD_BYTES)
    return np.frombuffer(raw, dtype=RECORD_DTYPE, count=len(raw) // RECORD_BYTES)
