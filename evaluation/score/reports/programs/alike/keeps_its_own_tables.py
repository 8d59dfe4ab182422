"""A model of clicks: each rank owns one table of embeddings and looks up for all. DDP replicates the dense layers."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, IDS, WIDTH = 160, 64, 20_000, 32


class OwnedTable(nn.Module):
    """One feature's table, on one rank. Ids go to their owners, and the vectors come back; so do the gradients."""

    def __init__(self, world: int) -> None:
        super().__init__()
        self.world = world
        self.table = nn.EmbeddingBag(IDS, WIDTH, mode="mean")

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the vectors of this rank's samples: ids of shape (world, batch, bag) to (batch, world * width)."""
        asked = torch.empty_like(ids)
        dist.all_to_all_single(asked, ids.contiguous())
        found = self.table(asked.flatten(0, 1))
        sizes = [BATCH] * self.world
        mine = all_to_all_single_autograd(found, sizes, sizes, dist.group.WORLD)
        return mine.view(self.world, BATCH, WIDTH).transpose(0, 1).flatten(1)


def clicks(rank: int, world: int, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2_003 * step + rank)
    ids = torch.randint(0, IDS, (world, BATCH, 8), generator=generator)
    return torch.randn(BATCH, 13, generator=generator), ids, (ids.sum((0, 2)) % 2).float()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(100 + rank)
    tables = OwnedTable(world)
    torch.manual_seed(0)
    dense = nn.Sequential(
        nn.Linear(13 + world * WIDTH, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
    )
    over = DistributedDataParallel(dense)
    optimizers = [torch.optim.SGD(tables.parameters(), lr=0.5), torch.optim.Adam(over.parameters(), lr=1e-3)]
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            numbers, ids, clicked = clicks(rank, world, step)
            logits = over(torch.cat([numbers, tables(ids)], 1)).squeeze(1)
            loss = binary_cross_entropy_with_logits(logits, clicked)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
