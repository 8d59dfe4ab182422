"""The hot path: one thread's records, written open and closed in place.

Memory use is one mapped segment per writing thread (`SEGMENT_BYTES`), plus the segments of open slots. A slot, the
result of `begin`, keeps its segment's mapping alive until it is closed, so that a span may outlast the segment it began
in.
"""

import mmap
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count, repeat
from pathlib import Path
from time import monotonic_ns
from typing import Any

from traincope.events import (
    END_OF_TIME_NS,
    END_WORD,
    LAYOUT,
    NO_PEER,
    NO_STEP,
    OPEN,
    PHASE_LAYOUT,
    RECORD_BYTES,
    SPAN_LAYOUT,
    Kind,
)
from traincope.native.library import Cell
from traincope.record.instrumentation.asynchronous import suppressed
from traincope.record.instrumentation.guard import SAMPLING_INTERVAL, guard, meter
from traincope.record.segments.native_place import NativePlace
from traincope.record.segments.rescue import protect
from traincope.record.segments.slots import Slot, end_abandoned
from traincope.store.layout import segment_path
from traincope.store.segments.segments import HEADER_BYTES, SegmentFile

SEGMENT_BYTES = 1 << 20
CAPACITY = (SEGMENT_BYTES - HEADER_BYTES) // RECORD_BYTES
WORD_BYTES = 8
STEP, WINDOW, OWN_NS, WAITS = int(Cell.STEP), int(Cell.WINDOW), int(Cell.OWN_NS), int(Cell.WAITS)
RETRY_NS = 1_000_000_000
"""The time to write nothing after a segment could not be created, before trying again."""
NEVER = END_OF_TIME_NS
"""The retry time of a closed writer."""

Place = tuple[mmap.mmap | bytearray, memoryview, Callable[[], int], int]
"""The place of the next record: memory, its words, the function that takes the next offset, and the end of the space.

It is read in one step and used as one: the garbage collector, a signal or the thread that ends the run may change it at
any call. Python lets none of them run between reading it and taking an offset. So the offset belongs to the memory that
was read, and lies before the end at which the file is cut.
"""

CollectiveFields = tuple[int, int, int, int, int, int, int, int]
"""name, group, sequence, peer, tag, bytes, flags, window: the fields that a collective's record and its stall's share.
"""

TRIAL_RECORDS = 2
SAMPLED_BYTES = SAMPLING_INTERVAL * RECORD_BYTES
SAMPLED_AT = HEADER_BYTES % SAMPLED_BYTES
SPAN, PHASE = int(Kind.SPAN), int(Kind.PHASE)
_pack_into = LAYOUT.pack_into
_pack_span_into, _pack_phase_into = SPAN_LAYOUT.pack_into, PHASE_LAYOUT.pack_into


class Shared:
    """The state that all writers of a process share: the current step and window, and the directory of segments."""

    __slots__ = (
        "_native_ns",
        "cells",
        "directory",
        "dropped",
        "native_wait_ns",
        "next_directory",
        "segments_per_thread",
        "step",
        "window",
        "written",
    )

    def __init__(self, directory: Path, *, segments_per_thread: int) -> None:
        self.directory = directory
        self.next_directory = directory
        """The directory's name after its renaming, from before it on."""
        self.segments_per_thread = segments_per_thread
        self.window = 0
        """The first step of the latest window."""
        self.written = 0
        """Number of records in segments that are already full."""
        self.dropped = 0
        self.cells = memoryview(bytearray(len(Cell) * WORD_BYTES)).cast("q")
        """The numbers that the native recorder shares."""
        self.native_wait_ns = 0
        """Cost of one of the native recorder's waits, which it counts and does not time."""
        self._native_ns = 0
        self.set_step(NO_STEP)

    def set_step(self, step: int) -> None:
        self.step = self.cells[STEP] = step

    def set_window(self, first_step: int) -> None:
        self.window = self.cells[WINDOW] = first_step

    def take_native_ns(self) -> int:
        """Return the CPU time of the native recorder since the last call."""
        before, self._native_ns = self._native_ns, self.cells[OWN_NS] + self.cells[WAITS] * self.native_wait_ns
        return self._native_ns - before

    def directories(self) -> tuple[Path, ...]:
        """Return where the directory is, also while another thread renames it."""
        return self.directory, self.next_directory


class ThreadWriter:
    """The records of one thread. `begin` and `end` never raise if space is missing: they count dropped records."""

    __slots__ = (
        "__weakref__",
        "_current",
        "_index",
        "_lost",
        "_names",
        "_native",
        "_nested_records",
        "_owner_pid",
        "_place",
        "_retry_at_ns",
        "_rolling",
        "_shared",
        "_thread",
        "_unsealed",
        "latest",
    )

    def __init__(self, shared: Shared, *, thread: str) -> None:
        self._current: SegmentFile | None = None
        self._unsealed: deque[tuple[SegmentFile, int]] = deque()
        """Segments that are full but not yet sealed, and the number of records in each."""
        self.latest: Any = None
        """A hook's data for this thread. Here it costs no thread-local look-up of its own."""
        self._shared = shared
        self._owner_pid = os.getpid()
        self._thread = thread
        self._index = 0
        self._rolling = False
        """True if the segment is being replaced. Writes during the replacement find no segment."""
        self._nested_records: deque[bytearray] = deque()
        """Records that the garbage collector or a signal handler wrote during a replacement, for the next segment."""
        self._names: deque[str] = deque()
        """Files written so far, oldest first. Only the current one is mapped."""
        self._lost = 0
        self._retry_at_ns = 0
        self._native: NativePlace | None = None
        """The place that native code takes offsets from too, once it has written on this thread."""
        self._place: Place
        self._use_scratch()

    @classmethod
    def for_trial(cls) -> "ThreadWriter":
        """Create a writer into private memory, as fast as a real one, to measure the cost of a record."""
        writer = cls(Shared(Path(), segments_per_thread=0), thread="")
        memory = bytearray(TRIAL_RECORDS * RECORD_BYTES)
        writer._place = memory, memoryview(memory).cast("q"), count(RECORD_BYTES, 0).__next__, len(memory)
        return writer

    def begin(
        self,
        kind: int,
        phase: int = 0,
        name: int = 0,
        group: int = 0,
        sequence: int = 0,
        peer: int = NO_PEER,
        tag: int = 0,
        value: int = 0,
        flags: int = 0,
        window: int = 0,
    ) -> Slot:
        """Write an open record that starts now."""
        segment, words, reserve, limit = self._place
        offset = reserve()
        if offset >= limit:
            segment, words, offset = self._next_segment()
        try:
            _pack_into(
                segment, offset, monotonic_ns(), OPEN, value,
                self._shared.step, name, group, sequence, peer, tag, window, flags, phase, kind,
            )  # fmt: skip
            return words, (offset >> 3) + END_WORD
        except BaseException:  # of the training: the caller does not get the slot
            end_abandoned((words, (offset >> 3) + END_WORD), monotonic_ns())
            raise

    def begin_collective(self, kind: int, fields: CollectiveFields) -> Slot:
        """Write an open COLLECTIVE or STALL that starts now."""
        segment, words, reserve, limit = self._place
        offset = reserve()
        if offset >= limit:
            segment, words, offset = self._next_segment()
        name, group, sequence, peer, tag, value, flags, window = fields
        try:
            _pack_into(
                segment, offset, monotonic_ns(), OPEN, value,
                self._shared.step, name, group, sequence, peer, tag, window, flags, 0, kind,
            )  # fmt: skip
            return words, (offset >> 3) + END_WORD
        except BaseException:  # of the training: the caller does not get the slot
            end_abandoned((words, (offset >> 3) + END_WORD), monotonic_ns())
            raise

    def begin_phase(self, phase: int, name: int) -> Slot:
        """Write an open PHASE that starts now, without the arguments that a phase lacks."""
        segment, words, reserve, limit = self._place
        offset = reserve()
        if offset >= limit:
            segment, words, offset = self._next_segment()
        try:
            _pack_phase_into(segment, offset, monotonic_ns(), OPEN, self._shared.step, name, phase, PHASE)
            return words, (offset >> 3) + END_WORD
        except BaseException:  # of the training: the caller does not get the slot
            end_abandoned((words, (offset >> 3) + END_WORD), monotonic_ns())
            raise

    def begin_span(self, name: int) -> Slot:
        """Write an open SPAN that starts now, without the arguments that a span lacks.

        It passes no guard, so its cost is counted here: each sampled record counts the measured cost of all records
        since the last sample.
        """
        segment, words, reserve, limit = self._place
        offset = reserve()
        if offset >= limit:
            segment, words, offset = self._next_segment()
        if offset % SAMPLED_BYTES == SAMPLED_AT:
            meter.own_ns += SAMPLING_INTERVAL * meter.span_ns
        _pack_span_into(segment, offset, monotonic_ns(), OPEN, self._shared.step, name, SPAN)
        return words, (offset >> 3) + END_WORD

    def write(
        self,
        kind: int,
        start_ns: int,
        end_ns: int,
        phase: int = 0,
        name: int = 0,
        group: int = 0,
        sequence: int = 0,
        peer: int = NO_PEER,
        tag: int = 0,
        value: int = 0,
        flags: int = 0,
        window: int = 0,
        step: int | None = None,
    ) -> Slot:
        """Write a record whose interval is known. `step` is the current one unless given."""
        segment, words, reserve, limit = self._place
        offset = reserve()
        if offset >= limit:
            segment, words, offset = self._next_segment()
        _pack_into(
            segment, offset, start_ns, end_ns, value,
            self._shared.step if step is None else step, name, group, sequence, peer, tag, window, flags, phase, kind,
        )  # fmt: skip
        return words, (offset >> 3) + END_WORD

    def share(self, native: NativePlace) -> bool:
        """Let native code of the calling thread write to the same segment. Returns whether it has room for a record.

        Without room, a record counts as dropped.
        """
        if self._native is None:
            self._move_to(native)
        native = self._native or native
        if not native.has_room() and not self._rolling:
            self._rolling = True
            try:
                self._roll()
            finally:
                self._rolling = False
        if not native.has_room():
            self._count_drop()
            return False
        return True

    def keep_room(self, native: NativePlace) -> None:
        """Let native code of other threads write to this writer's segments. They cannot ask for one: a new segment
        begins when half of one is used.
        """
        if self._native is None:
            self._move_to(native)
        if native.is_half_used() and not self._rolling:
            self._rolling = True
            try:
                self._roll()
            finally:
                self._rolling = False

    def thread_ended(self) -> None:
        """Hold no work of the thread any longer."""
        self.latest = None
        if self._native is not None:
            self._native.thread_ended()

    def _move_to(self, native: NativePlace) -> None:
        """Take the offsets of the current segment from `native`. Records in between go to the next segment, or here."""
        was_rolling, self._rolling = self._rolling, True
        try:
            segment, (_, _, reserve, _) = self._current, self._place
            self._use_scratch()
            self._native = native
            if segment is not None:
                self._place = native.begin(segment, reserve())
        finally:
            self._rolling = was_rolling
        self._copy_nested_records()

    def exchange_names(self, other: "ThreadWriter") -> None:
        """Continue the segments that `other` has begun, which continues these. Both begin new ones.

        Another thread may write with `other`.
        """
        for writer in (self, other):
            writer._seal()
        self._thread, other._thread = other._thread, self._thread
        self._index, other._index = other._index, self._index
        self._names, other._names = other._names, self._names

    def close(self) -> None:
        """Release the unused space. Later writes are dropped and not counted.

        What the last segment has lost, if its file was cut or deleted, is noted in one more.
        """
        self._copy_nested_records()
        if self._lost:
            self._note_drops()
        self._seal()
        if self._lost and self._retry_at_ns != NEVER:
            _try_open(self)
            self._note_drops()
        self._retry_at_ns = NEVER
        self._seal()

    def __del__(self) -> None:
        """Seal the segment when the thread has ended."""
        with suppress(OSError):
            self._seal()

    def abandon(self) -> None:
        """Drop the files without touching them, in a forked child: they belong to the parent."""
        self._retire_segment()
        self._unsealed.clear()
        self._retry_at_ns = NEVER

    def _next_segment(self) -> tuple[mmap.mmap | bytearray, memoryview, int]:
        """Return a place in a fresh segment. Without one, the record goes to scratch memory and counts as dropped."""
        if not self._rolling:
            self._rolling = True
            try:
                self._roll()
            finally:
                self._rolling = False
        segment, words, reserve, limit = self._place
        offset = reserve()
        if offset >= limit:
            segment, words, offset = _scratch()
            if self._rolling and self._retry_at_ns != NEVER:
                self._nested_records.append(segment)
            else:
                self._count_drop()
        return segment, words, offset

    def _count_drop(self) -> None:
        self._lost += 1
        self._shared.dropped += 1

    def _roll(self) -> None:
        self._seal()
        if monotonic_ns() >= self._retry_at_ns:
            self._retry_at_ns = monotonic_ns() + RETRY_NS
            _try_open(self)
        self._copy_nested_records()
        if self._lost and self._current is not None:
            self._note_drops()

    def _copy_nested_records(self) -> None:
        """Copy the records that were written during a replacement.

        Their writers were called in between and have finished. A record that a handler adds during this copy waits for
        the next copy, because the handler may run again and again.
        """
        with suppressed(IndexError):  # another thread is closing this writer and copies the records too
            for _ in range(len(self._nested_records)):
                record = LAYOUT.unpack(self._nested_records.popleft())
                segment, _, reserve, limit = self._place
                offset = reserve()
                if offset < limit:
                    _pack_into(segment, offset, *record)
                else:
                    self._count_drop()

    def _open_segment(self) -> None:
        self._make_room()
        path = segment_path(self._shared.directory, thread=self._thread, index=self._index)
        segment = SegmentFile(path, capacity=CAPACITY, directories=self._shared.directories)
        if self._retry_at_ns == NEVER:  # another thread has closed this writer in the meantime
            segment.seal(0)
            return
        self._index += 1
        self._names.append(path.name)
        self._current = segment
        if self._native is None:
            reserve = count(HEADER_BYTES, RECORD_BYTES).__next__
            self._place = segment.map, segment.words, reserve, HEADER_BYTES + CAPACITY * RECORD_BYTES
        else:
            self._place = self._native.begin(segment, HEADER_BYTES)
        self._retry_at_ns = 0
        if segment.can_be_truncated:
            protect(segment.map, self._retire_segment)
        now = monotonic_ns()
        self.write(Kind.CLOCK, now, now, value=time.time_ns())

    def _seal(self) -> None:
        """Seal the full segments. Slots still open in one keep its mapping alive.

        A forked child drops its copies of other threads' writers. If it truncated the file there, the parent's next
        write would fall beyond its end and raise SIGBUS.
        """
        self._retire_segment()
        with suppressed(IndexError):  # another thread, which is closing this writer, was quicker
            while os.getpid() == self._owner_pid:
                segment, used = self._unsealed.popleft()
                num_kept = segment.seal(used)
                self._shared.written += num_kept
                self._lost += used - num_kept
                self._shared.dropped += used - num_kept

    def _retire_segment(self) -> None:
        """Retire the current segment: begin no more records in it."""
        segment, (_, _, reserve, _) = self._current, self._place
        self._current = None
        self._use_scratch()
        if segment is not None:
            end = reserve() if self._native is None else self._native.retire()
            self._unsealed.append((segment, min((end - HEADER_BYTES) // RECORD_BYTES, CAPACITY)))

    def _make_room(self) -> None:
        """Keep within the disk budget. The second oldest segment is deleted; the first shows how the run began."""
        if len(self._names) >= self._shared.segments_per_thread:
            oldest = self._names[1]
            del self._names[1]
            try:
                (self._shared.directory / oldest).unlink()
            except FileNotFoundError:
                return  # the node's agent has compacted it
            self._lost += CAPACITY
            self._shared.dropped += CAPACITY

    def _note_drops(self) -> None:
        if self._current is not None:
            now = monotonic_ns()
            lost, self._lost = self._lost, 0
            self.write(Kind.DROPPED, now, now, value=lost)

    def _use_scratch(self) -> None:
        """Use no segment: the scratch memory is full at once, so every write asks for a segment."""
        memory, words, _ = _scratch()
        self._place = memory, words, repeat(0).__next__, 0


def _scratch() -> tuple[bytearray, memoryview, int]:
    """Create private memory for one record."""
    memory = bytearray(RECORD_BYTES)
    return memory, memoryview(memory).cast("q"), 0


@guard
def _try_open(writer: ThreadWriter) -> None:
    """Open a segment.

    If the disk is full, read-only or over a quota, records count as dropped, and a later write retries.
    """
    with suppressed(OSError):
        writer._open_segment()
