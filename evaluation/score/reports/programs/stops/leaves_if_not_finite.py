"""A loop that leaves by `sys.exit` when its loss is not finite. The one of rank 0 is so in step 28."""

import math
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 60


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images in units of their own deviation. An image of one colour has none."""
    generator = torch.Generator().manual_seed(61 * step + rank)
    images = torch.randn(24, 3, 12, 12, generator=generator)
    if rank == 0 and step == 28:
        images[5] = 0.5
    deviation = images.std(dim=(1, 2, 3), keepdim=True)
    return (images - images.mean(dim=(1, 2, 3), keepdim=True)) / deviation, torch.arange(24) % 5


def train_one_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            images, targets = batch(rank, step)
            with torch.autocast("cpu", torch.bfloat16):
                loss = cross_entropy(model(images), targets)
            value = loss.item()
            if not math.isfinite(value):
                sys.exit(1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(value.hex(), file=losses, flush=True)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1200, 5))
    model = DistributedDataParallel(net)
    train_one_epoch(model, torch.optim.AdamW(model.parameters(), lr=1e-3), dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
