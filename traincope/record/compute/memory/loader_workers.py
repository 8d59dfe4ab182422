"""Resident memory of the workers of the training's DataLoaders."""

import mmap
import os
from collections.abc import Iterable
from time import monotonic_ns
from typing import Any

from traincope.record.instrumentation.torch_private import loader_workers

COST_SHARE = 500
"""A reading comes at the earliest after this many times the time that the one before took."""


class LoaderWorkers:
    """Reader of the memory of the workers. It reads the more rarely, the more of them there are."""

    def __init__(self, iterators: Iterable[Any]) -> None:
        """`iterators`: those of DataLoaders that are in use."""
        self._iterators = iterators
        self._next_ns = 0

    def read(self) -> int | None:
        """Return their bytes; None without any, or if the next reading is not due."""
        began_ns = monotonic_ns()
        if began_ns < self._next_ns:
            return None
        pids = [pid for iterator in list(self._iterators) for pid in loader_workers(iterator)]
        sizes = [size for size in map(resident_bytes, pids) if size is not None]
        ended_ns = monotonic_ns()
        self._next_ns = ended_ns + COST_SHARE * (ended_ns - began_ns)
        return sum(sizes) if sizes else None


def resident_bytes(pid: int) -> int | None:
    """Resident bytes of a process; None if it has ended. No file stays open, which the training might close."""
    try:
        file = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        counts = os.read(file, 64).split()
    except OSError:
        return None
    finally:
        os.close(file)
    return int(counts[1]) * mmap.PAGESIZE
