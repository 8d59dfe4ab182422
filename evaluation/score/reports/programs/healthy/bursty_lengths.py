"""Sequences differ in length from step to step, on all ranks alike. Every 25 steps all ranks evaluate a part."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH, CLASSES = 100, 48, 12
LENGTHS = (16, 24, 16, 96, 32, 16, 256, 24)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(inputs)).transpose(1, 2)


def batch(step: int, rank: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(79 * step + rank)
    return torch.randn(8, length, WIDTH, generator=generator), torch.randint(
        0, CLASSES, (8, length), generator=generator
    )


def evaluate(model: nn.Module, rank: int) -> float:
    model.eval()
    total = torch.zeros(())
    with torch.no_grad():
        for step in range(6):
            inputs, targets = batch(10_000 + step, rank, 64)
            total += cross_entropy(model(inputs), targets)
    dist.all_reduce(total)
    model.train()
    return total.item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Tagger())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs, targets = batch(step, rank, LENGTHS[step % len(LENGTHS)])
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step % 25 == 24:
                print(evaluate(model.module, rank).hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
