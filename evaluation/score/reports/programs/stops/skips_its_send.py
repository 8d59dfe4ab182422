"""Four ranks hand the edge of their domain around a ring. From step 24 on, rank 2 has no rows to give, and receives."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, ROWS, WIDTH = 50, 48, 32


def edge_rows(rank: int, step: int) -> int:
    """The mesh is cut anew in step 24, and the part of rank 2 has no edge any more."""
    return 0 if rank == 2 and step >= 24 else 8


def exchange_halo(domain: torch.Tensor, rank: int, world: int, step: int) -> torch.Tensor:
    halo = torch.empty(8, WIDTH)
    operations = [dist.P2POp(dist.irecv, halo, (rank - 1) % world)]
    if rows := edge_rows(rank, step):
        operations.append(dist.P2POp(dist.isend, domain[-rows:].contiguous(), (rank + 1) % world))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return torch.cat([halo, domain])


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 128), nn.Tanh(), nn.Linear(128, WIDTH)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            domain = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(71 * step + rank))
            field = exchange_halo(domain, rank, world, step)
            loss = mse_loss(model(field), field.roll(1, 0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
