"""A child process that reads and analyses a run and returns its memory when it ends."""

import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol, cast

from traincope.analysis import Analysis
from traincope.errors import RunDirectoryError, TraincopeError
from traincope.report.document.job_summary import SummaryDocument
from traincope.viewer.library.preparing import prepare

NICER = 5
"""Niceness of the child process, so the server responds first."""
ENDED = "the process that read the run was killed, perhaps because memory ran out"


class Pending(Protocol):
    """A run that is being read and written to `tiles`."""

    tiles: Path

    def done(self) -> bool: ...

    def result(self) -> Analysis | SummaryDocument: ...

    def close(self) -> None: ...


class Reading:
    """The running child process; it starts on construction. It does `work` on the run and its tiles."""

    def __init__(
        self, run: Path, tiles: Path, *, work: Callable[[Path, Path], Analysis | SummaryDocument] = prepare
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.tiles = tiles
        self._answer, child_end = context.Pipe(duplex=False)
        self._process = context.Process(target=_read, args=(work, run, tiles, child_end), daemon=True)
        self._process.start()
        child_end.close()

    def done(self, *, within_seconds: float = 0.0) -> bool:
        return self._answer.poll(within_seconds)

    def result(self) -> Analysis | SummaryDocument:
        """Wait for what the work returns. Raises TraincopeError where the run cannot be read."""
        try:
            answer = self._answer.recv()
        except EOFError as error:
            raise RunDirectoryError(ENDED) from error
        finally:
            self.close()
        if isinstance(answer, TraincopeError):
            raise answer
        return cast(Analysis | SummaryDocument, answer)

    def close(self) -> None:
        """End the child process, with or without an answer."""
        self._process.terminate()
        self._process.join()
        self._answer.close()


def _read(work: Callable[[Path, Path], Analysis | SummaryDocument], run: Path, tiles: Path, answer: Connection) -> None:
    os.nice(NICER)
    with suppress(BrokenPipeError, KeyboardInterrupt):  # The parent process is gone.
        try:
            answer.send(work(run, tiles))
        except TraincopeError as error:
            answer.send(error)
