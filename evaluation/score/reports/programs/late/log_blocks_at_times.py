"""Rank 0 hands each step's numbers to the client of a dashboard. Its queue is full at times, and the call waits."""

import os
import queue
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, KEPT = 90, 8


class Board:
    """A client that uploads in the background, all that has come, again after a while."""

    def __init__(self) -> None:
        self.numbers: queue.Queue[dict[str, float]] = queue.Queue(maxsize=KEPT)
        threading.Thread(target=self.upload, daemon=True, name="upload").start()

    def upload(self) -> None:
        while True:
            time.sleep(0.6)
            while not self.numbers.empty():
                self.numbers.get()

    def log(self, **numbers: float) -> None:
        self.numbers.put(numbers)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(48, 192), nn.GELU(), nn.Linear(192, 6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    board = Board() if rank == 0 else None
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(67 * step + rank)
            inputs = torch.randn(32, 48, generator=generator)
            loss = cross_entropy(model(inputs), torch.randint(0, 6, (32,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if board is not None:
                board.log(step=step, loss=loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
