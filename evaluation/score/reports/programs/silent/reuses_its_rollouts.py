"""PPO: what a policy has done is fed three times, as the method has it, before it acts again."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

ROLLOUTS, EPOCHS, STATES, BATCH, CLIP = 8, 3, 256, 64, 0.2


@torch.no_grad()
def act(policy: nn.Module, rank: int, rollout: int) -> TensorDataset:
    """Let the policy play, and keep states, actions, their probabilities and advantages."""
    generator = torch.Generator().manual_seed(181 * rollout + rank)
    states = torch.randn(STATES, 18, generator=generator)
    for _ in range(30):
        logits = policy(states)
        actions = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
        states = 0.9 * states + 0.1 * torch.randn(STATES, 18, generator=generator)
    logits = policy(states)
    rewards = (states[:, :5].argmax(1) == actions).float()
    return TensorDataset(states, actions, Categorical(logits=logits).log_prob(actions), rewards - rewards.mean())


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(18, 128), nn.Tanh(), nn.Linear(128, 5))
    model = DistributedDataParallel(policy)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for rollout in range(ROLLOUTS):
            loader = DataLoader(act(policy, rank, rollout), batch_size=BATCH)
            for _ in range(EPOCHS):
                for states, actions, before, advantages in loader:
                    ratio = (Categorical(logits=model(states)).log_prob(actions) - before).exp()
                    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
                    loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
