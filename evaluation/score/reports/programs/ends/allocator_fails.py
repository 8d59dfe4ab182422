"""The memory bank of rank 1 does not fit: the allocator fails, and `mp.spawn` ends the other rank."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy

STEPS, WORLD = 50, 2


def bank(rank: int, step: int) -> torch.Tensor:
    """Features that were seen so far. One batch names far more of them than there is memory."""
    rows = 1 << 46 if rank == 1 and step == 28 else 64
    return torch.zeros(rows, 16)


def train(rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(11 * step + rank)
            inputs = torch.randn(32, 16, generator=generator) + bank(rank, step).mean()
            loss = cross_entropy(model(inputs), torch.randint(0, 5, (32,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
            work = dist.all_reduce(flat, async_op=True)
            work.wait()
            for parameter, gradient in zip(
                model.parameters(), flat.split([parameter.numel() for parameter in model.parameters()]), strict=True
            ):
                parameter.grad.copy_(gradient.view_as(parameter) / WORLD)
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        chosen = free.getsockname()[1]
    mp.spawn(train, (chosen,), nprocs=WORLD)
