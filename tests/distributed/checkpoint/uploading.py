"""Trainings that upload, on the ranks of a pool."""

import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import torch.distributed as dist

from tests.distributed.checkpoint.interrupted import CPU, start
from tests.distributed.checkpoint.saving import warnings_of
from traincope.engine.checkpoint.checkpoints import Checkpoints
from traincope.engine.checkpoint.places.bucket import Bucket
from traincope.engine.checkpoint.places.uploads import Upload
from traincope.engine.config import CheckpointConfig, Config
from traincope.engine.trainer import Trainer

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    trainer: Trainer
    saver: Checkpoints
    uploads: list[Upload]


_trainings: list[_Training] = []


def on_s3(environment: Mapping[str, str], do: Callable[..., Result], *arguments: object) -> Result:
    """Call `do` with the variables of an S3 server."""
    os.environ.update(environment)
    try:
        return do(*arguments)
    finally:
        for name in environment:
            del os.environ[name]


def in_own_folders(do: Callable[..., Result], config: Config, directory: Path, *arguments: object) -> Result:
    """Call `do` with another folder on each rank, as on hosts without a shared file system."""
    return do(config, directory / f"host-{dist.get_rank()}", *arguments)


def with_slow_commits(do: Callable[..., Result], *arguments: object) -> Result:
    """Call `do` with a bucket that completes each checkpoint a second late."""
    commit = Bucket.commit

    def late(*values: Any, **settings: Any) -> None:
        time.sleep(1)
        commit(*values, **settings)

    with patch.object(Bucket, "commit", late):
        return do(*arguments)


def train_and_upload(config: Config, directory: Path, steps: Collection[int]) -> dict[int, float | None]:
    """Train to the end. Save after these steps, and wait for each upload. Returns the loss of each step."""
    trainer = Trainer(config, device=CPU)
    saver = Checkpoints(trainer, config.checkpoint or CheckpointConfig(), directory=directory)
    saver.begin(resume=False)
    losses = {}
    for result in trainer.steps():
        losses[result.step] = result.loss
        if result.step in steps:
            saver.save()
            saver.finish()
    return losses


def begin_training(config: Config, directory: Path) -> None:
    """Begin a training for `train_and_save`."""
    uploads: list[Upload] = []
    trainer, saver = start(config, directory, report=uploads.append)
    saver.begin(resume=False)
    _trainings[:] = [_Training(trainer=trainer, saver=saver, uploads=uploads)]


def train_and_save() -> int:
    """Train, save after each step, and return the last step without waiting for uploads."""
    (training,) = _trainings
    for _ in training.trainer.steps():
        training.saver.save()
    return training.trainer.done


def finish() -> list[Upload]:
    """Wait for the uploads of `train_and_save`. Returns their ends."""
    (training,) = _trainings
    training.saver.finish()
    return training.uploads


def save_with_broken_bucket(config: Config, directory: Path, broken: Path) -> tuple[list[Upload], list[str]]:
    """Save after each step. A file is in the place of the bucket from the begin until step 3 is trained."""
    uploads: list[Upload] = []
    trainer, saver = start(config, directory, report=uploads.append)
    saver.begin(resume=False)
    broken.touch()
    dist.barrier()
    with warnings_of("traincope.engine.checkpoint") as lines:
        for result in trainer.steps():
            if result.step == 3:
                if dist.get_rank() == 0:
                    broken.unlink()
                dist.barrier()
            saver.save()
            saver.finish()
            dist.barrier()
    return uploads, lines
