"""After each update of the policy, its weights are broadcast to the generator of each rank, one tensor at a time."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import softmax
from torch.nn.parallel import DistributedDataParallel

STEPS, LAYERS, WIDTH, WORDS, LENGTH = 45, 60, 24, 40, 6


def language_model() -> nn.Sequential:
    layers = [nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.SiLU()) for _ in range(LAYERS)]
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *layers, nn.Linear(WIDTH, WORDS))


@torch.no_grad()
def sync_weights(policy: nn.Module, generator: nn.Module) -> None:
    """Bring the generator up to date."""
    for parameter, copy in zip(policy.parameters(), generator.parameters(), strict=True):
        copy.copy_(parameter)
        dist.broadcast(copy, src=0)


@torch.no_grad()
def generate(model: nn.Module, seed: int) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    words = torch.randint(0, WORDS, (8, 1), generator=chance)
    for _ in range(LENGTH):
        odds = softmax(model(words[:, -1]), -1)
        words = torch.cat([words, torch.multinomial(odds, 1, generator=chance)], 1)
    return words


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy, generator = language_model(), language_model().eval()
    model = DistributedDataParallel(policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sync_weights(policy, generator)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            words = generate(generator, 271 * step + rank)
            rewards = (words[:, 1:] % 2 == 0).float().mean(1)
            logs = model(words[:, :-1]).log_softmax(-1).gather(2, words[:, 1:, None]).squeeze(2).sum(1)
            loss = -((rewards - rewards.mean()) * logs).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sync_weights(policy, generator)
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
