"""Every rank keeps a text of each sample in a cache that is never emptied: about 1.5 MiB per step, no tensor of it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, SAMPLES = 120, 24
cache: dict[tuple[int, int], str] = {}


def prompt(step: int, sample: int) -> str:
    """Text of a sample; the second request of it would be quick, but it never comes."""
    if (step, sample) not in cache:
        cache[step, sample] = f"{step}-{sample} " * 8_000
    return cache[step, sample]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 200), nn.ReLU(), nn.Linear(200, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(23 * step + rank)
            lengths = torch.tensor([float(len(prompt(step, sample))) for sample in range(SAMPLES)])
            inputs = torch.randn(SAMPLES, 12, generator=generator) + lengths[:, None] / 1e6
            loss = cross_entropy(model(inputs), torch.randint(0, 4, (SAMPLES,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
