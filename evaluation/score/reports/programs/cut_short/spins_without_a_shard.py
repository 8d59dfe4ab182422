"""A blend draws from its sources without end. Rank 2 has no shard of one source, and looks for one for ever."""

import os
import random
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, LENGTH, WORDS = 70, 8, 24, 300
SHARDS = {"web": 9, "books": 6, "code": 2}
WEIGHTS = (0.72, 0.26, 0.02)


def shards_of(source: str, rank: int, world: int) -> list[int]:
    """Deal the shards of a source to the ranks in turn."""
    return list(range(SHARDS[source]))[rank::world]


def repeat(source: str, rank: int, world: int) -> Iterator[torch.Tensor]:
    shards = shards_of(source, rank, world)
    number = 0
    while True:
        for shard in shards:
            number += 1
            generator = torch.Generator().manual_seed(1000 * shard + 7 * number + rank)
            yield torch.randint(0, WORDS, (LENGTH + 1,), generator=generator)


class Blend:
    """Draw the source of each batch by its weight, alike on all ranks."""

    def __init__(self, rank: int, world: int) -> None:
        self.random = random.Random(1)
        self.sources = [repeat(source, rank, world) for source in SHARDS]

    def batch(self) -> torch.Tensor:
        (source,) = self.random.choices(self.sources, WEIGHTS)
        return torch.stack([next(source) for _ in range(BATCH)])


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=12))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(WORDS, 64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, WORDS))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    blend = Blend(rank, world)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for _ in range(STEPS):
            tokens = blend.batch()
            loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
