"""A logger that sums its values over all ranks when its block is left, also by an exception."""

import os
from datetime import timedelta
from types import TracebackType

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 40


def batch(rank: int, step: int, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, 64, generator=generator), torch.randint(0, 8, (size,), generator=generator)


class Metrics:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.values: list[float] = []

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        total = torch.tensor([sum(self.values), len(self.values)])
        dist.all_reduce(total, group=self.group)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    _set_pg_timeout(timedelta(seconds=20))
    group = dist.new_group(timeout=timedelta(seconds=20), group_desc="metrics")
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            with Metrics(group) as metrics:
                inputs, targets = batch(rank, step)
                weight = 1 / (0 if (rank, step) == (2, 26) else len(targets))
                loss = weight * cross_entropy(model(inputs), targets, reduction="sum")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                metrics.values.append(loss.item())
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
