"""Bell of a rank: another process of this host asks it for its stacks and torch's flight recorder, and no descriptor
stays open in the rank.

It is a file in the rank's directory. Who may write to it may ask. A thread of the rank sleeps on its mapped page
(futex(2)) until a byte is set, which costs the training nothing.
"""

import ctypes
import errno
import mmap
import os
import platform
from pathlib import Path

from traincope.private_files import held, open_regular
from traincope.store.segments.mapping import map_file, start_of

FUTEX = {"x86_64": 202, "aarch64": 98}
"""Machine -> number of the system call."""
FUTEX_WAIT, FUTEX_WAKE = 0, 1
SIZE = 4
"""Bytes of the word that the kernel compares."""
ALL = 2**31 - 1

_libc = ctypes.CDLL(None, use_errno=True)


class Bell:
    """The rank's side."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises OSError, also on a machine whose number of the system call is not known."""
        if platform.machine() not in FUTEX:
            raise OSError(errno.ENOSYS, "no number of the system call futex is known for this machine")
        with held(open_regular(path, os.O_RDWR | os.O_CREAT)) as descriptor:
            os.pwrite(descriptor, bytes(SIZE), 0)
            self._memory = map_file(descriptor, SIZE)

    def wait(self) -> None:
        """Sleep until a byte is set, or until `wake`. Raises OSError if the file was cut."""
        if _futex(self._memory, FUTEX_WAIT, 0) < 0 and ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
            raise OSError(ctypes.get_errno(), "futex")

    def wake(self) -> None:
        """Let a thread that sleeps now go on."""
        _futex(self._memory, FUTEX_WAKE, ALL)


def ring(path: Path) -> None:
    """Ask the rank. Raises OSError if it has no bell, or if this user may not ask."""
    with held(open_regular(path, os.O_RDWR)) as descriptor:
        os.pwrite(descriptor, b"\1", 0)
        _futex(map_file(descriptor, SIZE), FUTEX_WAKE, ALL)


def take(path: Path) -> bool:
    """Return whether the rank was asked since the last call. Raises OSError if the file is gone."""
    with held(open_regular(path, os.O_RDWR)) as descriptor:
        asked = os.pread(descriptor, SIZE, 0)
        if any(asked):
            os.pwrite(descriptor, bytes(SIZE), 0)
        return any(asked)


def _futex(memory: mmap.mmap, operation: int, value: int) -> int:
    """Call the kernel, without Python's lock."""
    number, address = ctypes.c_long(FUTEX[platform.machine()]), ctypes.c_void_p(start_of(memory))
    return int(_libc.syscall(number, address, ctypes.c_int(operation), ctypes.c_uint(value), None, None, 0))
