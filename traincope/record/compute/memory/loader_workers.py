"""Resident memory and CPU time of the workers of the training's DataLoaders."""

import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic_ns, thread_time_ns
from typing import Any

from traincope.record.instrumentation.torch_private import loader_workers

COST_SHARE = 500
"""A reading comes at the earliest after this many times the CPU time that the one before took."""
EARLY_READINGS, EARLY_COST_SHARE = 64, 50
"""The first readings come sooner: a growth of a short run needs as many."""
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUse:
    """What processes use; added up over several."""

    resident_bytes: int
    cpu_ns: int
    """Time in which their threads ran since they began."""


class LoaderWorkers:
    """Reader of the workers. It reads the more rarely, the more of them there are."""

    def __init__(self, iterators: Iterable[Any]) -> None:
        """`iterators`: those of DataLoaders that are in use."""
        self._iterators = iterators
        self._next_ns = 0
        self._readings = 0
        self._cpu_ns: dict[int, int] = {}
        """Process id -> CPU time at the latest reading, of each worker that runs."""
        self._ended_ns = 0
        """CPU time of workers that ended, by their latest readings: the sum over all never falls."""

    def read(self) -> WorkerUse | None:
        """Return what they use together; None without any, or if the next reading is not due."""
        if monotonic_ns() < self._next_ns:
            return None
        began_ns = thread_time_ns()  # a wait for a core is no cost of the reading
        pids = [pid for iterator in list(self._iterators) for pid in loader_workers(iterator)]
        uses = {pid: use for pid in pids if (use := use_of(pid)) is not None}
        for pid, before_ns in self._cpu_ns.items():
            if pid not in uses or uses[pid].cpu_ns < before_ns:  # another process may have its number by now
                self._ended_ns += before_ns
        self._cpu_ns = {pid: use.cpu_ns for pid, use in uses.items()}
        share = COST_SHARE if self._readings >= EARLY_READINGS else EARLY_COST_SHARE
        self._next_ns = monotonic_ns() + share * (thread_time_ns() - began_ns)
        if not uses:
            return None
        self._readings += 1
        return WorkerUse(
            resident_bytes=sum(use.resident_bytes for use in uses.values()),
            cpu_ns=self._ended_ns + sum(self._cpu_ns.values()),
        )


def use_of(pid: int) -> WorkerUse | None:
    """Return what a process uses; None if it has ended. No file stays open, which the training might close."""
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        line = os.read(file, 1024)
    except OSError:
        return None
    finally:
        os.close(file)
    fields = line.rpartition(b")")[2].split()  # from the third on: the second, its name, may contain spaces
    return WorkerUse(
        resident_bytes=int(fields[21]) * mmap.PAGESIZE, cpu_ns=(int(fields[11]) + int(fields[12])) * TICK_NS
    )
