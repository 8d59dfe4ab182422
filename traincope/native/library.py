"""The functions of the compiled library, by ctypes. It is never unloaded: a callback of torch may still come."""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int32, c_int64, c_void_p, py_object
from enum import IntEnum
from pathlib import Path
from typing import Any, cast

MAX_OPERATIONS = 32
MAX_PLACES = 64
NOWHERE = -1
NO_STALL = -1
"""In place of a stall's number: the collective that is waited for is unknown. Lower numbers: there is no room."""


class Cell(IntEnum):
    """Position of each number that the library shares with Python (`places.h`)."""

    STEP = 0
    WINDOW = 1
    DETAILED = 2
    IN_PRE_FORWARD = 3
    OWN_NS = 4
    COLLECTIVES = 5
    MESSAGES = 6
    INCOMPARABLE = 7
    WAITS = 8
    FORGOTTEN = 9
    DROPPED = 10


class PlacesLibrary:
    """A loaded library that writes records to places in segments, as far as all such libraries are alike.

    Functions that are called often keep Python's lock, which costs a tenth of a microsecond.
    """

    thread_ended: Callable[[int], object]

    def __init__(self, path: Path, *, num_places: int) -> None:
        """Raises OSError if it cannot be loaded, AttributeError if it is another library."""
        self.path = path
        self._keeping, self._releasing = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
        self.begin_segment = self._function("begin_segment", c_void_p, c_int, c_void_p, c_int64, c_int64, py_object)
        self.next_offset = self._function("next_offset", c_int64, c_int)
        self.retire = self._function("retire", c_int64, c_int)
        self.release_segment = self._function("release_segment", c_bool, c_void_p)
        reserver, kind = self._function("reserver", c_void_p, c_int), ctypes.PYFUNCTYPE(c_int64)
        self.reservers: tuple[Callable[[], int], ...] = tuple(kind(reserver(number)) for number in range(num_places))
        """For each place, a function that takes the offset of its next record. No arguments, so nothing is allocated
        in it: the garbage collector cannot run.
        """
        self.cells = self._numbers("shared", len(Cell))

    def _function(self, name: str, result: type | None, *arguments: type, releases: bool = False) -> Callable[..., int]:
        found = getattr(self._releasing if releases else self._keeping, f"traincope_{name}")
        found.restype, found.argtypes = result, arguments
        return found  # type: ignore[no-any-return]

    def _numbers(self, name: str, length: int) -> memoryview:
        """64-bit integers of the library, at the address that this function returns."""
        return memoryview((c_int64 * length).from_address(self._function(name, c_void_p)())).cast("B").cast("q")


class Library(PlacesLibrary):
    """The loaded native recorder."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, num_places=MAX_PLACES)
        function = self._function
        self.prepare = function("prepare", c_bool)
        self.set_operation = function("set_operation", None, c_int, POINTER(c_int32))
        self.install = function("install", c_bool, POINTER(c_char_p), c_int, releases=True)
        self.remove = function("remove", None, releases=True)
        self.begin_run = function("begin_run", None)
        self.end_waits = function("end_waits", c_int64)
        self.take_latest = function("take_latest", None)
        self.thread_ended = function("thread_ended", None, c_int)
        self.bind = function("bind", None, c_int)
        self.set_group = function(
            "set_group", c_bool, c_int64, c_int64, POINTER(c_int32), c_int, c_bool, c_bool, c_bool
        )
        self.forget_group = function("forget_group", None, c_int64)
        self.value_of = function("value_of", c_int64, py_object)
        self.begin_wait = function("begin_wait", c_int64, py_object)
        self.begin_stall = function("begin_stall", c_int64, c_int64)
        self.end_wait = function("end_wait", None, c_int64)
        self.end_raised = function("end_raised", None, c_int64)
        self.end_reducer = function("end_reducer", c_int, c_bool, c_bool, c_bool)
        self.begin_phase = self._callable()

    def _callable(self) -> Callable[..., Any]:
        """The function of `dispatch/callables.h`. Raises OSError if the library cannot make it."""
        try:
            return cast("Callable[..., Any]", self._function("callable", py_object)())
        except ValueError as error:  # a null pointer
            raise OSError("it does not see Python's functions") from error
