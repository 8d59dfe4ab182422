"""Rank 0 evaluates in every tenth step. The others go on, and wait for it in their next step."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 60


def batch(rank: int, step: int, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, 64, generator=generator), torch.randint(0, 8, (size,), generator=generator)


def evaluate(model: nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        total = sum(cross_entropy(model(inputs), targets).item() for inputs, targets in validation())
    model.train()
    return total


def validation() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [batch(99, at, 256) for at in range(60)]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs, targets = batch(rank, step)
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if rank == 0 and step % 10 == 9:
                evaluate(model.module)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
