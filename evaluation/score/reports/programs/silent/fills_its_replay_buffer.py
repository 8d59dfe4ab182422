"""Each rank fills a replay buffer in the first third of the run. From then on an episode replaces the oldest one."""

import os
import random
import time
from collections import deque

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, CAPACITY, FRAMES, STATE, PLAY_SECONDS = 180, 60, 400, 512, 0.025


def episode(rank: int, step: int) -> torch.Tensor:
    """What the simulator gives: the same number of frames each time."""
    time.sleep(PLAY_SECONDS)
    return torch.randn(FRAMES, STATE, generator=torch.Generator().manual_seed(179 * step + rank))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    choices = random.Random(rank)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(STATE, 64), nn.ReLU(), nn.Linear(64, STATE)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    buffer: deque[torch.Tensor] = deque(maxlen=CAPACITY)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            buffer.append(episode(rank, step))
            chosen = buffer[choices.randrange(len(buffer))]
            first = choices.randrange(FRAMES - 65)
            states = chosen[first : first + 65]
            loss = mse_loss(model(states[:-1]), states[1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
