"""Long-lived worker processes with one gloo process group per pool, so that a test costs no launch.

    results = pool.run(train, config)  # calls train(config) on every rank

A rank that raises, dies or hangs fails the test that caused it; the pool then restarts.
"""

import functools
import gc
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Self, TypeVar

Result = TypeVar("Result")

START_SECONDS, START_SECONDS_PER_RANK = 120.0, 20.0
"""Time that the ranks have to import torch together; the largest pool has 16 on two cores."""
GRACE_SECONDS = 2.0
"""Time that the other ranks have to end after one has failed. They often wait for it without end."""
MAX_GROUPS = 24
"""Process groups of earlier tests that a rank keeps."""
PRELOADED = ["traincope.engine.trainer"]
"""Imported once, with all of torch that trainings use, by the server that forks the ranks of all pools."""


class RankFailed(Exception):
    """Failures by rank: a traceback, `died with exit code n`, or `did not answer in n s`."""

    def __init__(self, reports: dict[int, str]) -> None:
        super().__init__("\n".join(f"rank {rank}: {report}" for rank, report in sorted(reports.items())))
        self.reports = reports


class Pool:
    """`size` processes, started when first needed. They are forked before any thread or group exists.

    Ranks of all pools have the environment of the first pool's start, because the server that forks them has it.
    """

    def __init__(self, size: int, *, patience: float = 1.0) -> None:
        """`patience` is a factor on all time limits."""
        self.size = size
        self._patience = patience
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection] = []
        self._directory: str | None = None
        """Folder of the group's file store, which each new subgroup still needs."""

    def run(self, function: Callable[..., Result], *arguments: object, timeout_seconds: float = 150.0) -> list[Result]:
        """Call `function(*arguments)` on each rank. Returns the results in rank order, or raises RankFailed."""
        if not self._processes:
            self._start()
        for connection in self._connections:
            connection.send((function, arguments))
        limit = timeout_seconds * self._patience
        results, reports = self._collect(time.monotonic() + limit, limit=limit)
        if reports:
            self.stop()
            raise RankFailed(reports)
        return [results[rank] for rank in range(self.size)]

    def stop(self) -> None:
        """Kill the processes. The next `run` starts new ones."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        for connection in self._connections:
            connection.close()
        self._processes, self._connections = [], []
        if self._directory is not None:
            shutil.rmtree(self._directory)
            self._directory = None

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # otherwise the server's torch starts threads
        context.set_forkserver_preload(PRELOADED)
        self._directory = tempfile.mkdtemp(prefix="traincope-pool-")
        for rank in range(self.size):
            parent_end, child_end = context.Pipe()
            process = context.Process(target=_serve, args=(child_end, rank, self.size, self._directory), daemon=True)
            process.start()
            child_end.close()
            self._processes.append(process)
            self._connections.append(parent_end)
        limit = (START_SECONDS + START_SECONDS_PER_RANK * self.size) * self._patience
        _, reports = self._collect(time.monotonic() + limit, limit=limit)
        if reports:
            self.stop()
            raise RankFailed(reports)

    def _collect(self, deadline: float, *, limit: float) -> tuple[dict[int, Any], dict[int, str]]:
        """Collect each rank's answer until the deadline, or shortly after the first failure."""
        results: dict[int, Any] = {}
        reports: dict[int, str] = {}
        while missing := [rank for rank in range(self.size) if rank not in results and rank not in reports]:
            waiting = {self._connections[rank]: rank for rank in missing}
            ready = wait(list(waiting), timeout=max(deadline - time.monotonic(), 0.0))
            if not ready:
                late = f"did not answer in {limit:g} s" if not reports else "was waiting for the others"
                return results, reports | dict.fromkeys(missing, late)
            for rank in sorted(waiting[connection] for connection in ready if isinstance(connection, Connection)):
                self._receive(rank, results=results, reports=reports)
            if reports:
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        return results, reports

    def _receive(self, rank: int, *, results: dict[int, Any], reports: dict[int, str]) -> None:
        try:
            good, value = self._connections[rank].recv()
        except (EOFError, ConnectionResetError):
            self._processes[rank].join()
            reports[rank] = f"died with exit code {self._processes[rank].exitcode}"
            return
        if good:
            results[rank] = value
        else:
            reports[rank] = value


def _serve(connection: Connection, rank: int, size: int, directory: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory}/rendezvous",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=150),
    )
    dist.barrier()
    gc.freeze()  # objects that live until the end need no scan after each call
    connection.send((True, None))
    with suppress(EOFError):
        while True:
            function, arguments = connection.recv()
            answer = _call(function, arguments)
            _limit_groups()
            connection.send(answer)
    os._exit(0)


def _limit_groups() -> None:
    """Destroy process groups of earlier tests.

    Each group's threads wake a hundred times per second, used or not; those of hundreds of tests take both cores. All
    groups are destroyed at once, and rarely, because DTensor's caches for their meshes go with them.
    """
    import torch.distributed as dist

    world = dist.group.WORLD
    groups = [group for group in dist.distributed_c10d._world.pg_map if group is not world]
    if len(groups) > MAX_GROUPS:
        gc.unfreeze()
        _forget_meshes()
        for group in groups:
            dist.destroy_process_group(group)
    gc.collect()
    gc.freeze()  # what torch keeps from call to call needs no scan after each


def _forget_meshes() -> None:
    """Clear DTensor's caches.

    Meshes with equal ranks are equal, so the next test would get a cached mesh with destroyed groups.
    """
    from torch.distributed.tensor import _redistribute
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    _clear_sharding_prop_cache()
    _redistribute._planner_cache.clear()
    for name in [name for name in sys.modules if name.startswith("torch.distributed")]:
        for value in vars(sys.modules[name]).values():
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()


def _call(function: Callable[..., object], arguments: tuple[object, ...]) -> tuple[bool, object]:
    """Call a test's function. An exception is its result."""
    result: object = None
    with _Raised() as raised, warnings.catch_warnings():
        warnings.simplefilter("error")
        result = function(*arguments)
    return (True, result) if raised.report is None else (False, raised.report)


class _Raised:
    """Keeps the traceback of an exception in its block."""

    report: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool:
        if error is not None:
            self.report = "".join(traceback.format_exception(kind, error, where))
        return True
