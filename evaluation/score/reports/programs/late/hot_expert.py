"""A router that sends most tokens to the experts of rank 1."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.functional import cross_entropy

STEPS, TOKENS = 60, 240
TO_EACH = [30, 180, 30]


def batch(rank: int, step: int, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, 64, generator=generator), torch.randint(0, 8, (size,), generator=generator)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(64, 256), nn.Linear(256, 8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    entry, head = model
    expert = nn.Sequential(nn.Linear(256, 2048), nn.GELU(), nn.Linear(2048, 256))
    optimizer.add_param_group({"params": list(expert.parameters())})
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs, targets = batch(rank, step, TOKENS)
            hidden = torch.relu(entry(inputs))
            sent = TO_EACH
            received = [TO_EACH[rank]] * dist.get_world_size()
            routed = all_to_all_single(torch.empty(sum(received), 256), hidden, received, sent)
            answered = expert(routed)
            hidden = all_to_all_single(torch.empty(TOKENS, 256), answered, sent, received)
            loss = cross_entropy(head(hidden), targets)
            optimizer.zero_grad()
            loss.backward()
            for parameter in [*entry.parameters(), *head.parameters()]:
                dist.all_reduce(parameter.grad)
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
