"""Rank 1 has more to do in each step: 0.1 s, next to 0.15 s of all. It writes the share that would be saved."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, COMMON_SECONDS, EXTRA_SECONDS = 60, 0.15, 0.1


def batch(rank: int, step: int, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, 64, generator=generator), torch.randint(0, 8, (size,), generator=generator)


def more_tokens() -> None:
    time.sleep(EXTRA_SECONDS)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    began = time.monotonic()
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs, targets = batch(rank, step)
            time.sleep(COMMON_SECONDS)
            if rank == 1:
                more_tokens()
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    if rank == 1:
        Path("gain").write_text(str(STEPS * EXTRA_SECONDS / (time.monotonic() - began)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
