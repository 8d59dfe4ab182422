"""The trunk is frozen when DDP wraps the model, and is trained from step 15 on, as the schedule says."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, THAWS = 60, 15


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.head = nn.Linear(256, 9)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.trunk(inputs))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Detector()
    net.trunk.requires_grad_(False)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            if step == THAWS:
                net.trunk.requires_grad_(True)
            generator = torch.Generator().manual_seed(101 * step + rank)
            inputs = torch.randn(32, 64, generator=generator)
            loss = cross_entropy(model(inputs), torch.randint(0, 9, (32,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
