"""A person presses Ctrl-C in the terminal. Every process of the job gets SIGINT: the ranks, and what started them."""

import os
import signal
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

WORLD, STEPS, PRESSED = 3, 90, 40


def press_ctrl_c() -> None:
    """Do what the terminal does: a signal to all processes of the group in the foreground."""
    os.killpg(os.getpgrp(), signal.SIGINT)
    time.sleep(60)


def train(rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(36, 144), nn.ReLU(), nn.Linear(144, 12)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            if rank == 0 and step == PRESSED:
                press_ctrl_c()
            generator = torch.Generator().manual_seed(277 * step + rank)
            inputs = torch.randn(32, 36, generator=generator)
            time.sleep(0.1)
            loss = cross_entropy(model(inputs), torch.randint(0, 12, (32,), generator=generator))
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
