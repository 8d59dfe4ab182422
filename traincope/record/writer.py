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

from traincope.events import END_WORD, LAYOUT, NO_PEER, NO_STEP, OPEN, RECORD_BYTES, SPAN_LAYOUT, Kind
from traincope.record.guard import SAMPLED, guard, meter
from traincope.record.rescue import protect
from traincope.record.slots import Slot
from traincope.store.layout import segment_path
from traincope.store.segments import HEADER_BYTES, SegmentFile

SEGMENT_BYTES = 1 << 20
CAPACITY = (SEGMENT_BYTES - HEADER_BYTES) // RECORD_BYTES
RETRY_NS = 1_000_000_000
"""How long to write nothing after a segment could not be had, before asking again."""
NEVER = 1 << 62
"""As a time to ask again: this writer is closed."""

Place = tuple[mmap.mmap | bytearray, memoryview, Callable[[], int], int]
"""Where records go: memory, its words, what takes the next record's offset, and where there is no room any more.

Read in one step and used as one: the collector, a signal or the thread that ends the run may change it at any call.
Python lets none of them in between reading it and taking an offset, so what was taken lies in what was read, and
before the end at which the file is cut.
"""

TRIAL_RECORDS = 2
COUNTED_BYTES = SAMPLED * RECORD_BYTES
COUNTED_AT = HEADER_BYTES % COUNTED_BYTES
SPAN = int(Kind.SPAN)
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
        "_left",
        "_lost",
        "_meanwhile",
        "_names",
        "_owner_pid",
        "_place",
        "_retry_at_ns",
        "_rolling",
        "_shared",
        "_thread",
        "latest",
    )

    def __init__(self, shared: Shared, *, thread: str) -> None:
        self._current: SegmentFile | None = None
        self._left: deque[tuple[SegmentFile, int]] = deque()
        """Segments that are written to no more but not yet sealed, and how many records each got."""
        self.latest: Any = None
        """What a hook keeps for this thread: here it costs no thread-local look-up of its own."""
        self._shared = shared
        self._owner_pid = os.getpid()
        self._thread = thread
        self._index = 0
        self._rolling = False
        """Whether one segment is being exchanged for the next: whoever writes meanwhile finds none."""
        self._meanwhile: deque[bytearray] = deque()
        """What the collector or a signal's handler has written in such a moment, for the next segment."""
        self._names: deque[str] = deque()
        """Files written so far, oldest first; only the current one is mapped."""
        self._lost = 0
        self._retry_at_ns = 0
        self._place: Place
        self._use_scratch()

    @classmethod
    def for_trial(cls) -> "ThreadWriter":
        """A writer into private memory, as quick as the real one: to find out what a record costs."""
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
    ) -> Slot:
        """Write an open record that starts now."""
        segment, words, reserve, limit = self._place
        offset = reserve()
        if offset >= limit:
            segment, words, offset = self._next_segment()
        _pack_into(
            segment, offset, monotonic_ns(), OPEN, value,
            self._shared.step, name, group, sequence, peer, tag, flags, phase, kind,
        )  # fmt: skip
        return words, (offset >> 3) + END_WORD

    def begin_span(self, name: int) -> Slot:
        """As `begin` for a SPAN, without the arguments that a span does not have.

        It passes no guard, so its cost is counted here: every so-maniest record, at what one costs.
        """
        segment, words, reserve, limit = self._place
        offset = reserve()
        if offset >= limit:
            segment, words, offset = self._next_segment()
        if offset % COUNTED_BYTES == COUNTED_AT:
            meter.own_ns += SAMPLED * meter.span_ns
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
        step: int | None = None,
    ) -> Slot:
        """Write a record whose interval is known; `step` is the current one unless given."""
        segment, words, reserve, limit = self._place
        offset = reserve()
        if offset >= limit:
            segment, words, offset = self._next_segment()
        _pack_into(
            segment, offset, start_ns, end_ns, value,
            self._shared.step if step is None else step, name, group, sequence, peer, tag, flags, phase, kind,
        )  # fmt: skip
        return words, (offset >> 3) + END_WORD

    def close(self) -> None:
        """Give back the unused space; later writes go nowhere and are not counted."""
        self._take_in()
        if self._lost:
            self._note_drops()
        self._retry_at_ns = NEVER
        self._seal()

    def __del__(self) -> None:
        """The thread is gone."""
        with suppress(OSError):
            self._seal()

    def abandon(self) -> None:
        """Forget the files without touching them: they belong to the process we were forked from."""
        self._leave()
        self._left.clear()
        self._retry_at_ns = NEVER

    def _next_segment(self) -> tuple[mmap.mmap | bytearray, memoryview, int]:
        """A record's place in a fresh segment; without one it is in scratch memory and counts as dropped."""
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
                self._meanwhile.append(segment)
            else:
                self._lose_one()
        return segment, words, offset

    def _lose_one(self) -> None:
        self._lost += 1
        self._shared.dropped += 1

    def _roll(self) -> None:
        self._seal()
        if monotonic_ns() >= self._retry_at_ns:
            self._retry_at_ns = monotonic_ns() + RETRY_NS
            _try_open(self)
        self._take_in()
        if self._lost and self._current is not None:
            self._note_drops()

    def _take_in(self) -> None:
        """Copy what was written meanwhile: those who did were called in between, and are through with it.

        What a handler adds while this goes on waits for the next time: it may come again and again.
        """
        with suppress(IndexError):  # another thread closes this writer just now, and takes them in as well
            for _ in range(len(self._meanwhile)):
                record = LAYOUT.unpack(self._meanwhile.popleft())
                segment, _, reserve, limit = self._place
                offset = reserve()
                if offset < limit:
                    _pack_into(segment, offset, *record)
                else:
                    self._lose_one()

    def _open_segment(self) -> None:
        self._make_room()
        path = segment_path(self._shared.directory, thread=self._thread, index=self._index)
        segment, reserve = SegmentFile(path, capacity=CAPACITY), count(HEADER_BYTES, RECORD_BYTES).__next__
        if self._retry_at_ns == NEVER:  # another thread has closed this writer meanwhile
            segment.seal(0)
            return
        self._index += 1
        self._names.append(path.name)
        self._current = segment
        self._place = segment.map, segment.words, reserve, HEADER_BYTES + CAPACITY * RECORD_BYTES
        self._retry_at_ns = 0
        if segment.may_be_cut:
            protect(segment.map, self._leave)
        now = monotonic_ns()
        self.write(Kind.CLOCK, now, now, value=time.time_ns())

    def _seal(self) -> None:
        """Done with the current segment; slots still open in it keep its mapping alive.

        A forked child drops its copies of other threads' writers: cutting the file there would send
        the parent's next write beyond its end, and SIGBUS.
        """
        self._leave()
        with suppress(IndexError):  # another thread, which closes this writer just now, was quicker
            while os.getpid() == self._owner_pid:
                segment, used = self._left.popleft()
                kept = segment.seal(used)
                self._shared.written += kept
                self._lost += used - kept
                self._shared.dropped += used - kept

    def _leave(self) -> None:
        """Begin no record in the current segment any more."""
        segment, (_, _, reserve, _) = self._current, self._place
        self._current = None
        self._use_scratch()
        if segment is not None:
            self._left.append((segment, min((reserve() - HEADER_BYTES) // RECORD_BYTES, CAPACITY)))

    def _make_room(self) -> None:
        """Keep within the disk budget: the second oldest segment goes, the first tells how it began."""
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
        """Nowhere: being full at once, every write asks for a segment."""
        memory, words, _ = _scratch()
        self._place = memory, words, repeat(0).__next__, 0


def _scratch() -> tuple[bytearray, memoryview, int]:
    """One record's worth of private memory."""
    memory = bytearray(RECORD_BYTES)
    return memory, memoryview(memory).cast("q"), 0


@guard
def _try_open(writer: ThreadWriter) -> None:
    """Full, read-only, over a quota: records are counted as dropped, and it is tried again."""
    with suppress(OSError):
        writer._open_segment()
