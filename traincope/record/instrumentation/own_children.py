"""Programs of the recorder whose start and end the training does not see.

A training may handle SIGCHLD, and wait for any child. Linux reports the end of a child by the signal that clone(2) was
given. Without one it sends none, and only a wait for all kinds of children finds the child. But a child that runs
another program reports its end by SIGCHLD again. So a child without a signal starts the program, and ends. As one of
vfork(2), it shares this process's memory, and the calling thread stands still meanwhile. It runs no code of Python:
nothing of the training may run in it.
"""

import ctypes
import errno
import fcntl
import gc
import mmap
import operator
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial

from traincope.private_files import held
from traincope.record.instrumentation.own_threads import signals_blocked
from traincope.store.segments.mapping import start_of

CLONE_VM, CLONE_VFORK, CLONE_PARENT_SETTID = 0x100, 0x4000, 0x100000
WAIT_FOR_ALL_KINDS = 0x40000000
"""Flags of clone(2), and one of waitid(2), that Python lacks."""
STACK_BYTES = 1 << 20
CHECKS_STACK = (3, 14)
"""From this Python on, the interpreter aborts the process if it is called on a stack that it does not know."""
ABOVE_STANDARD = 10
"""Copies of descriptors get numbers from here on. Those in the program are smaller."""
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def start_program(command: list[str], *, environment: Mapping[str, str], descriptors: Mapping[int, int]) -> int:
    """Start a program that is no child of this process, in a session of its own. Returns its process id.

    `descriptors`: number in the program, below ABOVE_STANDARD -> number here. It gets no others. Raises OSError, also
    where no such program can be started.
    """
    if sys.version_info >= CHECKS_STACK:
        raise OSError(errno.ENOSYS, "no process is started from Python 3.14 or newer")
    with ExitStack() as copies:
        actions: list[tuple[int, ...]] = [(os.POSIX_SPAWN_CLOSE, number) for number in _inheritable()]
        for number, here in descriptors.items():
            copy = copies.enter_context(held(fcntl.fcntl(here, fcntl.F_DUPFD_CLOEXEC, ABOVE_STANDARD)))
            actions.append((os.POSIX_SPAWN_DUP2, copy, number))
        spawn = partial(
            os.posix_spawn,
            command[0],
            command,
            environment,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=IGNORED_BY_PYTHON,
        )
        started: deque[int] = deque()
        _call_in_child(partial(started.extend, map(operator.call, (spawn,))))
        return started.pop()


def _inheritable() -> Iterator[int]:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that lists them is closed by now
            if os.get_inheritable(int(name)):
                yield int(name)


def _call_in_child(call: "partial[None]") -> None:
    """Call a function that runs no code of Python, in a child without a signal. Raises what it raises."""
    library, entry = ctypes.PyDLL(None, use_errno=True), ctypes.pythonapi["PyObject_CallNoArgs"]
    stack, child = mmap.mmap(-1, STACK_BYTES), ctypes.c_int(0)
    flags = CLONE_VM | CLONE_VFORK | CLONE_PARENT_SETTID
    top = ctypes.c_void_p(start_of(stack) + STACK_BYTES)
    if gc.isenabled():
        gc.collect(0)  # so that no collection begins in the child
    try:
        with signals_blocked():  # the child would note them in the memory of both
            failed = library.clone(entry, top, flags, ctypes.py_object(call), ctypes.byref(child), None, None) < 0
    finally:
        if child.value:
            os.waitid(os.P_PID, child.value, os.WEXITED | WAIT_FOR_ALL_KINDS)
    if failed:
        raise OSError(ctypes.get_errno(), "clone")
