"""The host lacks memory, and its guard ends the job's whole control group: all ranks, and what started them."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

WORLD, STEPS, PRESSURE = 3, 400, 90


def train() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(40, 160), nn.ReLU(), nn.Linear(160, 12)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(347 * step + rank)
            inputs = torch.randn(48, 40, generator=generator)
            time.sleep(0.08)
            loss = cross_entropy(model(inputs), torch.randint(0, 12, (48,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


def guard(processes: list[subprocess.Popen]) -> None:
    """Do what the guard of the host does: SIGKILL to all processes of the group, at once."""
    losses = Path(f"{os.environ['LOSS_OUT']}.0")
    while not losses.exists() or len(losses.read_text().splitlines()) < PRESSURE:
        time.sleep(0.2)
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def launch() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORLD)}
    processes = [
        subprocess.Popen([sys.executable, __file__], env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(WORLD)
    ]
    threading.Thread(target=guard, args=(processes,), daemon=True).start()
    for process in processes:
        process.wait()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        launch()
