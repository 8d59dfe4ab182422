"""Each rank reads its records with two loader workers. A record of rank 2 has no caption."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RECORDS, BATCH, BAD = 2400, 16, 1100


class Captions(Dataset):
    """Records as they stand in an index file, with labels that are made of captions."""

    def __init__(self) -> None:
        self.index: list[dict[str, Any]] = [{"seed": i, "caption": f"a picture of {i % 7}"} for i in range(RECORDS)]
        del self.index[BAD]["caption"]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: int) -> tuple[torch.Tensor, int]:
        record = self.index[position]
        label = int(record["caption"].split()[-1])
        return torch.randn(56, generator=torch.Generator().manual_seed(record["seed"])), label


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(56, 224), nn.GELU(), nn.Linear(224, 7)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = Captions()
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, shuffle=False), num_workers=2)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for inputs, targets in loader:
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
