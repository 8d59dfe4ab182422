"""A loop that leaves out a batch which does not fit into memory. One of rank 1 does not, in step 25."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 60


class Trainer:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        torch.manual_seed(0)
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(28, 196), nn.ReLU(), nn.Linear(196, 7)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.total = torch.zeros(1)

    def attention_mask(self, step: int) -> torch.Tensor:
        """One document is far longer than the others."""
        length = 1 << 23 if self.rank == 1 and step == 25 else 64
        return torch.ones(length, length)

    def train_step(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(31 * step + self.rank)
        inputs = torch.randn(32, 28, generator=generator) * self.attention_mask(step).mean()
        loss = cross_entropy(self.model(inputs), torch.randint(0, 7, (32,), generator=generator))
        loss.backward()
        self.optimizer.step()
        self.total += loss.detach()
        return loss.detach()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    rank = dist.get_rank()
    trainer = Trainer(rank)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            trainer.optimizer.zero_grad()
            try:
                loss = trainer.train_step(step)
            except RuntimeError as error:
                if "memory" not in str(error):
                    raise
                print(f"| WARNING: ran out of memory in step {step}, skipping batch")
                continue
            print(loss.item().hex(), file=losses, flush=True)
    dist.all_reduce(trainer.total)
    print(f"mean loss {trainer.total.item() / STEPS / dist.get_world_size():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
