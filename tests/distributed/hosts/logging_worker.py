"""The worker of `traincope train`, which logs what it does into $EVENTS: its host's truth about the training.

$HELD is a checkpoint's step whose commit host a holds, once, until the file $RELEASE exists.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traincope.cli.launch import worker
from traincope.engine.checkpoint.places import directory
from traincope.engine.trainer import StepResult, Trainer

HOST, RANK, RANKS = os.uname().nodename, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SECONDS = 0.1
"""Time that each step takes longer, so that a host is lost in the middle of the training."""

train, commit = Trainer.steps, directory.commit


def log(event: str, **values: object) -> None:
    line = {"event": event, "host": HOST, "rank": RANK, "ranks": RANKS, "pid": os.getpid(), "at_ns": time.time_ns()}
    with open(os.environ["EVENTS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line | values) + "\n")


def steps(training: Trainer) -> Iterator[StepResult]:
    """A step is over when the caller asks for the next one."""
    log("begin", done=training.done)
    try:
        for result in train(training):
            log("step", step=result.step, loss=result.loss)
            time.sleep(SECONDS)
            yield result
            log("done", step=result.step)
    except RuntimeError:
        log("lost")
        raise


def held_commit(new: Path, *arguments: Any, **settings: Any) -> None:
    step, release = int(new.name.partition("-")[2]), Path(os.environ["RELEASE"])
    if HOST == "a" and step == int(os.environ["HELD"]):
        log("held", step=step)
        while not release.exists():
            time.sleep(0.1)
    try:
        commit(new, *arguments, **settings)
    except OSError:
        log("refused", step=step)
        raise
    log("commit", step=step)


if __name__ == "__main__":
    Trainer.steps = steps  # type: ignore[method-assign]
    directory.commit = held_commit
    worker.main()
