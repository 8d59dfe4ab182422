"""A cap for DDP's buckets that was meant in MiB of another model: almost every parameter has a bucket of its own."""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Config:
    steps: int = 150
    depth: int = 40
    width: int = 48
    classes: int = 25
    batch: int = 16
    bucket_cap_mb: float = 0.004


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.inner(hidden)


def build(config: Config) -> DistributedDataParallel:
    torch.manual_seed(0)
    body = [Residual(config.width) for _ in range(config.depth)]
    net = nn.Sequential(nn.Linear(32, config.width), *body, nn.Linear(config.width, config.classes))
    return DistributedDataParallel(net, bucket_cap_mb=config.bucket_cap_mb)


def main(config: Config) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = build(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(config.steps):
            generator = torch.Generator().manual_seed(907 * step + rank)
            inputs = torch.randn(config.batch, 32, generator=generator)
            labels = torch.randint(0, config.classes, (config.batch,), generator=generator)
            loss = cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Config())
