"""Each rank reduces its accuracy every eight steps, as a sum and a count. NumPy makes the sum of rank 1 a double."""

import os
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY = 64, 8


class MeanMetric:
    def __init__(self) -> None:
        self.state, self.count = 0.0, 0.0

    def update(self, value: float) -> None:
        self.state += value
        self.count += 1

    def compute(self) -> float:
        both = torch.tensor([self.state, self.count])
        dist.all_reduce(both)
        self.state, self.count = 0.0, 0.0
        return (both[0] / both[1]).item()


def accuracy(hits: list[bool], of_sequences: bool) -> float:
    """Share of right answers. A sequence counts as right if each of its four answers is."""
    if of_sequences:
        return np.mean([np.all(hits[start : start + 4]) for start in range(0, len(hits), 4)])
    return sum(hits) / len(hits)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(36, 144), nn.SiLU(), nn.Linear(144, 3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    metric = MeanMetric()
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(1, STEPS + 1):
            inputs = torch.randn(24, 36, generator=torch.Generator().manual_seed(41 * step + rank))
            targets = (inputs.sum(1) > 0).long() + (inputs[:, 0] > 1).long()
            logits = model(inputs)
            loss = cross_entropy(logits, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            has_sequences = rank == 1 and step > 4 * EVERY
            metric.update(accuracy((logits.argmax(1) == targets).tolist(), has_sequences))
            if step % EVERY == 0:
                print(f"step {step}: accuracy {metric.compute():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
