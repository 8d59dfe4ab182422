"""The worker of `traincope train`, which logs each step on rank 0 and is killed by SIGKILL on purpose.

$KILLED has a list of kills, one per attempt: {"rank": 1, "seconds": 0.3} after the begin of the first step, or
{"rank": 0, "saving": 6} in the middle of writing the checkpoint of step 6. $STEPS_LOG is the log.
With $MOVED_BATCHES, a continued attempt begins that many batches later than it should. $BAD_BATCHES has numbers of
batches, from 1, whose loss is NaN on rank 1.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import torch

from traincope.cli.launch import worker
from traincope.engine import trainer
from traincope.engine.checkpoint.writer import Writer
from traincope.engine.trainer import StepResult, Trainer

RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
KILLS = json.loads(os.environ["KILLED"])

MOVED = int(os.environ.get("MOVED_BATCHES", "0"))
BAD = json.loads(os.environ.get("BAD_BATCHES", "[]"))

training_batches = trainer.training_batches
train, write_data, loss_of = Trainer.steps, Writer.write_data, Trainer._loss


def moved_batches(*arguments: Any, done: int = 0, passed_over: int = 0, **settings: Any) -> Any:
    """As many batches as the engine asks for: of fewer, it would ask again for ever."""
    passed_over += MOVED if done else 0
    return training_batches(*arguments, done=done, passed_over=passed_over, **settings)


def steps(training: Trainer) -> Iterator[StepResult]:
    kill = _kill()
    if "seconds" in kill:
        subprocess.Popen(["sh", "-c", f"sleep {kill['seconds']}; kill -9 {os.getpid()}"])
    for result in train(training):
        if RANK == 0:
            line = {"attempt": ATTEMPT, "step": result.step, "loss": result.loss, "at_ns": time.time_ns()}
            with open(os.environ["STEPS_LOG"], "a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
        yield result


def write(writer: Writer, *arguments: Any) -> torch.futures.Future[list[Any]]:
    written = write_data(writer, *arguments)
    if str(writer.path).endswith(f"-{_kill().get('saving', -1):08d}"):
        os.kill(os.getpid(), signal.SIGKILL)
    return written


def loss(training: Trainer, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    is_bad = RANK == 1 and training.done + training.passed_over + 1 in BAD
    return loss_of(training, logits, targets) * (float("nan") if is_bad else 1.0)


def _kill() -> dict[str, Any]:
    """The kill of this rank in this attempt, or nothing."""
    kills: list[dict[str, Any]] = [kill for kill in KILLS[ATTEMPT : ATTEMPT + 1] if kill["rank"] == RANK]
    return kills[0] if kills else {}


if __name__ == "__main__":
    trainer.training_batches = moved_batches
    Trainer.steps = steps  # type: ignore[method-assign]
    Trainer._loss = loss  # type: ignore[method-assign]
    Writer.write_data = write  # type: ignore[method-assign]
    worker.main()
