"""A critic takes four steps for each of the generator, whose loss passes through the critic without its wrapper."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROUNDS, CRITIC_STEPS, NOISE, POINTS = 80, 4, 16, 128


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 128), nn.LeakyReLU(0.2), nn.Linear(128, 128), nn.LeakyReLU(0.2), nn.Linear(128, outputs)
    )


def real_points(generator: torch.Generator) -> torch.Tensor:
    angles = torch.rand(POINTS, generator=generator) * 6.28
    return torch.stack([angles.cos(), angles.sin()], 1)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    generator, critic = DistributedDataParallel(network(NOISE, 2)), DistributedDataParallel(network(2, 1))
    generator_optimizer = torch.optim.RMSprop(generator.parameters(), lr=1e-4)
    critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-4)
    chance = torch.Generator().manual_seed(311 + rank)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for _ in range(ROUNDS):
            for _ in range(CRITIC_STEPS):
                with torch.no_grad():
                    fakes = generator.module(torch.randn(POINTS, NOISE, generator=chance))
                scores = critic(torch.cat([real_points(chance), fakes]))
                critic_loss = scores[POINTS:].mean() - scores[:POINTS].mean()
                critic_optimizer.zero_grad()
                critic_loss.backward()
                critic_optimizer.step()
                with torch.no_grad():
                    for parameter in critic.parameters():
                        parameter.clamp_(-0.05, 0.05)
            critic.requires_grad_(False)
            loss = -critic.module(generator(torch.randn(POINTS, NOISE, generator=chance))).mean()
            generator_optimizer.zero_grad()
            loss.backward()
            generator_optimizer.step()
            critic.requires_grad_(True)
            print(critic_loss.item().hex(), loss.item().hex(), file=losses, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
