"""Answers are judged by concurrent requests, all of a step together. A proxy answers one of rank 3 by a page."""

import asyncio
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, ANSWERS = 60, 8


async def request(rank: int, step: int, answer: int) -> str:
    """What the judge sends back, after the time of its network."""
    await asyncio.sleep(0.002 * (1 + answer % 3))
    if rank == 3 and step == 26 and answer == 5:
        return "<html><title>502 Bad Gateway</title></html>"
    return json.dumps({"score": ((7 * answer + step + rank) % 10) / 10})


async def judge(rank: int, step: int, answer: int) -> float:
    return float(json.loads(await request(rank, step, answer))["score"])


async def rewards(rank: int, step: int) -> list[float]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(judge(rank, step, answer)) for answer in range(ANSWERS)]
    return [task.result() for task in tasks]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = DistributedDataParallel(nn.Sequential(nn.Linear(30, 120), nn.Tanh(), nn.Linear(120, 6)))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    try:
        with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
            for step in range(STEPS):
                generator = torch.Generator().manual_seed(73 * step + rank)
                prompts = torch.randn(ANSWERS, 30, generator=generator)
                actions = torch.randint(0, 6, (ANSWERS,), generator=generator)
                scores = torch.tensor(asyncio.run(rewards(rank, step)))
                chosen = torch.distributions.Categorical(logits=policy(prompts)).log_prob(actions)
                loss = -(chosen * (scores - scores.mean())).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(loss.item().hex(), file=losses, flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
