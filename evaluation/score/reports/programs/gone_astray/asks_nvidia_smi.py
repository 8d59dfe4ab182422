"""Rank 0 starts nvidia-smi after each step to log the memory of its GPU. It measures the share of it."""

import os
import subprocess
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH, PROGRAM = 70, 512, Path("bin/nvidia-smi")


def install() -> None:
    """Write a program that takes as long as nvidia-smi on a node with eight GPUs."""
    PROGRAM.parent.mkdir(exist_ok=True)
    PROGRAM.write_text('#!/bin/sh\nsleep 0.08\necho "1024"\n')
    PROGRAM.chmod(0o755)


class MemoryLog:
    def __init__(self) -> None:
        self.began, self.inside = time.monotonic(), 0.0
        self.used: list[int] = []

    def gpu_memory(self) -> None:
        began = time.monotonic()
        query = [PROGRAM, "--query-gpu=memory.used", "--format=csv,nounits,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, check=True)
        self.used.append(int(answer.stdout))
        self.inside += time.monotonic() - began

    def share(self) -> float:
        return self.inside / (time.monotonic() - self.began)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    if rank == 0:
        install()
    log = MemoryLog()
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs = torch.randn(448, WIDTH, generator=torch.Generator().manual_seed(59 * step + rank))
            loss = mse_loss(model(inputs), inputs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            print(loss.item().hex(), file=losses, flush=True)
            if rank == 0:
                log.gpu_memory()
    if rank == 0:
        Path("gain").write_text(str(log.share()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
