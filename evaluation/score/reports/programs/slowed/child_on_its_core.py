"""Each rank is bound to a core of its own. Rank 0 starts a process that scores weights, which is bound as it is."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 200


def network() -> nn.Sequential:
    first, second = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 24, 3)
    return nn.Sequential(first, nn.ReLU(), second, nn.Flatten(), nn.Linear(4704, 10))


@torch.no_grad()
def score() -> None:
    """Score the newest weights on held-out images, again and again until the parent ends."""
    torch.set_num_threads(1)
    net, parent = network().eval(), os.getppid()
    while os.getppid() == parent:
        net(torch.randn(64, 3, 16, 16)).argmax(1)


def bind(rank: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


def main() -> None:
    bind(int(os.environ["RANK"]))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    scorer = subprocess.Popen([sys.executable, __file__, "score"]) if rank == 0 else None
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(157 * step + rank)
            images = torch.randn(64, 3, 16, 16, generator=generator)
            loss = cross_entropy(model(images), torch.randint(0, 10, (64,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    if scorer is not None:
        scorer.terminate()
        scorer.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:] == ["score"]:
        score()
    else:
        main()
