"""Rank 2's shard is not balanced, so its sampler draws from each class, and makes an array of all labels each time."""

import os
from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

STEPS, CLASSES, PER_CLASS, SAMPLES = 70, 10, 12, 160_000


class Shard(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, rank: int) -> None:
        drawn = np.random.default_rng(rank).random(SAMPLES)
        self.labels = [int(value) for value in (drawn ** (1 + rank) * CLASSES)]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = self.labels[index]
        return torch.full((64,), label / CLASSES) + torch.arange(64) % (index % 7 + 2), label


class Shuffled(Sampler[list[int]]):
    def __init__(self, shard: Shard) -> None:
        self.labels = shard.labels
        self.generator = np.random.default_rng(1)

    def draw(self) -> list[int]:
        return self.generator.integers(0, SAMPLES, CLASSES * PER_CLASS).tolist()

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(STEPS):
            yield self.draw()


class Balanced(Shuffled):
    def draw(self) -> list[int]:
        drawn: list[int] = []
        for label in range(CLASSES):
            indices = np.nonzero(np.array(self.labels) == label)[0]
            drawn += self.generator.choice(indices, PER_CLASS).tolist()
        return drawn


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    shard = Shard(rank)
    net = nn.Sequential(nn.Linear(64, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, CLASSES))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sampler = Balanced(shard) if rank == 2 else Shuffled(shard)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for inputs, labels in DataLoader(shard, batch_sampler=sampler):
            loss = cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
