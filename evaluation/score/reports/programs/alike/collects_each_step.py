"""All ranks collect garbage after every step, next to a large vocabulary. They measure the share of it."""

import gc
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, WORDS, WIDTH = 60, 10_000, 512


class Vocabulary:
    """Words with their pieces and how often each was seen."""

    def __init__(self) -> None:
        self.entries = {f"word{at}": [[at, at % 7], [f"##{at % 100}"]] for at in range(WORDS)}


class Clock:
    def __init__(self) -> None:
        self.began, self.inside = time.monotonic(), 0.0

    def collect(self) -> None:
        began = time.monotonic()
        gc.collect()
        self.inside += time.monotonic() - began

    def share(self) -> float:
        return self.inside / (time.monotonic() - self.began)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    vocabulary = Vocabulary()
    net = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, 2 * WIDTH), nn.ReLU())
    model = DistributedDataParallel(nn.Sequential(net, nn.Linear(2 * WIDTH, 50)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clock = Clock()
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(149 * step + rank)
            inputs = torch.randn(384, WIDTH, generator=generator)
            loss = cross_entropy(model(inputs), torch.randint(0, 50, (384,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            clock.collect()
            print(loss.item().hex(), file=losses, flush=True)
    if rank == 0:
        Path("gain").write_text(str(clock.share()))
    assert len(vocabulary.entries) == WORDS
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
