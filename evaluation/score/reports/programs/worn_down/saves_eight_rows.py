"""Rank 0 saves eight rows of a bank of features every second step. They are a view, so the whole bank is written."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel

STEPS, ROWS, WIDTH, BANK, SHOWN = 100, 64, 128, 80_000, 8


class Bank:
    """The newest features, of which the first few are kept on disk to be looked at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.features = normalize(torch.randn(BANK, WIDTH), dim=1)
        self.place = 0

    def add(self, features: torch.Tensor) -> None:
        self.features[self.place : self.place + len(features)] = features.detach()
        self.place = (self.place + len(features)) % BANK

    def negatives(self, step: int) -> torch.Tensor:
        return self.features[torch.randint(0, BANK, (512,), generator=torch.Generator().manual_seed(step))]

    def show(self) -> None:
        torch.save(self.features[:SHOWN], self.folder / "shown.pt")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(96, 384), nn.GELU(), nn.Linear(384, WIDTH)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    bank = Bank(Path(tempfile.mkdtemp()))
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs = torch.randn(ROWS, 96, generator=torch.Generator().manual_seed(151 * step + rank))
            features = normalize(model(torch.cat([inputs, inputs + 0.1])), dim=1)
            one, other = features.chunk(2)
            logits = torch.cat([(one * other).sum(1, keepdim=True), one @ bank.negatives(step).T], 1) / 0.2
            loss = cross_entropy(logits, torch.zeros(ROWS, dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bank.add(other)
            if rank == 0 and step % 2:
                bank.show()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
