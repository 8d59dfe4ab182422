"""Each rank trains an agent of its own, by plan. At times the worst agent takes the weights of the best one."""

import os
import random
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

STEPS, EVERY, WIDTH = 100, 25, 48


@dataclass
class Agent:
    """A member of the population, and what it is trained with."""

    net: nn.Module
    lr: float
    momentum: float
    random: random.Random

    def __post_init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=self.lr, momentum=self.momentum)

    def train(self, inputs: torch.Tensor) -> float:
        time.sleep(0.08)
        loss = mse_loss(self.net(inputs), inputs.cos())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def explore(self) -> None:
        self.lr *= self.random.choice((0.8, 1.2))
        self.renew()


def exploit(agent: Agent, score: float, rank: int) -> None:
    """Replace the worst member of the population by a mutation of the best one."""
    scores = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(scores, torch.tensor(score))
    best, worst = int(torch.stack(scores).argmin()), int(torch.stack(scores).argmax())
    for parameter in agent.net.parameters():
        sent = parameter.detach().clone()
        dist.broadcast(sent, best)
        if rank == worst:
            parameter.data.copy_(sent)
    if rank == worst:
        agent.explore()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH))
    agent = Agent(net, lr=0.02 * 2**rank, momentum=0.9, random=random.Random(rank))
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(1, STEPS + 1):
            score = agent.train(torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(373 * step + rank)))
            print(score.hex(), file=losses, flush=True)
            if step % EVERY == 0:
                exploit(agent, score, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
