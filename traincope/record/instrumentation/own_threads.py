"""Threads of the recorder, which the training does not see.

`threading.enumerate()` does not list them: a training that joins all its threads would wait for ever. One that logs an
error of its own is listed from then on, because `logging` asks for its name. Functions that the training gives to
`threading.settrace()` and `setprofile()` are not called in them.
"""

import _thread
import os
import threading
from collections.abc import Callable


class OwnThread:
    """A thread that ends with the process, as a daemon does."""

    def __init__(self, work: Callable[[], object]) -> None:
        """`work`: raises nothing."""
        self._work = work
        self._ended = threading.Event()
        self._pid: int | None = None
        """Process that it runs in. A forked child has no such thread."""

    def start(self) -> None:
        """Raises RuntimeError if no thread can be started."""
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
