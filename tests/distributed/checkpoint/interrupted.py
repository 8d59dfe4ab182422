"""Trainings that are interrupted, on the ranks of a pool: the bytes of each rank's state, step by step."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from traincope.engine.checkpoint import checkpoints
from traincope.engine.checkpoint.checkpoints import Checkpoints
from traincope.engine.checkpoint.places.claim import Claimant
from traincope.engine.checkpoint.places.uploads import Upload
from traincope.engine.checkpoint.tensors import tensors_of
from traincope.engine.config import CheckpointConfig, Config
from traincope.engine.ranks.local import local_part
from traincope.engine.trainer import Trainer
from traincope.store.job.process import Process

CPU = torch.device("cpu")
SAVED, STEPS = 3, 5

Digests = Mapping[int, str]
"""Step -> digest of the bytes of all parameters and of the optimizer's state on one rank, after the step."""


def uninterrupted(config: Config, directory: Path) -> Digests:
    """Train all steps, and save after step SAVED."""
    trainer, saver = start(config, directory)
    saver.begin(resume=False)
    digests = {}
    for result in trainer.steps():
        digests[result.step] = digest(trainer)
        if result.step == SAVED:
            saver.save()
    saver.finish()
    return digests


def resumed(config: Config, directory: Path) -> Digests:
    """Train the steps after the newest checkpoint, from other generators than those of the training before."""
    torch.manual_seed(dist.get_rank())
    trainer, saver = start(config, directory)
    saver.begin(resume=True)
    return {trainer.done: digest(trainer)} | {result.step: digest(trainer) for result in trainer.steps()}


def resumed_in_first_buckets(config: Config, directory: Path) -> Digests:
    """Resume without the order of DDP's buckets."""
    with patch.object(Trainer, "settle_buckets"):
        return resumed(config, directory)


def resumed_with_new_generators(config: Config, directory: Path) -> Digests:
    """Resume with generators that are seeded anew."""

    def seed(_trainer: Trainer, _saved: bytes) -> None:
        torch.manual_seed(dist.get_rank())

    with patch.object(checkpoints, "set_rank_state", seed):
        return resumed(config, directory)


def start(
    config: Config, directory: Path, *, in_launch: bool = False, report: Callable[[Upload], None] = lambda _: None
) -> tuple[Trainer, Checkpoints]:
    """`in_launch`: all pools of this test are attempts of one launch, so one may take the folder from another."""
    settings = config.checkpoint or CheckpointConfig()
    trainer = Trainer(replace(config, train=replace(config.train, steps=STEPS)), device=CPU)
    claimant = Claimant.read(directory, agent=Process.of(os.getppid())) if in_launch else None
    return trainer, Checkpoints(trainer, settings, directory=directory, claimant=claimant, report=report)


def digest(trainer: Trainer) -> str:
    total = hashlib.sha256()
    for name, tensor in sorted(tensors_of(trainer).items()):
        total.update(name.encode())
        total.update(local_part(tensor).contiguous().numpy().tobytes())
    return total.hexdigest()
