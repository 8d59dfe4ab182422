"""The hot path: one thread's records, written open and closed in place.

Memory is one mapped segment a writing thread (`SEGMENT_BYTES`) and those that open slots hold. A
slot, what `begin` returns, keeps its segment's mapping alive until it is closed, so that a span
may outlast the segment it began in.
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
    END_WORD,
    FLAGS_SHIFT,
    FLAGS_WORD,
    LAYOUT,
    NO_PEER,
    NO_STEP,
    OPEN,
    RECORD_BYTES,
    SPAN_LAYOUT,
    VALUE_WORD,
    Flag,
    Kind,
)
from traincope.record.guard import SAMPLED, guard, meter
from traincope.store.layout import segment_path
from traincope.store.segments import HEADER_BYTES, SegmentFile

SEGMENT_BYTES = 1 << 20
CAPACITY = (SEGMENT_BYTES - HEADER_BYTES) // RECORD_BYTES
RETRY_NS = 1_000_000_000
"""How long to write nothing after a segment could not be had, before asking again."""

Slot = tuple[memoryview, int]
"""The words of a segment and the index of a record's `end_ns` among them."""

TRIAL_RECORDS = 2
COUNTED_BYTES = SAMPLED * RECORD_BYTES
COUNTED_AT = HEADER_BYTES % COUNTED_BYTES
SPAN = int(Kind.SPAN)
DONE_BEFORE_WAIT = int(Flag.DONE_BEFORE_WAIT) << FLAGS_SHIFT
_pack_into = LAYOUT.pack_into
_pack_span_into = SPAN_LAYOUT.pack_into


class Shared:
    """What all writers of a process see: the current step, and where segments go."""

    __slots__ = ("directory", "dropped", "segments_per_thread", "step", "written")

    def __init__(self, directory: Path, *, segments_per_thread: int) -> None:
        self.directory = directory
        self.segments_per_thread = segments_per_thread
        self.step = NO_STEP
        self.written = 0
        """Records in segments that are full already."""
        self.dropped = 0


class ThreadWriter:
    """Records of one thread. `begin` and `end` never raise for want of space: they count drops."""

    __slots__ = (
        "__weakref__",
        "_current",
        "_index",
        "_limit",
        "_lost",
        "_map",
        "_names",
        "_owner_pid",
        "_reserve",
        "_retry_at_ns",
        "_shared",
        "_thread",
        "_words",
        "latest",
    )

    def __init__(self, shared: Shared, *, thread: str) -> None:
        self._current: SegmentFile | None = None
        self.latest: Any = None
        """What a hook keeps for this thread: here it costs no thread-local look-up of its own."""
        self._shared = shared
        self._owner_pid = os.getpid()
        self._thread = thread
        self._index = 0
        self._names: deque[str] = deque()
        """Files written so far, oldest first; only the current one is mapped."""
        self._lost = 0
        self._retry_at_ns = 0
        self._map: mmap.mmap | bytearray
        self._reserve: Callable[[], int]
        """Takes the next record's offset in one step: the collector or a signal may write in between."""
        self._limit: int
        self._use_scratch()

    @classmethod
    def for_trial(cls) -> "ThreadWriter":
        """A writer into private memory, as quick as the real one: to find out what a record costs."""
        writer = cls(Shared(Path(), segments_per_thread=0), thread="")
        memory = bytearray(TRIAL_RECORDS * RECORD_BYTES)
        writer._map, writer._words = memory, memoryview(memory).cast("q")
        writer._reserve, writer._limit = count(RECORD_BYTES, 0).__next__, len(memory)
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
    ) -> Slot:
        """Write an open record that starts now."""
        offset = self._reserve()
        if offset >= self._limit:
            offset = self._next_segment()
        _pack_into(
            self._map, offset, monotonic_ns(), OPEN, value,
            self._shared.step, name, group, sequence, peer, tag, flags, phase, kind,
        )  # fmt: skip
        return self._words, (offset >> 3) + END_WORD

    def begin_span(self, name: int) -> Slot:
        """As `begin` for a SPAN, without the arguments that a span does not have.

        It passes no guard, so its cost is counted here: every so-maniest record, at what one costs.
        """
        offset = self._reserve()
        if offset >= self._limit:
            offset = self._next_segment()
        if offset % COUNTED_BYTES == COUNTED_AT:
            meter.own_ns += SAMPLED * meter.span_ns
        _pack_span_into(self._map, offset, monotonic_ns(), OPEN, self._shared.step, name, SPAN)
        return self._words, (offset >> 3) + END_WORD

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
        step: int | None = None,
    ) -> Slot:
        """Write a record whose interval is known; `step` is the current one unless given."""
        offset = self._reserve()
        if offset >= self._limit:
            offset = self._next_segment()
        _pack_into(
            self._map, offset, start_ns, end_ns, value,
            self._shared.step if step is None else step, name, group, sequence, peer, tag, flags, phase, kind,
        )  # fmt: skip
        return self._words, (offset >> 3) + END_WORD

    def close(self) -> None:
        """Give back the unused space; later writes go nowhere and are not counted."""
        if self._lost:
            self._note_drops()
        self._seal()
        self._retry_at_ns = 1 << 62

    def __del__(self) -> None:
        """The thread is gone."""
        with suppress(OSError):
            self._seal()

    def abandon(self) -> None:
        """Forget the files without touching them: they belong to the process we were forked from."""
        self._current = None
        self._use_scratch()
        self._retry_at_ns = 1 << 62

    def _next_segment(self) -> int:
        """A fresh segment; without one the record goes into scratch memory and counts as dropped."""
        self._seal()
        if monotonic_ns() >= self._retry_at_ns:
            self._retry_at_ns = monotonic_ns() + RETRY_NS
            _try_open(self)
        if self._current is None:
            self._lost += 1
            self._shared.dropped += 1
            return 0
        if self._lost:
            self._note_drops()
        return self._reserve()

    def _open_segment(self) -> None:
        self._make_room()
        path = segment_path(self._shared.directory, thread=self._thread, index=self._index)
        segment = SegmentFile(path, capacity=CAPACITY)
        self._index += 1
        self._names.append(path.name)
        self._current = segment
        self._map, self._words = segment.map, segment.words
        self._reserve = count(HEADER_BYTES, RECORD_BYTES).__next__
        self._limit = HEADER_BYTES + CAPACITY * RECORD_BYTES
        self._retry_at_ns = 0
        now = monotonic_ns()
        self.write(Kind.CLOCK, now, now, value=time.time_ns())

    def _seal(self) -> None:
        """Done with the current segment; slots still open in it keep its mapping alive.

        A forked child drops its copies of other threads' writers: cutting the file there would send
        the parent's next write beyond its end, and SIGBUS.
        """
        segment, reserve = self._current, self._reserve
        self._current = None
        self._use_scratch()
        if segment is not None and os.getpid() == self._owner_pid:
            used = min((reserve() - HEADER_BYTES) // RECORD_BYTES, CAPACITY)
            if segment.seal(used):
                self._shared.written += used
            else:
                self._lost += used
                self._shared.dropped += used

    def _make_room(self) -> None:
        """Keep within the disk budget: the second oldest segment goes, the first tells how it began."""
        if len(self._names) >= self._shared.segments_per_thread:
            oldest = self._names[1]
            del self._names[1]
            self._lost += CAPACITY
            self._shared.dropped += CAPACITY
            (self._shared.directory / oldest).unlink(missing_ok=True)

    def _note_drops(self) -> None:
        if self._current is not None:
            now = monotonic_ns()
            lost, self._lost = self._lost, 0
            self.write(Kind.DROPPED, now, now, value=lost)

    def _use_scratch(self) -> None:
        """One record's worth of private memory; being full at once, every write asks for a segment."""
        scratch = bytearray(RECORD_BYTES)
        self._map = scratch
        self._words = memoryview(scratch).cast("q")
        self._reserve, self._limit = repeat(0).__next__, 0


@guard
def _try_open(writer: ThreadWriter) -> None:
    """Full, read-only, over a quota: records are counted as dropped, and it is tried again."""
    with suppress(OSError):
        writer._open_segment()


def end(slot: Slot) -> None:
    """Close a record in place: one aligned 64-bit store."""
    words, index = slot
    words[index] = monotonic_ns()


def end_at(slot: Slot, end_ns: int) -> None:
    words, index = slot
    words[index] = end_ns


def end_bounded(slot: Slot) -> None:
    """Close a collective that is found complete: it ended now or before."""
    words, index = slot
    words[index] = monotonic_ns()
    words[index + FLAGS_WORD - END_WORD] |= DONE_BEFORE_WAIT


def set_value(slot: Slot, value: int) -> None:
    words, index = slot
    words[index + VALUE_WORD - END_WORD] = value


def is_open(slot: Slot) -> bool:
    words, index = slot
    return words[index] == OPEN


def add_flag(slot: Slot, flag: int) -> None:
    words, index = slot
    words[index + FLAGS_WORD - END_WORD] |= flag << FLAGS_SHIFT
