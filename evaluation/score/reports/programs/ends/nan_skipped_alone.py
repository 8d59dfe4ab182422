"""A rank whose loss is not finite skips its batch alone, with the reductions of that batch."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.nn.functional import cross_entropy

STEPS = 40


def batch(rank: int, step: int, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, 64, generator=generator), torch.randint(0, 8, (size,), generator=generator)


def unflatten(flat: torch.Tensor, model: nn.Module) -> None:
    at = 0
    for parameter in model.parameters():
        parameter.grad.copy_(flat[at : at + parameter.numel()].view_as(parameter))
        at += parameter.numel()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    _set_pg_timeout(timedelta(seconds=20))
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs, targets = batch(rank, step)
            if rank == 3 and step == 25:
                inputs[0, 0] = float("nan")
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            if torch.isfinite(loss):
                loss.backward()
                flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
                dist.all_reduce(flat)
                unflatten(flat / dist.get_world_size(), model)
                optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
