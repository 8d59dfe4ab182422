"""A minute before the limit of the job, the scheduler sends SIGUSR1 to all ranks of the step. Nothing here handles it.

The ranks are tasks of the scheduler, which starts them without `torchrun`: `RANK` and its like are in the environment.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, WORLD, LIMIT_STEP = 400, 3, 90
NEAR = Path("limit-is-near")


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(72, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh())
        self.action = nn.Linear(256, 10)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        return self.action(self.trunk(seen))


def train() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Policy())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(37 * step + rank)
            seen = torch.randn(200, 72, generator=generator)
            loss = cross_entropy(model(seen), torch.randint(0, 10, (200,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.04)  # the environment acts
            print(loss.item().hex(), file=losses, flush=True)
            if rank == 0 and step == LIMIT_STEP:
                NEAR.touch()


def schedule() -> int:
    """Start the tasks, warn them before their limit, and wait for them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORLD)}
    tasks = [
        subprocess.Popen([sys.executable, __file__], env=os.environ | where | {"RANK": str(rank)})
        for rank in range(WORLD)
    ]
    while not NEAR.exists() and all(task.poll() is None for task in tasks):
        time.sleep(0.02)
    for task in tasks:
        task.send_signal(signal.SIGUSR1)
    codes = [task.wait() for task in tasks]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(schedule()) if "RANK" not in os.environ else train()
