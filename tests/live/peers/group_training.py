"""Training whose ranks share a group of all hosts: `python -m tests.live.peers.group_training OUT FAULT STEP [BUDGET]`.

Each step issues the all-reduce of DDP's only bucket, and two of the same size. From STEP on, the last rank is at fault:

    skip    it leaves out one all-reduce of that step, and is one behind from then on; nothing hangs
    sleep   it sleeps for ever before its forward
    late    it sleeps 30 ms before each forward
    none    it does what the others do

Without BUDGET all steps are recorded in detail.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import traincope

CULPRIT = 3
"""The last rank of four."""
LATE_SECONDS = 0.03
SIZE = 8


def main(out: Path, *, fault: str, at: int, budget: float | None) -> None:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(SIZE, SIZE, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with traincope.run(out, budget=budget) as run:
        for step in range(int(os.environ["STEPS"])):
            is_culprit = dist.get_rank() == dist.get_world_size() - 1
            is_faulty = step == at and is_culprit
            if is_faulty and fault == "sleep":
                sleep_for_ever()
            if is_culprit and step >= at and fault == "late":
                time.sleep(LATE_SECONDS)
            model(torch.ones(4, SIZE)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            for _ in range(1 if is_faulty and fault == "skip" else 2):
                dist.all_reduce(torch.ones(SIZE, SIZE))
            time.sleep(0.02)
            run.step()


def sleep_for_ever() -> None:
    while True:
        time.sleep(1_000)


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        fault=sys.argv[2],
        at=int(sys.argv[3]),
        budget=float(sys.argv[4]) if len(sys.argv) > 4 else None,
    )
