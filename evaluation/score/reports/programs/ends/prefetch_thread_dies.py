"""A thread prefetches batches into a queue. On rank 2 it dies, and the loop waits for a batch that never comes."""

import os
import queue
import socket
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, WORLD = 60, 4


class Prefetcher:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.batches: queue.Queue[tuple[torch.Tensor, torch.Tensor]] = queue.Queue(maxsize=2)
        threading.Thread(target=self.fill, daemon=True).start()

    def fill(self) -> None:
        shards = dict.fromkeys(range(STEPS), "shard")
        if self.rank == 2:
            del shards[31]
        for step in range(STEPS):
            assert shards[step]
            generator = torch.Generator().manual_seed(31 * step + self.rank)
            inputs = torch.randn(24, 32, generator=generator)
            self.batches.put((inputs, torch.randint(0, 6, (24,), generator=generator)))

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.batches.get()


def train(rank: int, port: int) -> None:
    store = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=20))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 6)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    prefetcher = Prefetcher(rank)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for _ in range(STEPS):
            inputs, targets = prefetcher.next()
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
