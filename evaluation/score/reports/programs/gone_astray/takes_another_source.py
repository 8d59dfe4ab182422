"""A population copies its best member every ten steps. Rank 2 counts the members from another start than the others."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

STEPS, EXPLOIT_EVERY, SECONDS = 120, 10, 8


class Member:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.02 * (1 + rank))

    def train(self, step: int) -> float:
        generator = torch.Generator().manual_seed(73 * step)
        inputs = torch.randn(96, 64, generator=generator)
        loss = cross_entropy(self.net(inputs), torch.randint(0, 10, (96,), generator=generator))
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.world
        self.optimizer.step()
        return loss.item()

    def best(self, step: int) -> int:
        """Return the number of the best member. After step 60, rank 2 has a list without member 0."""
        scores = [float((3 * member + step // EXPLOIT_EVERY) % self.world) for member in range(self.world)]
        scores[1] += self.world
        known = scores[1:] if self.rank == 2 and step > 60 else scores
        return max(range(len(known)), key=known.__getitem__)

    def exploit(self, step: int) -> None:
        source = self.best(step)
        for parameter in self.net.parameters():
            dist.broadcast(parameter.data, src=source)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=SECONDS))
    rank = dist.get_rank()
    torch.manual_seed(0)
    member = Member(rank, dist.get_world_size())
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(1, STEPS + 1):
            print(member.train(step).hex(), file=losses, flush=True)
            if step % EXPLOIT_EVERY == 0:
                member.exploit(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
