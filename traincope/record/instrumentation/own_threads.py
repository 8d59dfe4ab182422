"""Threads of the recorder, which the training does not see.

`threading.enumerate()` does not list them: a training that joins all its threads would wait for ever. One that logs an
error of its own is listed from then on, because `logging` asks for its name. Functions that the training gives to
`threading.settrace()` and `setprofile()` are not called in them.

They block signals: the kernel gives a signal of the process to any thread that does not. A training that blocks one
around a checkpoint would get it in the middle.
"""

import _thread
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType

OF_FAULTS = {
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
    *(signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS),
}
"""Signals of a thread's own errors. If it blocked them, the kernel would end the process without their handlers."""


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block the calling thread's signals. Those that arrive meanwhile come at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - OF_FAULTS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class OwnThread:
    """A thread that ends with the process, as a daemon does."""

    def __init__(self, work: Callable[[], object]) -> None:
        """`work`: raises nothing."""
        self._work = work
        self._ended = threading.Event()
        self._pid: int | None = None
        """Process that it runs in. A forked child has no such thread."""

    def start(self) -> None:
        """Raises RuntimeError if no thread can be started, or if a library has replaced threads by its own."""
        if not isinstance(_thread.start_new_thread, BuiltinFunctionType):
            raise RuntimeError("threads of this process are not the system's: one that waits would stop the training")
        with signals_blocked():  # as the thread begins with them
            _thread.start_new_thread(self._run, ())
            self._pid = os.getpid()

    def is_alive(self) -> bool:
        return self._pid == os.getpid() and not self._ended.is_set()

    def join(self, seconds: float | None = None) -> None:
        """Wait for its end, at most so long."""
        if self.is_alive():
            self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._ended.set()
