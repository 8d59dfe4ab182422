"""The one place where an error of ours is caught, and our own time measured: training must not feel us."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from time import thread_time_ns
from typing import Any, ParamSpec, TypeVar, cast

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

TOLERATED = 100
"""Errors after which a hook is switched off for the run: one odd input must not cost the rest of the evidence."""

SAMPLED = 31
"""Of a hook that is called all the time every so-maniest call is timed, for all of them; a prime, so that it falls
in with no loop's rhythm."""

failures: dict[str, str] = {}
"""Hook -> the type of its first error in this run, for `rank.json` and the report; its message, which may hold data,
goes to the log alone."""

counts: dict[str, int] = {}
"""Hook -> how often it failed in this run."""

_run = 0
"""Counts runs: a hook that failed in one is tried again in the next."""


class Meter:
    """CPU time this process spent in our hooks; threads may lose each other a little of it.

    CPU time, for a thread that is preempted in a hook of ours would else count the machine's load as ours.
    """

    __slots__ = ("clock_ns", "guard_ns", "own_ns", "span_ns")

    def __init__(self) -> None:
        self.own_ns = 0
        self.span_ns = 1_000
        """What one span costs here, by a trial at the start of a run."""
        self.guard_ns = 0
        """What passing a guard costs here beside the hook in it, likewise."""
        self.clock_ns = 0
        """What reading the thread's CPU clock costs here, likewise: a system call, and a hook may be cheaper."""


class _Timing(threading.local):
    under_way = False
    """A hook that is called inside one that is being timed is timed with it."""


meter = Meter()
_timing = _Timing()


def begin_run() -> None:
    """Forget the failures of the run before."""
    global _run
    _run += 1
    failures.clear()
    counts.clear()
    meter.clock_ns = trial_ns(thread_time_ns)
    meter.guard_ns = trial_ns(guard(_nothing, every=SAMPLED)) - trial_ns(_nothing)
    meter.own_ns = 0


def trial_ns(call: Callable[[], object]) -> int:
    """What one call costs here: the quickest of a few short loops."""
    loops = []
    for _ in range(5):
        started = thread_time_ns()
        for _ in range(50):
            call()
        loops.append((thread_time_ns() - started) // 50)
    return min(loops)


def _nothing() -> None:
    pass


def guard(hook: Callable[P, R], *, every: int = 1, around_ns: int = 0) -> Callable[P, R | None]:
    """`hook`, but it cannot raise: its first error is logged, and after `TOLERATED` it is off for this run.

    For positional arguments only: collecting named ones would cost every call 0.05 us. `every`: how
    many calls one is timed for, `SAMPLED` where timing each would cost more than the hook.
    `around_ns`: what a call costs beside the hook itself, e.g. the dispatcher's way into Python.
    """
    name = f"{hook.__module__.removeprefix('traincope.record.')}.{hook.__qualname__}"
    off_in = -1
    left = every

    def guarded(*args: Any) -> R | None:
        nonlocal left
        if off_in == _run:
            return None
        left -= 1
        try:
            if left > 0:
                return hook(*args)  # type: ignore[call-arg]
            left = every
            return timed(*args)
        except Exception as error:  # noqa: BLE001 - `report` logs it
            report(error)
            return None

    def timed(*args: Any) -> R:
        if _timing.under_way:
            return hook(*args)  # type: ignore[call-arg]
        _timing.under_way, started = True, thread_time_ns()
        try:
            return hook(*args)  # type: ignore[call-arg]
        finally:
            _timing.under_way = False
            spent_ns = thread_time_ns() - started - meter.clock_ns  # one reading's worth lies between the two
            meter.own_ns += every * (spent_ns + around_ns + meter.guard_ns) + 2 * meter.clock_ns

    def report(error: Exception) -> None:
        nonlocal off_in
        counts[name] = counts.get(name, 0) + 1
        if counts[name] >= TOLERATED:
            off_in = _run
        if counts[name] == 1:
            failures[name] = type(error).__name__
            with suppress(Exception):  # an error that cannot be told, or a logging that raises itself
                logger.warning("traincope: %s failed, training goes on: %s", name, error, exc_info=True)

    return cast("Callable[P, R | None]", guarded)


def failure_notes() -> dict[str, str]:
    """What failed in this run, in words, for the probes of `rank.json`."""
    return {
        name: (f"switched off: {error}" if counts[name] >= TOLERATED else f"failed {counts[name]} times: {error}")
        for name, error in failures.items()
    }
