"""Segment files: fixed records in a memory map, whole after SIGKILL up to the last one begun.

A segment is a 4 KiB header followed by `capacity` records of `events.RECORD_BYTES`. Its space is
reserved by `posix_fallocate` before it is mapped: writing into a sparse file on a full disk would
kill training with SIGBUS. Nothing counts the records; the last whose `kind` is not 0 ends them.
"""

import json
import mmap
import os
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.errors import RunDirectoryError, VersionError
from traincope.events import FIELDS, FORMAT_VERSION, OPEN, READABLE_VERSIONS, RECORD_BYTES, Flag, Kind, Phase, Work
from traincope.store.lines import parse

MAGIC = b"TRCOPSEG"
HEADER_BYTES = 4096
HEADER_WORDS = HEADER_BYTES // 8
PERMISSIONS, WRITE = 0o777, 0o222
"""Bits of a file's mode."""
LARGEST = 1 << 61
"""Times (ns) and values are below; sums of two of them are still numbers of 64 bits."""

RECORD_DTYPE = np.dtype(list(FIELDS))
if RECORD_DTYPE.itemsize != RECORD_BYTES:
    raise AssertionError("events.FIELDS does not describe events.LAYOUT")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecords:
    """The records of one segment file, in the order they were begun."""

    thread: str
    """`main` for the training thread, `thread-<n>` for others, in the order they began to write."""
    index: int
    """Position among the segments of its thread; the oldest may be gone (`disk_budget`)."""
    records: NDArray[np.void]
    """Array of RECORD_DTYPE."""
    lost_bytes: int
    """Bytes of the file that were cut off; 0 for a whole file."""
    garbled: int = 0
    """Records that make no sense, and are left out."""


class SegmentFile:
    """A new segment, reserved, mapped and empty; `words` is its memory as native int64.

    Until it is sealed and nobody has its words any more, its mode lets nobody open it to write, or cut it short, which
    is SIGBUS for who writes to the map; but root may.
    """

    def __init__(self, path: Path, *, capacity: int) -> None:
        """Under its name only once it has its header: a kill in between leaves no segment without.

        Raises OSError where the space cannot be had (disk full, quota, read-only).
        """
        self.name = path.name
        size, unborn = HEADER_BYTES + capacity * RECORD_BYTES, path.with_suffix(".new")
        self._descriptor = os.open(unborn, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            self._mode = os.fstat(self._descriptor).st_mode & PERMISSIONS
            _permit(self._descriptor, self._mode & ~WRITE)
            self.may_be_cut = os.access(unborn, os.W_OK)
            os.posix_fallocate(self._descriptor, 0, size)
            self.map = mmap.mmap(self._descriptor, size)
            header = {"version": FORMAT_VERSION, "record_bytes": RECORD_BYTES, "capacity": capacity}
            text = json.dumps(header).encode()
            self.map[: len(MAGIC) + 4 + len(text)] = MAGIC + len(text).to_bytes(4, "little") + text
            os.rename(unborn, path)
        except OSError:
            unborn.unlink(missing_ok=True)
            os.close(self._descriptor)
            raise
        self.words = memoryview(self.map).cast("q")

    def seal(self, used: int) -> int:
        """Give back the space after `used` records: none is begun in it any more. Returns how many of them are there.

        Open records before that may still be closed in place. Works by descriptor, for the
        directory may have been renamed since. A file that somebody has deleted keeps none, though
        writing to it went well; one that somebody has cut short keeps what it has.
        """
        try:
            there = os.fstat(self._descriptor)
            kept = min(max(there.st_size - HEADER_BYTES, 0) // RECORD_BYTES, used)
            if kept == used:
                os.ftruncate(self._descriptor, HEADER_BYTES + used * RECORD_BYTES)
            return kept if there.st_nlink else 0
        finally:
            weakref.finalize(self.map, _let_go, self._descriptor, self._mode, os.getpid())


def _let_go(descriptor: int, mode: int, owner_pid: int) -> None:
    """The last slot in it is gone: who is to remove the file may write to it. A forked child's slots say nothing."""
    if os.getpid() == owner_pid:
        _permit(descriptor, mode)
    with suppress(OSError):
        os.close(descriptor)


def _permit(descriptor: int, mode: int) -> None:
    with suppress(OSError):  # not every file system knows modes
        os.fchmod(descriptor, mode)


def read_segment(path: Path) -> SegmentRecords:
    """Read what was begun in a segment, whatever has happened to the file since.

    Raises VersionError for a format this traincope does not know, RunDirectoryError where not
    even the header is left.
    """
    thread, index = named(path)
    raw = path.read_bytes()
    capacity = read_header(raw, path)
    if len(raw) < HEADER_BYTES:
        raise RunDirectoryError(f"{path} is cut off in its header, and has no record left; the other ranks still open")
    usable = (len(raw) - HEADER_BYTES) // RECORD_BYTES
    records = np.frombuffer(raw, dtype=RECORD_DTYPE, count=usable, offset=HEADER_BYTES)
    begun = begun_of(records)
    torn = (len(raw) - HEADER_BYTES) % RECORD_BYTES if usable < capacity else 0
    sound = make_sense(begun)
    return SegmentRecords(
        thread=thread,
        index=index,
        records=begun if sound.all() else begun[sound],
        lost_bytes=torn,
        garbled=len(begun) - int(np.count_nonzero(sound)),
    )


def named(path: Path) -> tuple[str, int]:
    """Thread and index of a segment, by its name. Raises RunDirectoryError where it is none's."""
    thread, _, index = path.stem.rpartition("-")
    if not thread or not index.isdecimal():
        raise RunDirectoryError(
            f"{path} is not named as a segment is (main-00000.seg); remove it, the others still open"
        )
    return thread, int(index)


def own_events(records: NDArray[np.void]) -> NDArray[np.void]:
    """Events that the recorder wrote by itself; what a training calls one of its own by the same name is none."""
    own: NDArray[np.void] = records[(records["kind"] == Kind.EVENT) & (records["flags"] & Flag.GIVEN == 0)]
    return own


def begun_of(records: NDArray[np.void]) -> NDArray[np.void]:
    """Those up to the last that was begun. Empty ones between are what a file lacks that was cut and has grown again,
    or one whose writing a signal's handler ended by an exception.
    """
    begun = np.flatnonzero(records["kind"])
    return records[: int(begun[-1]) + 1] if len(begun) else records[:0]


def make_sense(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which records the recorder can have written; one absurd time would spoil every sum."""
    start, end, value, kind = (records[name] for name in ("start_ns", "end_ns", "value", "kind"))
    sound = (kind > 0) & (kind <= max(Kind)) & (records["phase"] <= max(Phase)) & (start >= 0) & (end < LARGEST)
    sound &= (end >= start) | (end == OPEN)
    sound &= (value >= 0) & (value < LARGEST) | (kind == Kind.SCALAR)
    sound &= (kind != Kind.FLOPS) | np.isin(records["tag"], list(Work))
    return np.asarray(sound & (start < LARGEST))


def read_header(raw: bytes, path: Path) -> int:
    """Of the first `HEADER_BYTES` of a segment: how many records it has room for. Raises as `read_segment`."""
    if raw[: len(MAGIC)] != MAGIC:
        raise RunDirectoryError(f"{path} is no traincope segment, or its header is gone; the other ranks still open")
    length = int.from_bytes(raw[len(MAGIC) : len(MAGIC) + 4], "little")
    header = parse(raw[len(MAGIC) + 4 : len(MAGIC) + 4 + length].decode(errors="replace"))
    fields = header if isinstance(header, dict) else {}
    version, record_bytes, capacity = (fields.get(name) for name in ("version", "record_bytes", "capacity"))
    if type(version) is not int or type(capacity) is not int:
        raise RunDirectoryError(f"{path} has a damaged header; the other ranks still open")
    if version not in READABLE_VERSIONS or record_bytes != RECORD_BYTES:
        raise VersionError(
            f"{path} is of format {version}, this traincope reads format {FORMAT_VERSION} and older; "
            "open it with the traincope that wrote it, or a newer one"
        )
    return capacity
