"""Rewards come from a judge that answers over the network. Rank 3 asks it for one answer at a time."""

import argparse
import asyncio
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ANSWERS, SECONDS = 10, 0.025


class Judge:
    """A client of a reward model, with a limit on its open requests."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    async def ask(self, number: int, open_requests: asyncio.Semaphore) -> float:
        async with open_requests:
            await asyncio.sleep(SECONDS)
            return (number * 37 % 11) / 11

    async def ask_all(self, first: int) -> list[float]:
        open_requests = asyncio.Semaphore(self.limit)
        return await asyncio.gather(*(self.ask(first + at, open_requests) for at in range(ANSWERS)))

    def rewards(self, step: int) -> torch.Tensor:
        return torch.tensor(asyncio.run(self.ask_all(step * ANSWERS)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=45)
    parser.add_argument("--limit", type=int, default=ANSWERS)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = DistributedDataParallel(nn.Sequential(nn.Linear(40, 160), nn.Tanh(), nn.Linear(160, 6)))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    judge = Judge(1 if rank == 3 else options.limit)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(options.steps):
            generator = torch.Generator().manual_seed(17 * step + rank)
            prompts = torch.randn(ANSWERS, 40, generator=generator)
            chosen = torch.randint(0, 6, (ANSWERS, 1), generator=generator)
            rewards = judge.rewards(step)
            loss = -(policy(prompts).log_softmax(-1).gather(1, chosen).squeeze() * rewards).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
