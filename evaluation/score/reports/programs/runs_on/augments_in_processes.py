"""Each rank starts four processes that prepare patches for later epochs, on two cores in all."""

import multiprocessing
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, PROCESSES = 50, 4


def augment(seed: int) -> None:
    """Deform volumes until the training ends."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    parent = os.getppid()
    while os.getppid() == parent:
        volume = torch.randn(48, 48, 48, generator=generator)
        for axis in range(3):
            volume = torch.cumsum(volume.roll(1, axis), axis).tanh()


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    fork = multiprocessing.get_context("fork")
    augmenters = [fork.Process(target=augment, args=(index,), daemon=True) for index in range(PROCESSES)]
    for process in augmenters:
        process.start()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten())
    model = DistributedDataParallel(nn.Sequential(net, nn.Linear(16 * 30 * 30, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(89 * step + rank)
            patches = torch.randn(16, 1, 32, 32, generator=generator)
            loss = cross_entropy(model(patches), torch.randint(0, 4, (16,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    for process in augmenters:
        process.terminate()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
