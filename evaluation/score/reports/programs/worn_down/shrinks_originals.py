"""Rank 1's folder holds pictures as the camera took them, which it makes small in each step; rank 0's are small."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, interpolate
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, SIDE = 60, 16, 32
SIDES = (48, 1400)


class Pictures:
    """Pictures of one folder, of any size, and their batches of one size."""

    def __init__(self, rank: int) -> None:
        generator = torch.Generator().manual_seed(rank)
        self.pictures = [torch.rand(3, SIDES[rank], SIDES[rank], generator=generator) for _ in range(6)]

    def picture(self, index: int) -> torch.Tensor:
        found = self.pictures[index % len(self.pictures)]
        small = interpolate(found[None], size=(SIDE, SIDE), mode="bicubic", antialias=True)[0]
        return small.flip(2) if index % 2 else small

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        indices = range(step * BATCH, (step + 1) * BATCH)
        pictures = torch.stack([self.picture(index) for index in indices])
        return (pictures - pictures.mean()) / pictures.std(), torch.tensor([index % 5 for index in indices])


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(5),
    )
    net(torch.zeros(1, 3, SIDE, SIDE))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    pictures = Pictures(rank)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs, labels = pictures.batch(step)
            loss = cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
