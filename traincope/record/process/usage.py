"""The kernel's counts of the training thread: its waits for a core, and its pages that came from a disk.

They show that a rank is slow because of its host and not because of its work: another process uses its cores, or its
memory is taken. One reading a second costs some 20 us.
"""

import os
import resource
from time import monotonic_ns

from traincope.events import Kind, Phase, Usage
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
        core_wait_ns()
        self._numbers = {each: recorder.names.intern(each) for each in Usage}
        recorder.now_and_then(self._write)

    def remove(self) -> None:
        self._recorder.remove_listener(self._write)

    def _write(self) -> None:
        now, writer = monotonic_ns(), self._recorder.main
        for each, total in read_usage().items():
            writer.write(Kind.USAGE, now, now, Phase.NONE, self._numbers[each], value=total)


def read_usage() -> dict[Usage, int]:
    """Return the totals of the calling thread. Raises OSError."""
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
    return {Usage.CORE_WAIT: core_wait_ns(), Usage.MAJOR_FAULTS: faults}


def core_wait_ns() -> int:
    """Return how long the calling thread was ready and had no core, in ns. Raises OSError if the kernel has no count.

    No file stays open, which the training might close.
    """
    scheduler = os.open(SCHEDULER, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(scheduler, 128).split()[1])
    finally:
        os.close(scheduler)
