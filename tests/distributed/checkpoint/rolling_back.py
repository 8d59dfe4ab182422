"""Trainings with bad batches that roll back, and the undisturbed ones that they must equal, on the ranks of a pool."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.distributed.checkpoint.interrupted import Digests, digest, start
from traincope.engine.config import CheckpointConfig, Config, StabilityConfig
from traincope.engine.optimizer.bad_steps import BadStep
from traincope.engine.trainer import Trainer

ROLLS_BACK = StabilityConfig(not_finite="rollback")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """Observations of one rank."""

    digests: Digests
    """Step -> digest of its state, from the last time that it was trained."""
    rollbacks: list[tuple[int, int, int, int]]
    """Bad step, step of the checkpoint, batches that are passed over now, and rollbacks since the last save."""


def with_rollbacks(config: Config, *, asynchronous: bool = False) -> Config:
    return replace(config, stability=ROLLS_BACK, checkpoint=CheckpointConfig(keep=9, asynchronous=asynchronous))


MAX_ROLLBACKS = 4
"""A test that expects fewer ends after this many."""


def rolled_back(
    config: Config,
    directory: Path,
    bad: Collection[int],
    saved: Collection[int],
    damaged: int | None = None,
    resume: bool = False,
) -> RolledBack:
    """Train, with gradients that are NaN in the batches `bad` on the last rank, and save after the steps `saved`.

    `damaged`: step whose checkpoint loses its manifest at once.
    """
    trainer, saver = start(config, directory)
    _spoil(trainer, bad)
    saver.begin(resume=resume)
    digests, rollbacks = {}, []
    for result in trainer.steps():
        if result.rolls_back:
            saver.roll_back()
            rollbacks.append((result.step, trainer.done, trainer.passed_over, saver.rollbacks))
            if len(rollbacks) == MAX_ROLLBACKS:
                break
        elif result.step in saved:
            saver.save()
            dist.barrier()
            if result.step == damaged and dist.get_rank() == 0:
                (directory / f"step-{damaged:08d}" / "manifest.json").unlink()
            dist.barrier()
        digests[trainer.done] = digest(trainer)
    saver.finish()
    return RolledBack(digests=digests, rollbacks=rollbacks)


def moved_on(config: Config, directory: Path, passed_over: int | None) -> Digests:
    """Resume from the newest checkpoint, and pass over so many batches; None: as many as the checkpoint counts."""
    torch.manual_seed(dist.get_rank())
    trainer, saver = start(config, directory)
    saver.begin(resume=True)
    trainer.passed_over = trainer.passed_over if passed_over is None else passed_over
    return {trainer.done: digest(trainer)} | {result.step: digest(trainer) for result in trainer.steps()}


def _spoil(trainer: Trainer, bad: Collection[int]) -> None:
    """In fp16 such gradients are an overflow, which is another thing. There the judgement is replaced."""

    def is_bad() -> bool:
        return trainer.done + trainer.passed_over + 1 in bad

    def inject(gradient: Tensor) -> Tensor:
        return gradient * math.nan if is_bad() and dist.get_rank() == dist.get_world_size() - 1 else gradient

    def watch(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        output.register_hook(inject)

    if trainer.loss_scaler is not None:
        injected = BadStep(why="injected", rolls_back=True)
        trainer._judge = lambda _loss, _norm: injected if is_bad() else None  # type: ignore[method-assign]
        return
    for module in trainer.modules.values():
        for name, layer in module.named_modules():
            if name.endswith("attention.out"):
                layer.register_forward_hook(watch)
