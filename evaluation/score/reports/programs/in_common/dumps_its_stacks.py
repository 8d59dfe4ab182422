"""An operator asks all ranks for their stacks, three times, by a signal that they handle. Nothing stops."""

import faulthandler
import os
import signal
import subprocess
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, ASKED = 120, (30, 60, 90)


def listen(rank: int) -> None:
    """Write the stacks of all threads into a file at each SIGUSR1."""
    stacks = os.open(f"stacks-{rank}.txt", os.O_CREAT | os.O_WRONLY)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)


def ask_for_stacks() -> None:
    """Do what an operator does in a shell on the node."""
    processes = [None] * dist.get_world_size()
    dist.all_gather_object(processes, os.getpid())
    if dist.get_rank() == 0:
        subprocess.run(["sh", "-c", "kill -USR1 " + " ".join(map(str, processes))], check=True)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    listen(rank)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(72, 288), nn.SiLU(), nn.Linear(288, 288), nn.SiLU(), nn.Linear(288, 18))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(307 * step + rank)
            inputs = torch.randn(128, 72, generator=generator)
            loss = cross_entropy(model(inputs), torch.randint(0, 18, (128,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step in ASKED:
                ask_for_stacks()
            time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
