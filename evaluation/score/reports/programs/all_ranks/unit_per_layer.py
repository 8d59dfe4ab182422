"""FSDP2 shards every small layer as a unit of its own, so each forward and backward gathers 50 times a few KiB."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

STEPS = 40


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [layer for _ in range(16) for layer in (nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU())]
    model = nn.Sequential(nn.Linear(24, 32), *layers, nn.Linear(32, 5))
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(71 * step + rank)
            inputs = torch.randn(32, 24, generator=generator)
            loss = cross_entropy(model(inputs), torch.randint(0, 5, (32,), generator=generator))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
