"""The first steps of all ranks compile the model, for each of three sizes of images. The others are fast."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, SIZES = 90, (12, 16, 20)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.head = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.second(self.first(images).relu()).relu()
        return self.head(hidden.mean(dim=(2, 3)))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.compile(DistributedDataParallel(Images()), backend="aot_eager", dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            size = SIZES[step % len(SIZES)]
            generator = torch.Generator().manual_seed(109 * step + rank)
            images = torch.randn(12, 3, size, size, generator=generator)
            loss = cross_entropy(model(images), torch.randint(0, 10, (12,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
