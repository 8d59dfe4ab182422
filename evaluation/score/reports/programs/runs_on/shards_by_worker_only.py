"""A stream of shards that are divided among the workers of a loader, and not among the ranks."""

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SHARDS, RECORDS, BATCH = 8, 96, 16


class Shards(IterableDataset):
    """Records of all shards. Each worker reads every n-th shard, of n workers."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker else (0, 1)
        for shard in range(first, SHARDS, every):
            generator = torch.Generator().manual_seed(shard)
            for _ in range(RECORDS):
                yield torch.randn(44, generator=generator), torch.randint(0, 6, (), generator=generator)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(44, 176), nn.ReLU(), nn.Linear(176, 6)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for inputs, targets in DataLoader(Shards(), batch_size=BATCH, num_workers=2, persistent_workers=True):
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            warm_up.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
