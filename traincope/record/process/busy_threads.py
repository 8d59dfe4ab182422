"""Hook on other Python threads of the process that compute: in Python only the one that holds the GIL runs.

A thread that writes a checkpoint or tokenizes in the background may stop the training thread for milliseconds at every
exchange of the lock. A thread that waits for the lock sleeps. One that holds it runs, or is ready and has no core: the
kernel counts both. The threads are read only if the process computed without the training thread since the last look.
"""

import threading
from itertools import islice
from time import monotonic_ns, process_time_ns, thread_time_ns

from traincope.events import BUSY_THREAD
from traincope.record.instrumentation.asynchronous import suppressed
from traincope.record.process.host_limits import read_counts
from traincope.record.session.recorder import Recorder

SCHEDULER = "/proc/self/task/{}/schedstat"
SHARE = 0.3
"""Smallest part of the time in which a thread runs, or is ready to, that is recorded."""
CPU_SHARE = 0.05
"""CPU time of all other threads together, as a share of the time, from which each is read."""
INTERVAL_NS = 500_000_000
"""Least time between two looks."""
MAX_THREADS = 64
"""Threads that are read."""
MAX_EVENTS = 64


class BusyThreads:
    """Hook on nothing in torch. It looks once a second, on the training thread."""

    name = "busy_threads"
    level = 0

    def __init__(self) -> None:
        self._looked_ns = self._others_ns = 0
        self._active_ns: dict[int, int] = {}
        """Native number of each Python thread -> how long it had been active at the last look; empty if none computed
        before.
        """
        self._events_left = MAX_EVENTS

    def install(self, recorder: Recorder) -> None:
        """Raises OSError if the kernel does not count the time of threads."""
        self._recorder = recorder
        read_counts(SCHEDULER.format(threading.get_native_id()))
        recorder.now_and_then(self._look)

    def remove(self) -> None:
        self._recorder.remove_listener(self._look)

    def _look(self) -> None:
        now, others_ns = monotonic_ns(), process_time_ns() - thread_time_ns()
        passed_ns = now - self._looked_ns
        if passed_ns < INTERVAL_NS:
            return
        computed_ns, self._looked_ns, self._others_ns = others_ns - self._others_ns, now, others_ns
        before, self._active_ns = self._active_ns, {}
        if computed_ns < CPU_SHARE * passed_ns or not self._events_left:
            return
        threads = {
            thread.native_id: thread for thread in islice(threading.enumerate(), MAX_THREADS) if thread.native_id
        }
        self._active_ns = {number: active_ns for number in threads if (active_ns := _active_ns(number)) is not None}
        busy = {number: active_ns - before[number] for number, active_ns in self._active_ns.items() if number in before}
        for number, busy_ns in busy.items():
            thread = threads[number]
            if number != threading.get_native_id() and busy_ns >= SHARE * passed_ns:
                self._events_left -= 1
                details = {"thread": thread.name, "runs": _function_of(thread), "busy_ns": busy_ns, "of_ns": passed_ns}
                self._recorder.event(BUSY_THREAD, details)


def _active_ns(number: int) -> int | None:
    """Return how long a thread ran, or was ready and had no core; None if it has ended."""
    with suppressed(OSError):
        ran, waited, *_ = read_counts(SCHEDULER.format(number)).split()
        return int(ran) + int(waited)
    return None


def _function_of(thread: threading.Thread) -> str:
    """Name the function that a thread was made for. Python deletes it when the thread ends."""
    target = getattr(thread, "_target", None)
    return str(getattr(target, "__qualname__", "") or f"{type(thread).__qualname__}.run")
