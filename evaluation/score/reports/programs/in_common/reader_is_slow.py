"""A web page starts the training and reads its output through a pipe, slowly. Ranks print much in each step."""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, WORLD, LINES = 60, 2, 60
BYTES, SECONDS = 4_096, 0.08


def show_norms(step: int, model: nn.Module) -> None:
    """Print a table of the norms of all rows."""
    rows = next(model.parameters()).detach()[:LINES].norm(dim=1).tolist()
    for at, norm in enumerate(rows):
        print(f"[{dist.get_rank()}] step {step:4} layer 0 row {at:4} norm {norm:.12f} {'*' * 20}", flush=True)


def train() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 20)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(139 * step + rank)
            inputs = torch.randn(64, 64, generator=generator)
            loss = cross_entropy(model(inputs), torch.randint(0, 20, (64,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            show_norms(step, model)
    dist.destroy_process_group()


def page() -> int:
    """Start the training and take its output as fast as a browser shows it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD}", __file__]
    training = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert training.stdout is not None
    while os.read(training.stdout.fileno(), BYTES):
        time.sleep(SECONDS)
    return training.wait()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        sys.exit(page())
