"""FSDP2. The shard of rank 2 lies on slow storage, and its loader has no workers."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

STEPS, BATCH = 60, 16


class Shard(IterableDataset):
    """Records of one file. Each read of the slow storage takes its time."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.rank)
        for _ in range(STEPS * BATCH):
            if self.rank == 2:
                time.sleep(0.005)
            yield torch.randn(48, generator=generator), torch.randint(0, 9, (), generator=generator)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 9))
    for layer in (model[0], model[2], model[4]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for inputs, targets in DataLoader(Shard(rank), batch_size=BATCH):
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
