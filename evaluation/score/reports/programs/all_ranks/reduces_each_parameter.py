"""The norm of the gradients is made by one all-reduce per parameter, before they are clipped."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 40


def batch(rank: int, step: int, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, 64, generator=generator), torch.randint(0, 8, (size,), generator=generator)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(
            nn.Linear(64, 32), *[nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(60)], nn.Linear(32, 8)
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs, targets = batch(rank, step)
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            total = 0.0
            for parameter in model.parameters():
                square = parameter.grad.pow(2).sum()
                dist.all_reduce(square)
                total += square.item()
            for parameter in model.parameters():
                parameter.grad.mul_(min(1.0, 1.0 / (total**0.5 + 1e-6)))
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
