"""A loader worker of rank 2 asks the object store for a sample, and gets no answer until its loader times out."""

import os
import socket

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WORLD, BATCH, STEPS, TIMEOUT_SECONDS = 3, 8, 60, 8
LOST = 27 * BATCH * WORLD + 2
"""The first sample of the batch that rank 2 needs for step 27."""


def fetch(index: int) -> torch.Tensor:
    """Read a sample. The store takes the connection for the lost one, and never answers."""
    if index == LOST:
        with socket.create_server(("127.0.0.1", 0)) as store, socket.create_connection(store.getsockname()) as link:
            link.sendall(b"GET /samples/650\r\n")
            link.recv(1024)
    return torch.randn(50, generator=torch.Generator().manual_seed(index))


class Samples(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return STEPS * BATCH * WORLD

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return fetch(index), index % 9


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    sampler = DistributedSampler(Samples(), shuffle=False)
    loader = DataLoader(Samples(), BATCH, sampler=sampler, num_workers=1, timeout=TIMEOUT_SECONDS)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(50, 200), nn.ReLU(), nn.Linear(200, 9)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
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
