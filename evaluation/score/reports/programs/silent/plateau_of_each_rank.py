"""Each rank lowers its learning rate when its own loss no longer falls. The labels of rank 1 are noise."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau

EPOCHS, STEPS = 20, 10


def batch(rank: int, epoch: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * epoch + 10 * step + rank)
    inputs = torch.randn(64, 20, generator=generator)
    if rank == 1:
        return inputs, torch.randint(0, 4, (64,), generator=generator)
    return inputs, inputs[:, :4].argmax(1)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 160), nn.ReLU(), nn.Linear(160, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = ReduceLROnPlateau(optimizer, factor=0.3, patience=1)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for epoch in range(EPOCHS):
            total = 0.0
            for step in range(STEPS):
                inputs, targets = batch(rank, epoch, step)
                loss = cross_entropy(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
                print(loss.item().hex(), file=losses, flush=True)
            schedule.step(total / STEPS)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
