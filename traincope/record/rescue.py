"""A segment that somebody cuts short while it is written to costs its records, not the training.

A write to a mapped page beyond the end of its file is SIGBUS. A file's mode keeps everybody from
cutting it but root, so where modes do not bind, a handler of ours gives the thread that wrote a
private page in that place, has the writer go on in a fresh segment, and returns: the write is
repeated and goes well. It runs inside the very store that faulted, under the GIL, like any callback
from C. A SIGBUS of anybody else's memory goes to whoever would have had it.
"""

import ctypes
import mmap
import os
import platform
import signal
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from traincope.record.guard import guard

MACHINES = ("x86_64", "aarch64")
"""On Linux, those whose `struct sigaction` and `siginfo_t` lie as below."""
SA_SIGINFO, SA_NODEFER = 0x4, 0x40000000
SI_CODE_AT, SI_ADDRESS_AT = 8, 16
MAP_FIXED = 0x10
"""Which Python's `mmap` lacks."""

_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Rescue:
    """The process's one handler of SIGBUS, and the memory it looks after: it stands there while there is any.

    A run's last slots may outlive the run. A handler that was put over ours stays.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
        )  # fmt: skip
        self._libc.sigaction.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._ours = _HANDLER(self._on_bus_error)
        self._address = ctypes.cast(self._ours, ctypes.c_void_p).value
        self._before = _Action()
        self._maps: dict[int, tuple[int, weakref.ref[mmap.mmap], weakref.WeakMethod[Callable[[], None]]]] = {}
        """Address -> bytes, the mapping, and what to call where its file was cut."""

    def protect(self, memory: mmap.mmap, cut: Callable[[], None]) -> None:
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))

        def gone(reference: weakref.ref[mmap.mmap]) -> None:
            if start in self._maps and self._maps[start][1] is reference:
                del self._maps[start]
            if not self._maps:
                self.step_aside()
            if self._maps:  # another thread's has come meanwhile
                self.stand()

        self._maps[start] = len(memory), weakref.ref(memory, gone), weakref.WeakMethod(cut)
        self.stand()

    def stand(self) -> None:
        """In front of whoever handles the signal now."""
        if self._handler() != self._address:
            before = _Action()
            self._act(_Action(handler=self._address, flags=SA_SIGINFO | SA_NODEFER), before)
            if before.handler != self._address:  # else another thread was quicker
                self._before = before

    def step_aside(self) -> bool:
        """Whether we stood there."""
        stood = self._handler() == self._address
        if stood:
            self._act(self._before)
        return stood

    def _handler(self) -> int | None:
        action = _Action()
        self._libc.sigaction(signal.SIGBUS, None, ctypes.byref(action))
        address: int | None = action.handler
        return address

    def _act(self, action: _Action, before: _Action | None = None) -> None:
        address = None if before is None else ctypes.byref(before)
        if self._libc.sigaction(signal.SIGBUS, ctypes.byref(action), address):
            raise OSError(ctypes.get_errno(), "sigaction")

    def _on_bus_error(self, number: int, info: int, _context: Any) -> None:
        faulted = ctypes.c_void_p.from_address(info + SI_ADDRESS_AT).value or 0
        was_sent = ctypes.c_int.from_address(info + SI_CODE_AT).value <= 0
        for start, (num_bytes, _, cut) in () if was_sent else tuple(self._maps.items()):
            if start <= faulted < start + num_bytes and self._give_page(faulted):
                leave = cut()
                if leave is not None:
                    leave()
                return
        self._act(self._before)  # it is tried again, and answered by them
        self._before = _Action()  # should theirs come back to us, the process ends
        if was_sent:
            signal.raise_signal(number)
            self.stand()  # they have outlived it

    def _give_page(self, faulted: int) -> bool:
        page = faulted & -mmap.PAGESIZE
        where = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
        given = self._libc.mmap(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, where, -1, 0)
        return bool(given == page)


_rescue: _Rescue | None = None


@guard
def protect(memory: mmap.mmap, cut: Callable[[], None]) -> None:
    """Outlive that the file under `memory` is cut short; `cut`, a method, is called when a write finds it so."""
    global _rescue
    if os.uname().sysname != "Linux" or platform.machine() not in MACHINES:
        return
    if _rescue is None:
        _rescue = _Rescue()
    _rescue.protect(memory, cut)


@contextmanager
def aside() -> Iterator[None]:
    """While somebody else comes or goes as a handler of the signal: behind us, not in front."""
    stood = _rescue is not None and _rescue.step_aside()
    try:
        yield
    finally:
        if stood and _rescue is not None:
            _rescue.stand()
