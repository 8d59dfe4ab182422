"""The loader worker of each rank keeps every sample that it decoded: its memory grows, that of the rank does not."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS, BATCH = 140, 8


class Frames(Dataset):
    """Samples of a file, with a cache that is never emptied: 160 KiB per sample."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.decoded: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index not in self.decoded:
            generator = torch.Generator().manual_seed(2 * index + self.rank)
            self.decoded[index] = torch.randn(40_960, generator=generator)
        return self.decoded[index][:48].clone(), index % 5


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(48, 160), nn.ReLU(), nn.Linear(160, 5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for inputs, targets in DataLoader(Frames(rank), batch_size=BATCH, num_workers=1):
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
