"""Trainings that save, begin, and meet a full disk, on the ranks of a pool."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from tests.distributed.checkpoint.interrupted import digest, start
from traincope.engine.checkpoint.cadence import Interval
from traincope.engine.config import Config
from traincope.errors import TraincopeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A trainer at the begin of a training."""

    step: int
    digest: str
    error: tuple[str, str] | None
    """Type and message."""
    warnings: list[str]


def save_steps(config: Config, directory: Path, *steps: int) -> dict[int, str]:
    """Train, and save after these steps. Returns the digest after each."""
    trainer, saver = start(config, directory)
    saver.begin(resume=False)
    digests = {}
    for result in trainer.steps():
        if result.step in steps:
            saver.save()
            saver.finish()
            digests[result.step] = digest(trainer)
    return digests


def save_if_due(config: Config, directory: Path) -> list[tuple[int, Interval]]:
    """Train, and return each step that was saved with the interval that was chosen after it."""
    trainer, saver = start(config, directory)
    saver.begin(resume=False)
    chosen: list[tuple[int, Interval]] = []
    for result in trainer.steps():
        saver.save_if_due()
        if saver.interval is not None and (not chosen or saver.interval is not chosen[-1][1]):
            chosen.append((result.step, saver.interval))
    saver.finish()
    return chosen


def begin(config: Config, directory: Path, resume: bool = True, in_launch: bool = False) -> Begun:
    """Begin a training in a folder of checkpoints. `in_launch`: this test's parent has started it."""
    trainer, saver = start(config, directory, in_launch=in_launch)
    error = None
    with warnings_of("traincope.engine.checkpoint") as lines:
        try:
            saver.begin(resume=resume)
        except TraincopeError as raised:
            error = type(raised).__name__, str(raised)
    return Begun(step=trainer.done, digest=digest(trainer), error=error, warnings=lines)


@contextmanager
def warnings_of(name: str) -> Iterator[list[str]]:
    """Messages of a logger and those below it."""
    lines: list[str] = []
    handler, logger = _Lines(lines), logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def save_on_full_disk(config: Config, disk: Path, asynchronous: bool) -> tuple[str, list[str], list[str]]:
    """Save, fill the disk, save again, free it, and save again: the error, and the entries after it and at the end."""
    trainer, saver = start(config, disk / "checkpoints")
    saver.begin(resume=False)
    steps = trainer.steps()
    next(steps)
    saver.save()
    saver.finish()
    next(steps)
    filler = disk / "file of another user"
    if dist.get_rank() == 0:
        _fill(filler)
    dist.barrier()
    message = ""
    try:
        saver.save()
        assert not asynchronous or saver.finish() is None
    except TraincopeError as raised:
        message = str(raised)
    dist.barrier()
    left = _entries(saver.directory)
    dist.barrier()
    if dist.get_rank() == 0:
        filler.unlink()
    dist.barrier()
    saver.save()
    saver.finish()
    return message, left, _entries(saver.directory)


def _entries(directory: Path) -> list[str]:
    """Names in the folder, and in that of the claim."""
    claims = [path.name for path in directory.glob("claim-*/*-*")]
    return sorted([*claims, *(path.name for path in directory.iterdir() if not path.name.startswith("claim-"))])


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            pass


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())
