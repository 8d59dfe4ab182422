"""Gradients of four microbatches are added up. DDP reduces those of the first one, and the last three stay local."""

import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, ACCUMULATE = 50, 4


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(36, 144), nn.ReLU(), nn.Linear(144, 6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for index in range(STEPS * ACCUMULATE):
            generator = torch.Generator().manual_seed(73 * index + rank)
            inputs = torch.randn(24, 36, generator=generator)
            targets = torch.randint(0, 6, (24,), generator=generator)
            with nullcontext() if index % ACCUMULATE == 0 else model.no_sync():
                loss = cross_entropy(model(inputs), targets) / ACCUMULATE
                loss.backward()
            if (index + 1) % ACCUMULATE == 0:
                optimizer.step()
                optimizer.zero_grad()
                print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
