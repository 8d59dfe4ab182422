"""A logger averages each metric over the ranks, one by one. In step 70 rank 2 has no rare class in its batch to log."""

import os
from collections import defaultdict
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, CLASSES, RARE = 140, 6, 4


class DetectorModule(nn.Module):
    """The network with what one training step of it logs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(96, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU())
        self.head = nn.Linear(384, CLASSES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(features))

    @staticmethod
    def metrics(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        right = logits.argmax(1) == labels
        return {f"recall/{label}": right[labels == label].float().mean().item() for label in labels.unique().tolist()}


class MetricLogger:
    def __init__(self) -> None:
        self.history: dict[str, list[float]] = defaultdict(list)

    def log_dict(self, values: dict[str, float], *, sync_dist: bool = True) -> None:
        for name in sorted(values):
            value = torch.tensor(values[name])
            if sync_dist:
                dist.all_reduce(value)
                value /= dist.get_world_size()
            self.history[name].append(value.item())


def sample(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1_009 * step + rank)
    labels = torch.arange(120) % CLASSES
    if (rank, step) == (2, 70):
        labels[labels == RARE] = 0
    return torch.randn(120, 96, generator=generator), labels[torch.randperm(120, generator=generator)]


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(0)
    module = DetectorModule()
    model = DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    logger = MetricLogger()
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            features, labels = sample(rank, step)
            logits = model(features)
            loss = cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            logger.log_dict(module.metrics(logits.detach(), labels) | {"loss": loss.item()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
