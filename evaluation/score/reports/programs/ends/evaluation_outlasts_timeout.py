"""Rank 0 evaluates alone, for longer than the time-out of the others' next all-reduce."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 40


def batch(rank: int, step: int, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, 64, generator=generator), torch.randint(0, 8, (size,), generator=generator)


def evaluate(model: nn.Module) -> float:
    """All batches of a large validation set; here they only take their time."""
    until, total = time.monotonic() + 35, 0.0
    with torch.no_grad():
        while time.monotonic() < until:
            inputs, targets = batch(0, 0)
            total += cross_entropy(model(inputs), targets).item()
            time.sleep(0.02)
    return total


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    _set_pg_timeout(timedelta(seconds=15))
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs, targets = batch(rank, step)
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if rank == 0 and step == 30:
                evaluate(model.module)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
