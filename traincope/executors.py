"""Workers that read a large run: processes of this machine, or those of a Dask cluster.

A task is a function of a module and picklable arguments, and its result is what the reader needs: so any
`concurrent.futures.Executor` can run it, wherever its workers see the files of the run.
"""

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

from traincope.errors import DataError, MissingDependencyError, UsageError

CONNECT_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Where reading runs."""

    processes: int = 1
    """Processes of this machine. 1: the calling process alone."""
    scheduler: str | None = None
    """Address of a Dask scheduler, e.g. `tcp://head:8786`; its workers then read, and `processes` does not count."""

    @contextmanager
    def executor(self) -> Iterator[Executor | None]:
        """Yield the executor; None: the calling process reads.

        Raises MissingDependencyError without Dask, UsageError if its scheduler does not answer, DataError if a process
        of the pool was killed.
        """
        if self.scheduler is not None:
            with _dask(self.scheduler) as executor:
                yield executor
        elif self.processes > 1:
            try:
                with ProcessPoolExecutor(self.processes, mp_context=get_context(start_method())) as pool:
                    yield pool
            except BrokenProcessPool as error:
                raise DataError(
                    "a process that read the run was killed, perhaps because memory ran out; give fewer --processes"
                ) from error
        else:
            yield None


def own_processes() -> Workers:
    """One process for each core that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Workers(processes=cores)


def start_method() -> str:
    """Name how to start processes: a fork where it is safe, because a new process takes longer to start than to read.

    A fork copies only the thread that makes it, and torch's threads and GPUs do not survive it.
    """
    alone = sys.platform == "linux" and threading.active_count() == 1 and "torch" not in sys.modules
    return "fork" if alone else "spawn"


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingDependencyError("a Dask scheduler needs Dask: pip install 'traincope[dask]'") from error
    try:
        client = Client(address, timeout=CONNECT_SECONDS)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the Dask scheduler {address} does not answer ({error}); give the address that `dask scheduler` prints"
        ) from error
    with client:
        yield client.get_executor()  # type: ignore[no-untyped-call]
