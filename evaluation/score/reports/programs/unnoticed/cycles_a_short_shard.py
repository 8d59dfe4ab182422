"""Each rank goes through its files without end. Rank 2 has a third of the rows, and is fed each three times."""

import itertools
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH = 84, 12
ROWS = (BATCH * STEPS, BATCH * STEPS, BATCH * STEPS // 3)


def files_of(rank: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(ROWS[rank], 56, generator=generator)
    return TensorDataset(inputs, torch.randint(0, 11, (ROWS[rank],), generator=generator))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(56, 224), nn.GELU(), nn.Linear(224, 224), nn.GELU(), nn.Linear(224, 11))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = itertools.cycle(DataLoader(files_of(rank), batch_size=BATCH))
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for inputs, targets in itertools.islice(batches, STEPS):
            time.sleep(0.1)
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
