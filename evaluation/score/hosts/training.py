"""DDP training with a fault on demand: `python -m evaluation.score.hosts.training OUT FAULT RANK DIRECTORY`.

Each step issues the all-reduce of DDP's only bucket, and two of the same size. All ranks see DIRECTORY. After the file
`go` appears there, RANK begins its fault, and writes the step of it into the file `step`:

    late    it sleeps before each forward
    sleep   it sleeps for ever before its forward
    skip    it leaves out one all-reduce of that step
    kill    it kills itself
    none    it does what the others do

After the file `stop` appears, all ranks end after the same step: rank 0's all-reduce passes it on.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import traincope

LATE_SECONDS = 0.1
SIZE = 256
STOP = 1e6


def main(out: Path, *, fault: str, culprit: int, directory: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Linear(SIZE, SIZE, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    is_faulty, step = False, 0
    with traincope.run(out, budget=None) as run:
        while True:
            begins = not is_faulty and rank == culprit and (directory / "go").exists()
            if begins:
                is_faulty = True
                (directory / "step").write_text(str(step))
                at_once(fault)
            if is_faulty and fault == "late":
                time.sleep(LATE_SECONDS)
            model(torch.ones(4, SIZE)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            stopping = rank == 0 and (directory / "stop").exists()
            summed = torch.full((SIZE, SIZE), STOP if stopping else 1.0)
            dist.all_reduce(summed)
            if not (begins and fault == "skip"):
                dist.all_reduce(torch.ones(SIZE, SIZE))
            time.sleep(0.02)
            run.step()
            step += 1
            if float(summed[0, 0]) >= STOP:
                break
    dist.destroy_process_group()


def at_once(fault: str) -> None:
    """The faults that stop the rank."""
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while fault == "sleep":
        time.sleep(1_000)


if __name__ == "__main__":
    main(Path(sys.argv[1]), fault=sys.argv[2], culprit=int(sys.argv[3]), directory=Path(sys.argv[4]))
