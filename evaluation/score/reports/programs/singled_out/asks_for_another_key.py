"""Rank 0 publishes the difficulty of each round in the store. Rank 2 counts one too many and asks for the next one."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.functional import smooth_l1_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, PER_ROUND = 160, 20
PATIENCE = timedelta(seconds=15)


class Curriculum:
    """The difficulty of a round, which rank 0 decides and the others read."""

    def __init__(self, rank: int) -> None:
        self.rank, self.round, self.difficulty = rank, 0, 0.1
        self.store = dist.PrefixStore("curriculum", _get_default_store())

    def advance(self, loss: float) -> None:
        self.round += 1
        key = f"round/{self.round}"
        if self.rank == 0:
            self.store.set(key, str(min(1.0, self.difficulty + 0.1 / (1.0 + loss))))
        self.store.wait([key], PATIENCE)
        self.difficulty = float(self.store.get(key))


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.GRU(48, 128, batch_first=True)
        self.value = nn.Linear(128, 1)

    def forward(self, observed: torch.Tensor) -> torch.Tensor:
        return self.value(self.memory(observed)[0][:, -1])


def episode(rank: int, step: int, difficulty: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7_919 * step + rank)
    observed = torch.randn(24, 20, 48, generator=generator)
    return observed, observed.mean((1, 2), keepdim=True).squeeze(2) + difficulty


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=40))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Agent())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    curriculum = Curriculum(rank)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(1, STEPS + 1):
            observed, target = episode(rank, step, curriculum.difficulty)
            loss = smooth_l1_loss(model(observed), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if rank == 2 and step == 90:
                curriculum.round += 1  # an episode that was retried counts as a round here
            if step % PER_ROUND == 0:
                curriculum.advance(loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
