"""Survival of a truncated segment: it costs the segment's records, not the training.

A write to a mapped page beyond the end of its file raises SIGBUS. A file's mode stops everyone except root from
truncating it. For processes that modes do not bind, a handler of ours gives the writing thread a private page in that
place, makes the writer continue in a fresh segment, and returns: the write is repeated and succeeds.

The handler runs inside the faulting store, under the GIL, like any callback from C. A SIGBUS in other memory goes to
the handler that was installed before ours.
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

from traincope.record.instrumentation.guard import guard
from traincope.store.segments.mapping import replace_pages, start_of

MACHINES = ("x86_64", "aarch64")
"""Machines whose `struct sigaction` and `siginfo_t` on Linux have the layout below."""
SA_SIGINFO, SA_NODEFER = 0x4, 0x40000000
SI_CODE_AT, SI_ADDRESS_AT = 8, 16

_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Rescue:
    """The process's one handler of SIGBUS, and the memory it protects. It is installed while any memory is protected.

    A run's last slots may outlive the run. A later handler on top of ours stays.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.sigaction.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._handler_function = _HANDLER(self._on_bus_error)
        self._address = ctypes.cast(self._handler_function, ctypes.c_void_p).value
        self._before = _Action()
        self._maps: dict[int, tuple[int, weakref.ref[mmap.mmap], weakref.WeakMethod[Callable[[], None]]]] = {}
        """Address -> size, the mapping, and the function to call when its file was truncated."""

    def protect(self, memory: mmap.mmap, on_cut: Callable[[], None]) -> None:
        start = start_of(memory)

        def forget(reference: weakref.ref[mmap.mmap]) -> None:
            if start in self._maps and self._maps[start][1] is reference:
                del self._maps[start]
            if not self._maps:
                self.step_aside()
            if self._maps:  # another thread has added its memory since
                self.stand_in_front()

        self._maps[start] = len(memory), weakref.ref(memory, forget), weakref.WeakMethod(on_cut)
        self.stand_in_front()

    def stand_in_front(self) -> None:
        """Install our handler in front of the current one."""
        if self._handler() != self._address:
            before = _Action()
            self._act(_Action(handler=self._address, flags=SA_SIGINFO | SA_NODEFER), before)
            if before.handler != self._address:  # otherwise another thread was quicker
                self._before = before

    def step_aside(self) -> bool:
        """Remove our handler if it is the current one. Returns whether it was."""
        stood_in_front = self._handler() == self._address
        if stood_in_front:
            self._act(self._before)
        return stood_in_front

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
        for start, (num_bytes, _, on_cut) in () if was_sent else tuple(self._maps.items()):
            if start <= faulted < start + num_bytes and self._give_page(faulted):
                leave = on_cut()
                if leave is not None:
                    leave()
                return
        self._act(self._before)  # the fault is repeated, and the earlier handler answers it
        self._before = _Action()  # if the earlier handler calls ours again, the process ends
        if was_sent:
            signal.raise_signal(number)
            self.stand_in_front()  # the earlier handler has survived it

    def _give_page(self, faulted: int) -> bool:
        page = faulted & -mmap.PAGESIZE
        return replace_pages(page, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


_rescue: _Rescue | None = None


@guard
def protect(memory: mmap.mmap, on_cut: Callable[[], None]) -> None:
    """Survive a truncation of the file under `memory`. A write that finds it truncated calls the method `on_cut`."""
    global _rescue
    if os.uname().sysname != "Linux" or platform.machine() not in MACHINES:
        return
    if _rescue is None:
        _rescue = _Rescue()
    _rescue.protect(memory, on_cut)


@contextmanager
def without_handler() -> Iterator[None]:
    """Remove our handler while another one is installed or removed, so that ours is not in front of it."""
    stood_in_front = _rescue is not None and _rescue.step_aside()
    try:
        yield
    finally:
        if stood_in_front and _rescue is not None:
            _rescue.stand_in_front()
