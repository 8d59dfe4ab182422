"""After every tenth step, rank 0 starts a program that copies its logs to a bucket, and waits until it is done."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY = 80, 10
COPY = """
import sys, time
for line in open(sys.argv[1]):
    time.sleep(0.012)
"""
"""A copy at the rate of a slow network."""


def sync(logs: Path) -> None:
    logs.write_text("\n".join(f"line {line}" for line in range(100)))
    subprocess.run([sys.executable, "-S", "-c", COPY, str(logs)], check=True)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(3136, 10)
    )


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    logs = Path(tempfile.mkdtemp(prefix="logs-")) / "train.log"
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(1, STEPS + 1):
            generator = torch.Generator().manual_seed(239 * step + rank)
            images = torch.randn(32, 1, 16, 16, generator=generator)
            loss = cross_entropy(model(images), torch.randint(0, 10, (32,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if rank == 0 and step % EVERY == 0:
                sync(logs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
