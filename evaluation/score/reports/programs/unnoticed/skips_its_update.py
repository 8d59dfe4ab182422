"""A rank whose own loss jumps leaves out its update, although all ranks have reduced the gradients of that step."""

import os
import time
from collections import deque
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH = 90, 72
OUTLIERS = {22, 41, 63}


class SpikeGuard:
    """Tell whether a loss is far above those before it."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.seen: deque[float] = deque(maxlen=16)

    def is_spike(self, loss: float) -> bool:
        spike = len(self.seen) == self.seen.maxlen and loss > self.factor * median(self.seen)
        if not spike:
            self.seen.append(loss)
        return spike


def sample(rank: int, step: int) -> torch.Tensor:
    inputs = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(409 * step + rank))
    return 12 * inputs if rank == 1 and step in OUTLIERS else inputs


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, 216), nn.GELU(), nn.Linear(216, WIDTH))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    guard = SpikeGuard(factor=4.0)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs = sample(rank, step)
            time.sleep(0.09)
            loss = mse_loss(model(inputs), inputs.roll(1, 1))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            if not guard.is_spike(loss.item()):
                optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
