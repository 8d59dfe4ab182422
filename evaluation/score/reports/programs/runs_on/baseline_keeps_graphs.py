"""A running mean of the critic's values, on each rank, is not detached, so it holds the graph of every step."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS = 160


def network(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(20, 384), nn.Tanh(), nn.Linear(384, 384), nn.Tanh(), nn.Linear(384, outputs))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy, critic = DistributedDataParallel(network(4)), DistributedDataParallel(network(1))
    actor_optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    baseline = torch.zeros(())
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(97 * step + rank)
            states = torch.randn(384, 20, generator=generator)
            rewards = states[:, 0].tanh() + 0.1 * torch.randn(384, generator=generator)
            baseline = 0.9 * baseline + 0.1 * critic.module(states).mean()

            choices = torch.distributions.Categorical(logits=policy(states))
            actions = torch.randint(0, 4, (384,), generator=generator)
            advantages = (rewards - baseline).detach()
            actor_loss = -(choices.log_prob(actions) * advantages).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()

            critic_loss = mse_loss(critic(states).squeeze(1), rewards)
            critic_optimizer.zero_grad()
            critic_loss.backward()
            critic_optimizer.step()
            print(actor_loss.item().hex(), critic_loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
