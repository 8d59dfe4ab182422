"""The place of one writer's records that native code shares: both take the offsets of records from one counter.

A segment stays mapped until native code can write nothing more to it: until its open records have ended, or for as long
as the process lives.
"""

import ctypes
import mmap
from collections import deque
from collections.abc import Callable

from traincope.native.library import PlacesLibrary
from traincope.store.segments.mapping import start_of
from traincope.store.segments.segments import SegmentFile

_retired: deque[tuple[PlacesLibrary, int, mmap.mmap]] = deque()
"""Segments that native code may still write to, by its number of them."""
_hold, _let_go = ctypes.pythonapi["Py_IncRef"], ctypes.pythonapi["Py_DecRef"]
"""Functions of our own: as attributes, they would be those of every other library of the process."""
_hold.argtypes = _let_go.argtypes = (ctypes.py_object,)
_hold.restype = _let_go.restype = None


class NativePlace:
    """A place of the library. Its segments are those of one `ThreadWriter`."""

    __slots__ = ("_library", "_limit", "_number", "_reserve", "_segment")

    def __init__(self, library: PlacesLibrary, number: int) -> None:
        self._library, self._number = library, number
        self._reserve = library.reservers[number]
        self._segment: tuple[int, mmap.mmap] | None = None
        self._limit = 0

    def begin(self, segment: SegmentFile, offset: int) -> tuple[mmap.mmap, memoryview, Callable[[], int], int]:
        """Begin records in a segment, from this offset on. Returns the `Place` for records of Python."""
        self._limit = len(segment.map)
        _hold(segment.map)  # also from the end of the interpreter: a callback may come later
        number = self._library.begin_segment(self._number, start_of(segment.map), offset, self._limit, segment.words)
        self._segment = number, segment.map
        return segment.map, segment.words, self._reserve, self._limit

    def has_room(self) -> bool:
        return self._library.next_offset(self._number) < self._limit

    def is_half_used(self) -> bool:
        """Return whether more than half of the segment is used, or there is none."""
        return 2 * self._library.next_offset(self._number) > self._limit

    def retire(self) -> int:
        """Begin no more records in the segment. Returns the offset after its last one."""
        end = self._library.retire(self._number)
        if self._segment is not None:
            _retired.append((self._library, *self._segment))
            self._segment = None
        _release()
        return end

    def thread_ended(self) -> None:
        self._library.thread_ended(self._number)


def _release() -> None:
    """Let go of the retired segments that native code has left."""
    for _ in range(len(_retired)):
        try:
            library, number, memory = _retired.popleft()
        except IndexError:  # another thread, or the garbage collector's hook, does the same
            return
        if library.release_segment(number):
            _let_go(memory)
        else:
            _retired.append((library, number, memory))
