"""The guard: the one place that catches the recorder's errors and measures its time. Training must not be affected."""

import errno
import logging
from collections import deque
from collections.abc import Callable
from time import monotonic_ns, thread_time_ns
from typing import Any, ParamSpec, TypeVar, cast

from traincope.record.instrumentation.asynchronous import is_asynchronous, suppressed

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

MAX_ERRORS = 100
"""Number of errors after which a hook is switched off for the run.

One odd input must not cost the rest of the evidence.
"""

SAMPLING_INTERVAL = 31
"""Time one call in 31 of a frequent hook. A prime avoids locking to a loop."""

FIRST_TIMED = 3
"""Number of first calls that are all timed: the first ones are slow, and say little about those that follow."""

failures: dict[str, str] = {}
"""Hook -> the type of its first error in this run, for `rank.json` and the report.

The error's message, which may hold data, goes only to the log.
"""

counts: dict[str, int] = {}
"""Hook -> number of its failures in this run."""

SHORTAGES = (errno.EMFILE, errno.ENFILE)
"""Errors of an opening for which no descriptor is free. They are of the process, not of a hook."""
DESCRIPTORS = "descriptors"

shortages = 0
"""Number of such errors in this run."""
given_up: dict[str, int] = {}
"""Hook -> number of its calls that reached Python's recursion limit."""

_run = 0
"""Number of runs so far. A hook that failed in one run is tried again in the next."""


class Meter:
    """CPU time that this process spent in our hooks. Threads may lose a little of each other's time.

    It is CPU time because the wall time of a preempted hook would count the machine's load as overhead.
    """

    __slots__ = ("clock_ns", "guard_ns", "interrupted_ns", "own_ns", "span_ns")

    def __init__(self) -> None:
        self.own_ns = 0
        self.span_ns = 1_000
        """Cost of one span on this machine, from a trial at the start of a run."""
        self.guard_ns = 0
        """Cost of passing a guard."""
        self.clock_ns = 0
        """Cost of reading the thread's CPU clock: a system call, which may cost more than a hook."""
        self.interrupted_ns = 0
        """The time when an exception of the training last left a hook, which then may have left a record open."""


meter = Meter()


def begin_run() -> None:
    """Clear the failures of the run before, and measure the costs of the clock and of a guard."""
    global _run, shortages
    _run += 1
    shortages = 0
    failures.clear()
    counts.clear()
    given_up.clear()
    meter.clock_ns = trial_ns(thread_time_ns)
    meter.guard_ns = trial_ns(guard(_nothing, every=SAMPLING_INTERVAL)) - trial_ns(_nothing)
    meter.own_ns = 0


def trial_ns(call: Callable[[], object]) -> int:
    """Return the cost of one call in ns: the fastest of a few short loops."""
    loops = []
    for _ in range(5):
        started = thread_time_ns()
        for _ in range(50):
            call()
        loops.append((thread_time_ns() - started) // 50)
    return min(loops)


def _nothing() -> None:
    pass


def guard(hook: Callable[P, R], *, every: int = 1, extra_ns: int = 0) -> Callable[P, R | None]:
    """Wrap `hook` so that it cannot raise. Its first error is logged; after `MAX_ERRORS` it is off for this run.

    Exceptions that only happen to be raised there pass: they are the training's (`asynchronous.py`). A RecursionError
    costs one record and no log line: the training is close to the limit, which it may never reach.

    It takes positional arguments only: collecting named ones would cost 0.05 us per call. `every`: time one call in
    this many; a call between counts as the median of the last three timed ones, which no single costly call moves. The
    first calls, which cost more than later ones, are timed more often, at doubling intervals. `SAMPLING_INTERVAL` is
    for hooks that cost less than the timing. `extra_ns`: the cost of a call besides the hook
    itself, e.g. the dispatcher's way into Python.
    """
    name = f"{hook.__module__.rpartition('.')[2]}.{hook.__qualname__}"
    off_in = -1
    calls_left = interval = 1
    each_ns = 0
    latest_ns: deque[int] = deque(maxlen=FIRST_TIMED)

    def guarded(*args: Any) -> R | None:
        nonlocal calls_left
        calls_left -= 1
        try:
            if calls_left > 0:
                meter.own_ns += each_ns
                return hook(*args)  # type: ignore[call-arg]
            return timed(*args)
        except RecursionError:  # the training is close to the limit: another call would raise once more
            given_up[name] = given_up.get(name, 0) + 1
            return None
        except Exception as error:
            if is_asynchronous(error):
                meter.interrupted_ns = monotonic_ns()
                raise
            report(error)
            return None

    def timed(*args: Any) -> R | None:
        if off_in == _run:
            return None
        before_ns, started = meter.own_ns, thread_time_ns()
        try:
            return hook(*args)  # type: ignore[call-arg]
        finally:
            spent_ns = thread_time_ns() - started - meter.clock_ns  # one clock reading lies between the two
            count(spent_ns - (meter.own_ns - before_ns))  # hooks inside this one have counted themselves

    def count(spent_ns: int) -> None:
        nonlocal calls_left, each_ns, interval
        cost_ns = max(spent_ns, 0) + extra_ns + meter.guard_ns
        meter.own_ns += cost_ns + 2 * meter.clock_ns
        if every > 1:
            latest_ns.append(cost_ns)
            if len(latest_ns) == FIRST_TIMED:
                calls_left, each_ns = interval, sorted(latest_ns)[FIRST_TIMED // 2]
                interval = min(2 * interval, every)
            else:
                calls_left = 1

    def report(error: Exception) -> None:
        nonlocal off_in, calls_left
        if isinstance(error, OSError) and error.errno in SHORTAGES:
            _note_shortage(error)
            return
        counts[name] = counts.get(name, 0) + 1
        if counts[name] >= MAX_ERRORS:
            off_in, calls_left = _run, 0  # `timed` receives every call
        if counts[name] == 1:
            failures[name] = type(error).__name__
            with suppressed(Exception):  # the error cannot be formatted, or the logging itself raises
                ours = not isinstance(error, OSError)  # a file that is gone is no defect to trace
                logger.warning("traincope: %s failed, training goes on: %s", name, error, exc_info=ours)

    return cast("Callable[P, R | None]", guarded)


def _note_shortage(error: OSError) -> None:
    """Log the first shortage of descriptors of a run. The hooks go on, because the training may close some."""
    global shortages
    shortages += 1
    if shortages == 1:
        with suppressed(Exception):  # the logging itself raises
            logger.warning("no file descriptor is free, training goes on and the record has gaps: %s", error)


def failure_notes() -> dict[str, str]:
    """Describe the failures of this run, for the probes of `rank.json`."""
    notes = {name: f"on, but gave up {num} calls close to Python's recursion limit" for name, num in given_up.items()}
    notes |= {
        name: (f"switched off: {error}" if counts[name] >= MAX_ERRORS else f"failed {counts[name]} times: {error}")
        for name, error in failures.items()
    }
    return notes | ({DESCRIPTORS: f"failed {shortages} times: none was free"} if shortages else {})
