"""The kernel's counts of the training thread, of its process, and of what it shares with others on its host.

They show that ranks are slow because of their host and not because of their work: other threads use their cores, a
quota stops them, or their memory is taken. One reading a second costs some 60 us.
"""

import os
import resource
from collections.abc import Callable, Mapping
from time import monotonic_ns, process_time_ns
from typing import Any

from traincope.events import Kind, Phase, Usage
from traincope.record.process.host_limits import (
    allowed_cores,
    cpu_quota,
    host_idle_ns,
    memory_pressure_file,
    memory_stall_ns,
    read_counts,
)
from traincope.record.session.recorder import Recorder

SCHEDULER = "/proc/thread-self/schedstat"
"""Run time and time on a run queue in ns, and number of time slices (Documentation/scheduler/sched-stats of Linux)."""


class ThreadUsage:
    """Hook on nothing in torch. It reads once a second, on the training thread."""

    name = "usage"
    level = 0

    def install(self, recorder: Recorder) -> None:
        """Raises OSError if the kernel does not count."""
        self._recorder = recorder
        read_usage()
        self._numbers = {each: recorder.names.intern(each) for each in Usage}
        self._quota = cpu_quota()
        self._counts = _host_counts() | ({} if self._quota is None else {Usage.THROTTLED: self._quota.throttled_ns})
        recorder.cpu_limits = self._limits()
        recorder.now_and_then(self._write)

    def remove(self) -> None:
        self._recorder.remove_listener(self._write)

    def _write(self) -> None:
        now, writer = monotonic_ns(), self._recorder.main
        for each, total in read_usage(self._counts).items():
            writer.write(Kind.USAGE, now, now, Phase.NONE, self._numbers[each], value=total)
        self._write_limits()

    def _write_limits(self) -> None:
        """Describe what the thread may use after each change: a training may bind itself late."""
        limits = self._limits()
        if limits != self._recorder.cpu_limits:
            self._recorder.cpu_limits = limits
            self._recorder.write_metadata()

    def _limits(self) -> dict[str, Any]:
        quota = None if self._quota is None else self._quota.cores
        return {"allowed": allowed_cores(), "cores": os.cpu_count() or 1, "quota": quota}


def read_usage(host_counts: Mapping[Usage, Callable[[], int]] | None = None) -> dict[Usage, int]:
    """Return the totals of the calling thread, of its process and of these counts. Raises OSError."""
    cpu_ns, core_wait_ns = scheduled_ns()
    return {
        Usage.CORE_WAIT: core_wait_ns,
        Usage.CPU_TIME: cpu_ns,
        Usage.PROCESS_CPU_TIME: process_time_ns(),
        Usage.MAJOR_FAULTS: resource.getrusage(resource.RUSAGE_THREAD).ru_majflt,
        **{usage: count() for usage, count in (host_counts or {}).items()},
    }


def scheduled_ns() -> tuple[int, int]:
    """Return how long the calling thread ran, and how long it was ready and had no core, in ns.

    Raises OSError if the kernel has no count.
    """
    ran, waited, *_ = read_counts(SCHEDULER).split()
    return int(ran), int(waited)


def _host_counts() -> dict[Usage, Callable[[], int]]:
    """Counts of the host that this kernel has."""
    pressure = memory_pressure_file()
    counts: dict[Usage, Callable[[], int]] = {Usage.HOST_IDLE: host_idle_ns}
    if pressure is not None:
        counts[Usage.MEMORY_STALL] = lambda: memory_stall_ns(pressure)
    return counts
