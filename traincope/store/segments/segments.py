"""Segment files: fixed-size records in a memory map. After SIGKILL all records are there, up to the last one begun.

A segment is a 4 KiB header followed by `capacity` records of `events.RECORD_BYTES`. `posix_fallocate` reserves its
space before it is mapped, because writing into a sparse file on a full disk would kill training with SIGBUS. There is
no counter: the last record whose `kind` is not 0 is the last one.
"""

import errno
import json
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import chosen
from traincope.errors import RunDirectoryError, VersionError
from traincope.events import FIELDS, FORMAT_VERSION, OPEN, READABLE_VERSIONS, RECORD_BYTES, Flag, Kind, Phase, Work
from traincope.private_files import file_mode, open_regular
from traincope.store.lines import parse
from traincope.store.segments.mapping import map_file

MAGIC = b"TRCOPSEG"
HEADER_BYTES = 4096
PERMISSIONS, WRITE = 0o777, 0o222
"""Bits of a file's mode."""
LIMIT = 1 << 61
"""Upper bound of times (ns) and values; the sum of two still fits into 64 bits."""

Directories = Callable[[], tuple[Path, ...]]
"""Returns the directories in which a file may be by now: its directory may be renamed at any moment."""

LAST_KIND, LAST_PHASE, WORKS = max(Kind), max(Phase), tuple(Work)

INTERVALS = (Kind.STEP, Kind.PHASE, Kind.ACTION, Kind.COLLECTIVE, Kind.STALL, Kind.SPAN)
"""Kinds of records with a begin and an end."""

RECORD_DTYPE = np.dtype(list(FIELDS))
if RECORD_DTYPE.itemsize != RECORD_BYTES:
    raise AssertionError("events.FIELDS does not describe events.LAYOUT")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecords:
    """The records of one segment file, in order of begin."""

    thread: str
    """`main` for the training thread, `thread-<n>` for others, in the order of their first records."""
    index: int
    """Position among the segments of its thread; the oldest may have been deleted (`disk_budget`)."""
    records: NDArray[np.void]
    """Array of RECORD_DTYPE."""
    lost_bytes: int
    """Bytes of the file that were cut off; 0 for a complete file."""
    garbled: int = 0
    """Implausible records; they are left out. Not counted: records whose writing a signal handler stopped."""
    cut: bool = False
    """A copy that lacks records of its time: it has only those from its first one on."""


class SegmentFile:
    """A new segment, reserved, mapped and empty; `words` is its memory as native int64. No descriptor of it stays open.

    Until it is sealed and its words are released, the file's mode forbids opening it for writing or truncating it.
    Truncating would cause SIGBUS in the process that writes to the map. Root can still do it.
    """

    def __init__(self, path: Path, *, capacity: int, directories: Directories | None = None) -> None:
        """Create the file; it gets its name after its header, so a kill never leaves a segment without a header.

        `directories`: returns where the file may be later, if its directory may be renamed. Raises OSError if the space
        cannot be reserved (disk full, quota, read-only).
        """
        self.name = path.name
        size, new_path = HEADER_BYTES + capacity * RECORD_BYTES, path.with_suffix(".new")
        new_path.unlink(missing_ok=True)  # of an attempt that a signal handler's exception ended
        descriptor = os.open(new_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, file_mode())
        try:
            status = os.fstat(descriptor)
            _permit(descriptor, status.st_mode & PERMISSIONS & ~WRITE)
            self.can_be_truncated = os.access(new_path, os.W_OK)
            os.posix_fallocate(descriptor, 0, size)
            self.map = map_file(descriptor, size)
            header = _header(capacity)
            self.map[: len(header)] = header
            os.rename(new_path, path)
        except OSError:
            new_path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self._file = _CreatedFile(path.name, status, directories or (lambda: (path.parent,)))
        self.words = memoryview(self.map).cast("q")

    def seal(self, used: int) -> int:
        """Release the space after `used` records, when no further record is begun in it.

        Returns the number of records kept. Open records before that can still be closed in place. A deleted file keeps
        none, although writing to it succeeded; a truncated file keeps its rest.
        """
        weakref.finalize(self.map, self._file.release)
        size, end = self._file.size(), HEADER_BYTES + used * RECORD_BYTES
        if size is None:
            return 0
        if size > end:
            self._file.cut(end)
        return min(max(size - HEADER_BYTES, 0) // RECORD_BYTES, used)


class _CreatedFile:
    """A file that this process created and may write to while its mode forbids that. It is opened by its name each
    time. A file that has taken its place, and a file of a parent process, are left alone.
    """

    def __init__(self, name: str, status: os.stat_result, directories: Directories) -> None:
        self._name, self._status, self._directories = name, status, directories
        self._owner_pid = os.getpid()

    def size(self) -> int | None:
        """Return its size in bytes; None if it is deleted."""
        for directory in self._directories():
            with suppress(OSError):
                status = os.stat(directory / self._name, follow_symlinks=False)
                if os.path.samestat(status, self._status):
                    return status.st_size
        return None

    def cut(self, size: int) -> None:
        """Cut it off. Without a free descriptor it keeps its size, which costs space but no record."""
        with suppress(OSError), self._open(os.O_RDONLY) as reading:
            _permit(reading, self._status.st_mode & PERMISSIONS)
            with suppress(OSError), self._open(os.O_WRONLY) as writing:
                os.ftruncate(writing, size)
            _permit(reading, self._status.st_mode & PERMISSIONS & ~WRITE)

    def release(self) -> None:
        """Allow writing to it, so that it can be deleted. To be called when the last slot in it is gone."""
        if os.getpid() == self._owner_pid:
            with suppress(OSError), self._open(os.O_RDONLY) as descriptor:
                _permit(descriptor, self._status.st_mode & PERMISSIONS)

    @contextmanager
    def _open(self, flags: int) -> Iterator[int]:
        descriptor = self._opened(flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _opened(self, flags: int) -> int:
        for directory in self._directories():
            with suppress(FileNotFoundError):
                descriptor = open_regular(directory / self._name, flags | os.O_NOFOLLOW)
                if os.path.samestat(os.fstat(descriptor), self._status):
                    return descriptor
                os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._name)


def _permit(descriptor: int, mode: int) -> None:
    with suppress(OSError):  # not every file system has modes
        os.fchmod(descriptor, mode)


def segment_content(records: NDArray[np.void], *, cut: bool = False) -> bytes:
    """Content of a sealed segment file that holds these records. `cut`: as in `SegmentRecords`."""
    return _header(len(records), cut=cut).ljust(HEADER_BYTES, b"\0") + records.tobytes()


def is_cut(content: bytes) -> bool:
    """Return whether the content of a segment is marked as `cut`. False without a readable header."""
    return _header_fields(content).get("cut") is True


def _header(capacity: int, *, cut: bool = False) -> bytes:
    fields = {"version": FORMAT_VERSION, "record_bytes": RECORD_BYTES, "capacity": capacity}
    fields |= {"cut": True} if cut else {}
    text = json.dumps(fields).encode()
    return MAGIC + len(text).to_bytes(4, "little") + text


def read_segment(path: Path) -> SegmentRecords:
    """Read the records begun in a segment, also from a damaged file.

    Raises VersionError for an unknown format, RunDirectoryError if not even the header is left.
    """
    thread, index = segment_identity(path)
    raw = path.read_bytes()
    capacity = read_header(raw, path)
    if len(raw) < HEADER_BYTES:
        raise RunDirectoryError(f"{path} is cut off in its header, and has no record left; the other ranks still open")
    usable = (len(raw) - HEADER_BYTES) // RECORD_BYTES
    records = np.frombuffer(raw, dtype=RECORD_DTYPE, count=usable, offset=HEADER_BYTES)
    begun = begun_records(records)
    torn = (len(raw) - HEADER_BYTES) % RECORD_BYTES if usable < capacity else 0
    sound = plausible(begun)
    return SegmentRecords(
        thread=thread,
        index=index,
        records=begun if sound.all() else begun[sound],
        lost_bytes=torn,
        garbled=int(np.count_nonzero(~sound & ~_interrupted(begun))),
        cut=is_cut(raw),
    )


def segment_identity(path: Path) -> tuple[str, int]:
    """Thread and index of a segment, from its name. Raises RunDirectoryError for another name."""
    thread, _, index = path.stem.rpartition("-")
    if not thread or not index.isdecimal():
        raise RunDirectoryError(
            f"{path} does not have the name of a segment (main-00000.seg); remove it, the others still open"
        )
    return thread, int(index)


def recorder_events(records: NDArray[np.void]) -> NDArray[np.void]:
    """Events that the recorder itself wrote; a user's event of the same name does not count."""
    return chosen(records, (records["kind"] == Kind.EVENT) & (records["flags"] & Flag.GIVEN == 0))


def last_instant_ns(records: NDArray[np.void]) -> int:
    """The latest start or end of these records; 0 without records."""
    return int(max(records["start_ns"].max(initial=0), records["end_ns"].max(initial=0)))


def own_work(records: NDArray[np.void], *, raised: bool) -> NDArray[np.void]:
    """Intervals that the training began by itself: its steps, their phases, collectives and waits.

    Garbage collection is none of them: it also runs while a rank waits or dies. If an exception ended the process
    (`raised`), what began after the first failed collective of the last step handles that failure.
    """
    garbage = (records["kind"] == Kind.PHASE) & (records["phase"] == Phase.GC)
    work = chosen(records, np.isin(records["kind"], INTERVALS) & ~garbage)
    if not raised:
        return work
    complete = (work["kind"] == Kind.STEP) & (work["end_ns"] != OPEN) & (work["flags"] & Flag.PARTIAL == 0)
    failed = (work["flags"] & Flag.RAISED > 0) & (work["end_ns"] >= work["end_ns"][complete].max(initial=0))
    return chosen(work, work["start_ns"] <= work["end_ns"][failed].min(initial=LIMIT))


def last_progress_ns(records: NDArray[np.void], *, raised: bool) -> int:
    """The latest instant at which a thread began or ended something by itself; 0 without one.

    An exception ends what was open, which is no progress, and only communication has a flag for it. So
    ends do not count if one ended the process (`raised`).
    """
    work = own_work(records, raised=raised)
    kept = work[work["flags"] & Flag.RAISED == 0]
    ends_ns = kept["end_ns"][kept["end_ns"] != OPEN]
    return int(max(kept["start_ns"].max(initial=0), 0 if raised else ends_ns.max(initial=0)))


def first_begun_ns(records: NDArray[np.void], *, after_ns: int) -> int | None:
    """The first instant after `after_ns` at which a thread began something by itself; None without one."""
    work = own_work(records, raised=False)
    starts_ns = work["start_ns"][(work["flags"] & Flag.RAISED == 0) & (work["start_ns"] > after_ns)]
    return int(starts_ns.min()) if len(starts_ns) else None


def begun_records(records: NDArray[np.void]) -> NDArray[np.void]:
    """Records up to the last one begun. Empty records in between come from a truncated file that grew again, or from a
    signal handler that raised during a write.
    """
    begun = np.flatnonzero(records["kind"])
    return records[: int(begun[-1]) + 1] if len(begun) else records[:0]


def _interrupted(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """True for each empty record between two others. A truncated file that grew again has a page of them."""
    empty = (records["kind"] == 0) & (records["start_ns"] == 0) & (records["end_ns"] == 0)
    around = np.pad(empty, 1)
    return np.asarray(empty & ~around[:-2] & ~around[2:])


def plausible(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """True for each record that the recorder can have written; one absurd time would spoil every sum."""
    start, end, value, kind = (records[name] for name in ("start_ns", "end_ns", "value", "kind"))
    sound = (kind > 0) & (kind <= LAST_KIND) & (records["phase"] <= LAST_PHASE) & (start >= 0) & (end < LIMIT)
    sound &= (end >= start) | (end == OPEN)
    sound &= (value >= 0) & (value < LIMIT) | (kind == Kind.SCALAR)
    counted = kind == Kind.FLOPS
    if counted.any():
        sound &= ~counted | np.isin(records["tag"], WORKS)
    return np.asarray(sound & (start < LIMIT))


def read_header(raw: bytes, path: Path) -> int:
    """Capacity in records, from the first `HEADER_BYTES` of a segment. Raises like `read_segment`."""
    if raw[: len(MAGIC)] != MAGIC:
        raise RunDirectoryError(f"{path} is not a traincope segment, or its header is lost; the other ranks still open")
    fields = _header_fields(raw)
    version, record_bytes, capacity = (fields.get(name) for name in ("version", "record_bytes", "capacity"))
    if type(version) is not int or type(capacity) is not int:
        raise RunDirectoryError(f"{path} has a damaged header; the other ranks still open")
    if version not in READABLE_VERSIONS or record_bytes != RECORD_BYTES:
        raise VersionError(
            f"{path} is of format {version}, this traincope reads format {FORMAT_VERSION} and older; "
            "open it with the traincope that wrote it, or a newer one"
        )
    return capacity


def _header_fields(raw: bytes) -> dict[str, Any]:
    length = int.from_bytes(raw[len(MAGIC) : len(MAGIC) + 4], "little")
    header = parse(raw[len(MAGIC) + 4 : len(MAGIC) + 4 + length].decode(errors="replace"))
    return header if isinstance(header, dict) else {}
