"""Rank 0 alone has a loader: it reads the batches of all four ranks, and scatters them in each step."""

import os
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

STEPS, BATCH, WIDTH, READ_SECONDS = 80, 16, 52, 0.0006


class Stream(IterableDataset):
    """Records of a stream. Each comes after a short time, and has its label at its end."""

    def __init__(self, records: int) -> None:
        self.records = records

    def __iter__(self) -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(163)
        for index in range(self.records):
            time.sleep(READ_SECONDS)
            yield torch.cat([torch.randn(WIDTH, generator=generator), torch.tensor([float(index % 5)])])


class Dispatcher:
    """Gives each rank its part of the batch that rank 0 reads."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.loader = DataLoader(Stream(STEPS * BATCH * world), batch_size=BATCH * world)

    def __iter__(self) -> Iterator[torch.Tensor]:
        batches = iter(self.loader) if self.rank == 0 else None
        for _ in range(STEPS):
            parts = list(next(batches).chunk(self.world)) if batches is not None else None
            mine = torch.empty(BATCH, WIDTH + 1)
            dist.scatter(mine, parts, src=0)
            yield mine


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 208), nn.Hardswish(), nn.Linear(208, 5)))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for records in Dispatcher(rank, dist.get_world_size()):
            loss = cross_entropy(model(records[:, :WIDTH]), records[:, WIDTH].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
