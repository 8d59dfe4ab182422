"""Workers that read a large run: processes of this machine, or those of a Dask cluster.

A task is a function of a module and picklable arguments, and its result is what the reader needs: so any
`concurrent.futures.Executor` can run it, wherever its workers see the files of the run. `alongside` is for work on what
this process has read: a fork passes it on without a copy.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TypeVar

from traincope.errors import DataError, MissingDependencyError, TraincopeError, UsageError

CONNECT_SECONDS = 10

T = TypeVar("T")


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


def start_quietly(process: BaseProcess) -> None:
    """Start a spawned process that gets no Ctrl-C before it calls `hear_interrupts`: imports would print tracebacks."""
    resource_tracker.ensure_running()  # its own start would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def hear_interrupts() -> None:
    """Raise the KeyboardInterrupt of a Ctrl-C that was held back, and of later ones."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def alongside(work: Callable[[Callable[[], T]], None]) -> Iterator[Callable[[T], None]]:
    """Do `work` in a process next to the block, on the memory of this process as it is now.

    The block calls what is yielded once, with what the work waits for as late as it can; the work calls its argument to
    get it. Leaving the block waits for the work's end. Where no fork is safe, this process does the work at that call.
    Raises OSError and TraincopeError of the work, and DataError if its process was killed, at the call or at the end.
    The process ends with this one as soon as it waits.
    """
    if start_method() != "fork":
        yield lambda value: work(lambda: value)
        return
    context = get_context("fork")
    here, other = context.Pipe()
    process = context.Process(target=_work, args=(work, here, other), daemon=True)
    process.start()
    other.close()

    def complete(value: T) -> None:
        try:
            here.send(value)
        except ConnectionError:  # its answer says why it has ended
            _raise_answer(here, process)

    try:
        yield complete
        _raise_answer(here, process)
    finally:
        process.terminate()  # it has ended, unless the block raised
        process.join()
        here.close()


def _raise_answer(work: Connection, process: BaseProcess) -> None:
    """Wait for the end of the work, and raise its error."""
    try:
        error: OSError | TraincopeError | None = work.recv()
    except (EOFError, ConnectionError) as gone:
        process.join()
        raise DataError(f"a process that worked on the run {_ended(process.exitcode or 0)}") from gone
    if error is not None:
        raise error


def _ended(exit_code: int) -> str:
    if exit_code < 0:
        return "was killed, perhaps because memory ran out"
    return "failed; its traceback is above" if exit_code else "was interrupted"


def _work(work: Callable[[Callable[[], T]], None], parents: Connection, own: Connection) -> None:
    parents.close()
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):  # the parent process is gone, or gets Ctrl-C too
        try:
            work(own.recv)
            own.send(None)
        except (OSError, TraincopeError) as error:
            own.send(error)
        except MemoryError:
            own.send(DataError("a process that worked on the run ran out of memory; read it where more is free"))


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
