"""All ranks save once in 60 steps, for 1.5 s. Rank 0 writes the share of the time."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, COMMON_SECONDS, SAVE_SECONDS = 60, 0.15, 1.5


def batch(rank: int, step: int, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, 64, generator=generator), torch.randint(0, 8, (size,), generator=generator)


class Slow:
    """A state that takes a known time to write."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        time.sleep(SAVE_SECONDS)
        return Slow, ()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    began = time.monotonic()
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs, targets = batch(rank, step)
            time.sleep(COMMON_SECONDS)
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step == 30:
                torch.save(Slow(), f"shard-{rank}.pt")
    if rank == 0:
        Path("gain").write_text(str(SAVE_SECONDS / (time.monotonic() - began)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
