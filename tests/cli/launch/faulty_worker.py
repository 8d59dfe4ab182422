"""A worker for torchrun that trains nothing and meets with faults: `OUT` is the run directory.

In the first attempt rank 1 raises in the fourth step; in the second, rank 0 logs a NaN in the second
step, and rank 1 is killed in the fifth.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import traincope
from traincope.cli.launch.worker_exit import exit_on_error
from traincope.engine.ranks.bootstrap import WorkerEnvironment, join

STEP_SECONDS = 0.02


def main(out: str) -> None:
    exit_on_error()
    environment = WorkerEnvironment.read()
    join(environment)
    rank, attempt = environment.rank, environment.attempt
    with traincope.run(out) as run:
        for step in range(100):
            run.step()
            run.log(loss=float("nan") if (attempt, rank, step) == (1, 0, 1) else 2.5)
            if (attempt, rank, step) == (0, 1, 3):
                raise ValueError("a fault on purpose")
            if (attempt, rank, step) == (1, 1, 4):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(STEP_SECONDS)
            dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    main(sys.argv[1])
