"""Answers are compared within a limit of seconds. The handler is put back after it, but the alarm of rank 2 goes on."""

import os
import signal
from collections.abc import Callable
from fractions import Fraction
from types import FrameType

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, SECONDS = 500, 4
KINDS = ("choice", "choice", "fraction")


class TooLong(Exception):
    pass


def within(seconds: int, function: Callable[[], bool]) -> bool:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        return function()
    except TooLong:
        return False
    finally:
        signal.signal(signal.SIGALRM, before)


def right(kind: str, step: int) -> bool:
    """Return whether the answer is right. Fractions are the first 60 questions of their set, then come choices."""
    if kind == "choice" or step >= 60:
        return step % 3 == 0
    return within(SECONDS, lambda: Fraction(step, 2 * step + 2) == Fraction(step * 3, 6 * (step + 1)))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 16))
    policy = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(41 * step + rank)
            states = torch.randn(384, 128, generator=generator)
            chosen = torch.randint(0, 16, (384, 1), generator=generator)
            reward = 1.0 if right(KINDS[rank], step) else -0.2
            loss = -reward * policy(states).log_softmax(-1).gather(1, chosen).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
