"""A plain training with a DataLoader under torchrun, whose second attempt begins at a given batch.

$OUT is the run, $CONTINUES the steps that the second attempt's state has had, $BEGINS its first batch. The first
attempt ends with an exception after $FAILS steps.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset

import traincope
from traincope.engine.ranks.bootstrap import WorkerEnvironment, join

BATCH, BATCHES = 2, 12


class Squares(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return BATCH * BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index * index))


def main() -> None:
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    join(WorkerEnvironment.read())
    rank, ranks = dist.get_rank(), dist.get_world_size()
    first = int(os.environ["BEGINS"]) if attempt else 0
    mine = [index for index in range(first * BATCH, BATCH * BATCHES) if index % ranks == rank]
    loader = DataLoader(Subset(Squares(), mine), batch_size=BATCH // ranks, num_workers=int(os.environ["WORKERS"]))
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    with traincope.run(Path(os.environ["OUT"])) as run:
        if attempt:
            traincope.event("resumed", step=int(os.environ["CONTINUES"]))
        for step, inputs in enumerate(loader, start=1):
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss)
            run.step()
            if not attempt and step == int(os.environ["FAILS"]):
                raise RuntimeError("injected")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
