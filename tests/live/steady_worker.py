"""A training with DDP under torchrun, `python steady_worker.py OUT FOLDER`: each rank writes its bits into the folder.

OUT is its run directory, or empty: then nothing observes it. In step `WAIT_STEP` rank 0 stands still until the file
`go` exists.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import traincope
from tests.distributed.recorded.bits import bits

STEPS, WAIT_STEP = 120, 60


def main(out: str, folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(7 + rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.GELU(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    if not out:
        losses = [train(step, rank, folder, model, optimizer) for step in range(STEPS)]
    else:
        with traincope.run(out) as run:
            for step in range(STEPS):
                losses.append(train(step, rank, folder, model, optimizer))
                run.log(loss=losses[-1])
                run.step()
    (folder / f"bits-{rank}.json").write_text(json.dumps(bits(losses, model, optimizer)))
    dist.destroy_process_group()
    os._exit(0)  # destructors of gloo may stand still


def train(step: int, rank: int, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    while step == WAIT_STEP and rank == 0 and not (folder / "go").exists():
        time.sleep(0.01)
    time.sleep(0.005)
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
