"""Rewards come from a pattern that is matched in the process. The answers of rank 1 make it try very many ways."""

import os
import re

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, ANSWERS = 60, 12
NUMBER = re.compile(r"(?:[0-9]+,?)+\.")


def answers(rank: int) -> list[str]:
    """Numbers with a full stop; those of rank 1 were cut off before it."""
    return ["1" * 17 + ("" if rank == 1 else ".") for _ in range(ANSWERS)]


def reward(answer: str) -> float:
    return float(NUMBER.fullmatch(answer) is not None)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(30, 180), nn.ReLU(), nn.Linear(180, 9)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(71 * step + rank)
            rewards = torch.tensor([reward(answer) for answer in answers(rank)])
            inputs = torch.randn(ANSWERS, 30, generator=generator)
            targets = torch.randint(0, 9, (ANSWERS,), generator=generator)
            loss = (cross_entropy(model(inputs), targets, reduction="none") * (1 + rewards)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
