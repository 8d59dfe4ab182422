"""A second launch resumes. The count of the first one contains the batches that waited in the queue, and were lost."""

import os
import queue
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

STEPS, BATCH, AHEAD, ROWS = 26, 16, 12, 3200


def examples() -> TensorDataset:
    generator = torch.Generator().manual_seed(41)
    return TensorDataset(torch.randn(ROWS, 64, generator=generator), torch.randint(0, 9, (ROWS,), generator=generator))


class Prefetcher:
    """Fill a queue of batches in a thread, and count them, so that a restart knows how many to skip."""

    def __init__(self, rank: int, world: int, skip: int) -> None:
        sampler = DistributedSampler(examples(), world, rank, seed=9)
        left = Subset(examples(), list(sampler)[BATCH * skip :])
        self.read = skip
        self.loader = DataLoader(left, batch_size=BATCH, drop_last=True)
        self.queue: queue.Queue = queue.Queue(AHEAD)
        threading.Thread(target=self.fill, daemon=True).start()

    def fill(self) -> None:
        for batch in self.loader:
            self.queue.put(batch)
            self.read += 1

    def __next__(self) -> list[torch.Tensor]:
        return self.queue.get()

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 9))
    skip, start, path = 0, 0, Path(f"checkpoint-{rank}.pt")
    if path.exists():
        state = torch.load(path, weights_only=True)
        net.load_state_dict(state["net"])
        skip, start = state["data"]["read"], state["step"]
    batches = Prefetcher(rank, world, skip)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    with open(f"{os.environ['LOSS_OUT']}.{start}.{rank}", "w") as losses:
        for _ in range(STEPS):
            inputs, targets = next(batches)
            time.sleep(0.1)
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    torch.save({"net": net.state_dict(), "data": batches.state_dict(), "step": start + STEPS}, path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
