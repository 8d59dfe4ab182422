"""The ranks of a host share a cache of files. Each takes the lock of the whole cache while it copies its next file."""

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

STEPS, ROWS, WIDTH, COPY_SECONDS = 100, 48, 40, 0.02


class FileCache:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder

    def get(self, name: str, seed: int) -> torch.Tensor:
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.copy(name, seed)
        return torch.load(self.folder / name, weights_only=True)

    def copy(self, name: str, seed: int) -> None:
        """Copy a file from the storage of the cluster, which answers after a while."""
        time.sleep(COPY_SECONDS)
        torch.save(torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed)), self.folder / name)


class Recordings(IterableDataset):
    def __init__(self, rank: int) -> None:
        self.rank, self.cache = rank, FileCache(Path("cache"))

    def __iter__(self) -> Iterator[torch.Tensor]:
        for step in range(STEPS):
            yield self.cache.get(f"recording-{self.rank}.pt", 127 * step + self.rank)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 160), nn.GELU(), nn.Linear(160, WIDTH)))
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for inputs in DataLoader(Recordings(rank), batch_size=None):
            loss = mse_loss(model(inputs), inputs.roll(1, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
