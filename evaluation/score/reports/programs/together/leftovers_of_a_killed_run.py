"""An earlier run was killed. Its data processes belong to no one, and compute on all cores next to this run."""

import os
import socket
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

WORLD, STEPS, BATCH = 2, 45, 96


def leave_behind(processes: int) -> None:
    """Start processes whose parent ends at once. They end with this run, so that none is left in truth."""
    command = f"'{sys.executable}' '{__file__}' leftover {os.getpid()} &"
    for _ in range(processes):
        subprocess.run(["sh", "-c", command], start_new_session=True, check=True)


def augment(run: int) -> None:
    """Augment samples that no one will read, until the run with this process id ends."""
    while os.path.exists(f"/proc/{run}"):
        sum(value * value % 7 for value in range(200_000))


def train(rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 32, 3)
    model = DistributedDataParallel(
        nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(32 * 14 * 14, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(263 * step + rank)
            images = torch.randn(BATCH, 3, 16, 16, generator=generator)
            loss = cross_entropy(model(images), torch.randint(0, 10, (BATCH,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:2] == ["leftover"]:
        augment(int(sys.argv[2]))
    else:
        leave_behind(len(os.sched_getaffinity(0)) + 1)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            chosen = free.getsockname()[1]
        mp.spawn(train, (chosen,), nprocs=WORLD)
