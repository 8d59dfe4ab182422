"""The functions of the compiled library, by ctypes. It is never unloaded: a callback of torch may still come."""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int32, c_int64, c_void_p, py_object
from enum import IntEnum
from pathlib import Path

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


class Library:
    """A loaded library. Functions that are called often keep Python's lock, which costs a tenth of a microsecond."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if it cannot be loaded, AttributeError if it is another library."""
        self.path = path
        keeping, releasing = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))

        def function(name: str, result: type | None, *arguments: type, releases: bool = False) -> Callable[..., int]:
            found = getattr(releasing if releases else keeping, f"traincope_{name}")
            found.restype, found.argtypes = result, arguments
            return found  # type: ignore[no-any-return]

        self.prepare = function("prepare", c_bool)
        self.set_operation = function("set_operation", None, c_int, POINTER(c_int32))
        self.install = function("install", c_bool, POINTER(c_char_p), c_int, releases=True)
        self.remove = function("remove", None, releases=True)
        self.begin_run = function("begin_run", None)
        self.end_waits = function("end_waits", c_int64)
        self.take_latest = function("take_latest", None)
        self.thread_ended = function("thread_ended", None, c_int)
        self.bind = function("bind", None, c_int)
        self.begin_segment = function("begin_segment", c_void_p, c_int, c_void_p, c_int64, c_int64)
        self.next_offset = function("next_offset", c_int64, c_int)
        self.retire = function("retire", c_int64, c_int)
        self.release_segment = function("release_segment", c_bool, c_void_p)
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
        reserver = function("reserver", c_void_p, c_int)
        kind = ctypes.PYFUNCTYPE(c_int64)
        self.reservers: tuple[Callable[[], int], ...] = tuple(kind(reserver(number)) for number in range(MAX_PLACES))
        """For each place, a function that takes the offset of its next record. No arguments, so nothing is allocated
        in it: the garbage collector cannot run.
        """
        address = function("shared", c_void_p)()
        self.cells = memoryview((c_int64 * len(Cell)).from_address(address)).cast("B").cast("q")
