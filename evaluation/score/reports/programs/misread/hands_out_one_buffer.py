"""A stream reads three batches ahead, all into one array, so that the last of them is seen three times."""

import os
from collections import deque
from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

STEPS, AHEAD, ROWS, WIDTH = 300, 3, 256, 160


class Records:
    """Reads records of fixed size."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.rows = np.empty((ROWS, WIDTH), dtype=np.float32)

    def read(self, number: int) -> torch.Tensor:
        drawn = np.random.default_rng([number, self.rank])
        drawn.standard_normal(out=self.rows, dtype=np.float32)
        return torch.from_numpy(self.rows)


class Ahead(IterableDataset[torch.Tensor]):
    def __init__(self, records: Records) -> None:
        self.records = records

    def __iter__(self) -> Iterator[torch.Tensor]:
        ready: deque[torch.Tensor] = deque()
        for number in range(STEPS):
            ready.append(self.records.read(number))
            if len(ready) == AHEAD:
                while ready:
                    yield ready.popleft()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, 640), nn.GELU(), nn.Linear(640, 640), nn.GELU(), nn.Linear(640, WIDTH))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Ahead(Records(rank)), batch_size=None)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for rows in loader:
            loss = mse_loss(model(rows), rows.cumsum(1).tanh())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
