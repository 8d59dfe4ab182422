"""Hook on other Python threads of the process that compute: in Python only the one that holds the GIL runs.

A thread that writes a checkpoint or tokenizes in the background may stop the training thread for milliseconds at every
exchange of the lock. The kernel counts the time of each thread. They are read only if the process computed without the
training thread for much of the time since the last look.
"""

import threading
from itertools import islice
from time import monotonic_ns, process_time_ns, thread_time_ns

from traincope.events import BUSY_THREAD
from traincope.record.instrumentation.asynchronous import suppressed
from traincope.record.process.host_limits import read_counts
from traincope.record.session.recorder import Recorder

SCHEDULER = "/proc/self/task/{}/schedstat"
SHARE = 0.05
"""Smallest part of the time in which a thread computes that is recorded: other processes may take most of the cores."""
OF_TRAINING = 0.5
"""Smallest CPU time of a thread that is recorded, relative to the training thread's."""
INTERVAL_NS = 500_000_000
"""Least time between two looks."""
MAX_THREADS = 64
"""Threads that are read."""
MAX_EVENTS = 64
OWN = "traincope"
"""Begin of the names of our threads."""


class BusyThreads:
    """Hook on nothing in torch. It looks once a second, on the training thread."""

    name = "busy_threads"
    level = 0

    def __init__(self) -> None:
        self._looked_ns = self._others_ns = self._training_ns = 0
        self._ran_ns: dict[int, int] = {}
        """Native number of each Python thread -> its CPU time at the last look; empty if nothing computed before."""
        self._events_left = MAX_EVENTS

    def install(self, recorder: Recorder) -> None:
        """Raises OSError if the kernel does not count the time of threads."""
        read_counts(SCHEDULER.format(threading.get_native_id()))
        self._recorder = recorder
        recorder.now_and_then(self._look)

    def remove(self) -> None:
        self._recorder.remove_listener(self._look)

    def _look(self) -> None:
        now, training_ns = monotonic_ns(), thread_time_ns()
        others_ns, passed_ns = process_time_ns() - training_ns, now - self._looked_ns
        if passed_ns < INTERVAL_NS:
            return
        trained_ns, self._training_ns = training_ns - self._training_ns, training_ns
        computed_ns, self._looked_ns, self._others_ns = others_ns - self._others_ns, now, others_ns
        before, self._ran_ns = self._ran_ns, {}
        least_ns = max(SHARE * passed_ns, OF_TRAINING * trained_ns)
        if computed_ns < least_ns or not self._events_left:
            return
        threads = {
            thread.native_id: thread for thread in islice(threading.enumerate(), MAX_THREADS) if thread.native_id
        }
        self._ran_ns = {number: ran_ns for number in threads if (ran_ns := _ran_ns(number)) is not None}
        busy = {number: ran_ns - before[number] for number, ran_ns in self._ran_ns.items() if number in before}
        for number, busy_ns in busy.items():
            thread = threads[number]
            is_other = number != threading.get_native_id() and not thread.name.startswith(OWN)
            if is_other and busy_ns >= least_ns:
                self._events_left -= 1
                ran = {"busy_ns": busy_ns, "training_ns": trained_ns}
                details = {"thread": thread.name, "runs": _what_runs(thread), **ran}
                self._recorder.event(BUSY_THREAD, details)


def _ran_ns(number: int) -> int | None:
    """Return the CPU time of a thread; None if it has ended."""
    with suppressed(OSError):
        return int(read_counts(SCHEDULER.format(number)).split()[0])
    return None


def _what_runs(thread: threading.Thread) -> str:
    """Name the function that a thread was made for. Python deletes it when the thread ends."""
    target = getattr(thread, "_target", None)
    return str(getattr(target, "__qualname__", "") or f"{type(thread).__qualname__}.run")
