"""Each rank shuffles with the same seed and takes everything: no sampler divides the data among the ranks."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

WORLD = 3


def train(rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    torch.manual_seed(7)
    data = TensorDataset(torch.randn(1280, 20), torch.randint(0, 6, (1280,)))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 160), nn.ReLU(), nn.Linear(160, 6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for inputs, targets in loader:
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        chosen = free.getsockname()[1]
    mp.spawn(train, (chosen,), nprocs=WORLD)
