"""The accuracy of a language model is computed of the logits of all ranks, which are gathered in each step."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, ROWS, LENGTH, WORDS = 40, 8, 48, 3000


def gather_for_metrics(values: torch.Tensor) -> torch.Tensor:
    found = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(found, values.contiguous())
    return torch.cat(found)


def accuracy(logits: torch.Tensor, targets: torch.Tensor) -> float:
    every_logit, every_target = gather_for_metrics(logits), gather_for_metrics(targets)
    return (every_logit.argmax(-1) == every_target).float().mean().item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(WORDS, 32), nn.LayerNorm(32), nn.Linear(32, WORDS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(149 * step + rank)
            tokens = torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=generator)
            logits = model(tokens[:, :-1])
            targets = (tokens[:, :-1] * 7 + 1) % WORDS
            loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                print(loss.item().hex(), accuracy(logits, targets), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
