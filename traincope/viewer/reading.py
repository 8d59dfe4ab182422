"""A child process that reads a run: a fresh interpreter, whose memory goes back when it has answered."""

import multiprocessing
import os
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from traincope.analysis import Analysis
from traincope.errors import RunDirectoryError, TraincopeError
from traincope.viewer.preparing import prepare

NICER = 5
"""Whoever looks at what has been read already goes first."""
ENDED = "the process that read it was ended from outside; was memory short?"


class Pending(Protocol):
    """A run that is being read, into `tiles` too."""

    tiles: Path

    def done(self) -> bool: ...

    def result(self) -> Analysis: ...

    def close(self) -> None: ...


class Reading:
    """Begun when it is made."""

    def __init__(self, run: Path, tiles: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.tiles = tiles
        self._answer, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_read, args=(run, tiles, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def done(self, *, within_seconds: float = 0.0) -> bool:
        return self._answer.poll(within_seconds)

    def result(self) -> Analysis:
        """Waits for it. Raises TraincopeError where the run cannot be read."""
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
        """Whether or not it has answered."""
        self._process.terminate()
        self._process.join()
        self._answer.close()


def _read(run: Path, tiles: Path, answer: Connection) -> None:
    os.nice(NICER)
    with suppress(BrokenPipeError, KeyboardInterrupt):  # Whoever asked has gone.
        try:
            answer.send(prepare(run, tiles))
        except TraincopeError as error:
            answer.send(error)
