"""A child process that reads and analyses a run and returns its memory when it ends."""

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast

from traincope.analysis import Analysis
from traincope.errors import RunDirectoryError, TraincopeError
from traincope.executors import hear_interrupts, start_quietly
from traincope.report.document.job_summary import SummaryDocument
from traincope.viewer.library.analysis_cache import ANALYSIS_FILE, gc_paused, load_analysis
from traincope.viewer.library.preparing import Report

NICER = 5
"""Niceness of the child process, so the server responds first."""
LONG_SECONDS = 3600.0
ENDED = "the process that read the run was killed, perhaps because memory ran out"


T = TypeVar("T")
Work = Callable[[Path, Path, Report], T]


@dataclass(frozen=True, slots=True)
class _Stage:
    """A message of the child process, or of a process of it: what it does now."""

    text: str
    process: int


@dataclass(frozen=True, slots=True)
class _Cached:
    """The answer of a child process that has written its analysis into the cache."""


class Pending(Protocol):
    """A run that is being read and written to `tiles`."""

    tiles: Path

    @property
    def stage(self) -> str:
        """What is being done, as of the last call of `done`; empty if unknown."""

    def done(self) -> bool: ...

    def result(self) -> Analysis | SummaryDocument: ...

    def close(self) -> None: ...


class Reading(Generic[T]):
    """The running child process; it starts on construction. It does `work` on the run and its tiles."""

    def __init__(self, run: Path, tiles: Path, *, work: Work[T]) -> None:
        context = multiprocessing.get_context("spawn")
        self.tiles = tiles
        self._stages: dict[int, str] = {}
        self._received: object = None
        self._answer, child_end = context.Pipe(duplex=False)
        self._process = context.Process(target=_read, args=(work, run, tiles, child_end))
        start_quietly(self._process)
        child_end.close()

    @property
    def stage(self) -> str:
        return "; ".join(self._stages.values())

    def done(self, *, within_seconds: float = 0.0) -> bool:
        """Take the messages that have arrived; True once the answer is among them, or the process has ended."""
        until = time.monotonic() + within_seconds
        while self._received is None and self._answer.poll(max(until - time.monotonic(), 0.0)):
            try:
                with gc_paused():
                    message = self._answer.recv()
            except EOFError:
                message = RunDirectoryError(ENDED)
            if isinstance(message, _Stage):
                self._stages[message.process] = message.text
            else:
                self._received = message
        return self._received is not None

    def result(self) -> T:
        """Wait for what the work returns. Raises TraincopeError where the run cannot be read."""
        while not self.done(within_seconds=LONG_SECONDS):
            pass
        self.close()
        answer = self._received
        if isinstance(answer, _Cached):
            answer = load_analysis(self.tiles) or RunDirectoryError(f"{self.tiles} was removed; open the run again")
        if isinstance(answer, TraincopeError):
            raise answer
        return cast(T, answer)

    def close(self) -> None:
        """End the child process, with or without an answer."""
        self._process.terminate()
        self._process.join()
        self._answer.close()


def _read(work: Work[object], run: Path, tiles: Path, answer: Connection) -> None:
    os.nice(NICER)
    with suppress(BrokenPipeError, KeyboardInterrupt), gc_paused():  # The parent process is gone.
        hear_interrupts()
        try:
            result = work(run, tiles, lambda text: answer.send(_Stage(text, os.getpid())))
            answer.send(_Cached() if isinstance(result, Analysis) and (tiles / ANALYSIS_FILE).exists() else result)
        except TraincopeError as error:
            answer.send(error)
