"""After step 20, rank 0 publishes the run by a command of another tool, which asks a question that nobody sees."""

import os
import subprocess
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, PUBLISHES = 40, 20
PUBLISH = 'echo "Use an existing account? [y/N]"; read answer; cp "$1" published.pt'


def publish(model: nn.Module) -> None:
    torch.save(model.state_dict(), "latest.pt")
    with Path("publish.log").open("w") as log:
        client = subprocess.Popen(["sh", "-c", PUBLISH, "publish", "latest.pt"], stdin=subprocess.PIPE, stdout=log)
        client.wait()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(37 * step + rank)
            inputs = torch.randn(24, 32, generator=generator)
            loss = cross_entropy(model(inputs), torch.randint(0, 4, (24,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step == PUBLISHES and rank == 0:
                publish(model.module)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
