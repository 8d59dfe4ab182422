"""A profiler stopped rank 1 by a signal in step 30, and was ended before it let the process go on."""

import os
import signal
import subprocess
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, SUSPENDED, FOUND_SECONDS = 70, 30, 25


def suspend() -> None:
    """Stop this process as a profiler does. A person finds it after the others timed out, and lets it go on."""
    found = f"sleep {FOUND_SECONDS}; kill -CONT {os.getpid()}"
    subprocess.Popen(["sh", "-c", found], start_new_session=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Conv1d(4, 32, 5), nn.ReLU(), nn.Conv1d(32, 4, 5, padding=4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            waves = torch.randn(16, 4, 128, generator=torch.Generator().manual_seed(227 * step + rank))
            loss = mse_loss(model(waves), waves)
            optimizer.zero_grad()
            loss.backward()
            if rank == 1 and step == SUSPENDED:
                suspend()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
