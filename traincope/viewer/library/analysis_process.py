"""A child process that reads and analyses a run and returns its memory when it ends."""

import multiprocessing
import os
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from traincope.analysis import Analysis
from traincope.errors import RunDirectoryError, TraincopeError
from traincope.viewer.library.preparing import prepare

NICER = 5
"""Niceness of the child process, so the server responds first."""
ENDED = "the process that read the run was killed, perhaps because memory ran out"


class Pending(Protocol):
    """A run that is being read and written to `tiles`."""

    tiles: Path

    def done(self) -> bool: ...

    def result(self) -> Analysis: ...

    def close(self) -> None: ...


class Reading:
    """The running child process; it starts on construction."""

    def __init__(self, run: Path, tiles: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.tiles = tiles
        self._answer, child_end = context.Pipe(duplex=False)
        self._process = context.Process(target=_read, args=(run, tiles, child_end), daemon=True)
        self._process.start()
        child_end.close()

    def done(self, *, within_seconds: float = 0.0) -> bool:
        return self._answer.poll(within_seconds)

    def result(self) -> Analysis:
        """Wait for the analysis. Raises TraincopeError where the run cannot be read."""
        try:
            answer = self._answer.recv()
        except EOFError as error:
            raise RunDirectoryError(ENDED) from error
        finally:
            self.close()
        if isinstance(answer, TraincopeError):
            raise answer
        if not isinstance(answer, Analysis):
            raise RunDirectoryError(ENDED)
        return answer

    def close(self) -> None:
        """End the child process, with or without an answer."""
        self._process.terminate()
        self._process.join()
        self._answer.close()


def _read(run: Path, tiles: Path, answer: Connection) -> None:
    os.nice(NICER)
    with suppress(BrokenPipeError, KeyboardInterrupt):  # The parent process is gone.
        try:
            answer.send(prepare(run, tiles))
        except TraincopeError as error:
            answer.send(error)
