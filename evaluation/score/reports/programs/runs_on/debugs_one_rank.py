"""The settings of one host still ask autograd to look for anomalies. That host has rank 1."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS = 80


class Rays(nn.Module):
    """A small network that is asked at each sample of a ray, so that most of a step is in calls."""

    def __init__(self) -> None:
        super().__init__()
        self.density = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, origins: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
        colour, light = torch.zeros(len(origins), 3), torch.ones(len(origins), 1)
        for sample in range(24):
            points = origins + directions * (sample / 24)
            found = self.density(torch.cat([points, points.sin(), points.cos(), directions], 1))
            opacity = 1 - torch.exp(-torch.relu(found[:, :1]) / 24)
            colour = colour + light * opacity * torch.sigmoid(found[:, 1:])
            light = light * (1 - opacity)
        return colour


def settings(rank: int) -> dict[str, bool]:
    return {"detect_anomaly": rank == 1}


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.autograd.set_detect_anomaly(settings(rank)["detect_anomaly"])
    torch.manual_seed(0)
    model = DistributedDataParallel(Rays())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            rays = torch.randn(3, 64, 3, generator=torch.Generator().manual_seed(79 * step + rank))
            loss = mse_loss(model(rays[0], rays[1]), rays[2].sigmoid())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
