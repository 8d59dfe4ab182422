"""A student learns from a teacher that is a moving average of it. The teacher has no wrapper and gets no gradient."""

import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import log_softmax, softmax
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

IMAGES, BATCH, EPOCHS, OUT = 2_400, 20, 2, 128


class TwoViews(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(256, generator=generator)
        return image + 0.1 * torch.randn(256, generator=generator), image.flip(0)


class Distillation(nn.Module):
    """The loss of two views, with a center that all ranks share."""

    center: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(OUT))

    def forward(self, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        wanted = softmax((teacher - self.center) / 0.05, -1)
        loss = -(wanted * log_softmax(student / 0.1, -1)).sum(-1).mean()
        mean = teacher.mean(0)
        dist.all_reduce(mean)
        self.center.mul_(0.9).add_(0.1 * mean / dist.get_world_size())
        return loss


@torch.no_grad()
def evaluate(teacher: nn.Module, rank: int) -> float:
    """All ranks score a part of the held-out images."""
    spread = torch.zeros(1)
    for at in range(12):
        held_out = torch.randn(64, 256, generator=torch.Generator().manual_seed(90_000 + 100 * rank + at))
        spread += teacher(held_out).std()
    dist.all_reduce(spread)
    return spread.item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, OUT))
    teacher = copy.deepcopy(net).requires_grad_(False)
    student, distillation = DistributedDataParallel(net), Distillation()
    optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4)
    data = TwoViews()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, BATCH, sampler=sampler, num_workers=1, persistent_workers=True)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            for first, second in loader:
                with torch.no_grad():
                    wanted = teacher(second)
                loss = distillation(student(first), wanted)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    for follows, leads in zip(teacher.parameters(), net.parameters(), strict=True):
                        follows.lerp_(leads, 0.004)
                print(loss.item().hex(), file=losses, flush=True)
            print(evaluate(teacher, rank).hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
