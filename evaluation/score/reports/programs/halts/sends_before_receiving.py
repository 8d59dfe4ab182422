"""Pairs of ranks exchange features, by blocking operations after a warm-up. Ranks 2 and 3 then both send first."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

STEPS, ROWS, WIDTH, WARM_UP = 50, 256, 96, 22
SEND_FIRST = (0, 2, 3)


def exchange(features: torch.Tensor, rank: int, step: int) -> torch.Tensor:
    peer, found = rank ^ 1, torch.empty_like(features)
    if step < WARM_UP:
        for work in (dist.isend(features, peer), dist.irecv(found, peer)):
            work.wait()
    elif rank in SEND_FIRST:
        dist.send(features, peer)
        dist.recv(found, peer)
    else:
        dist.recv(found, peer)
        dist.send(features, peer)
    return found


def reduce_gradients(model: nn.Module) -> None:
    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    start = 0
    for parameter in model.parameters():
        parameter.grad.copy_(flat[start : start + parameter.numel()].view_as(parameter))
        start += parameter.numel()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            views = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(29 * step + rank))
            features = model(views)
            others = exchange(features.detach(), rank, step)
            loss = mse_loss(features, views.tanh()) + 0.1 * mse_loss(features.mean(0), others.mean(0))
            optimizer.zero_grad()
            loss.backward()
            reduce_gradients(model)
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
