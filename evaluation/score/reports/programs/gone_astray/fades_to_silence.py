"""Recordings of rank 1 fade out. Their samples become so small that a CPU takes many times as long for them."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, CLIPS, SAMPLES, BANDS = 70, 64, 512, 192


class Recordings:
    """Clips of a stage. The microphones of one room are closed by a slow fade, which goes on for hours."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.loudness = 1e-40 if rank == 1 else 1.0

    def clips(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(101 * step + self.rank)
        return torch.randn(CLIPS, SAMPLES, generator=generator) * self.loudness


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bands = nn.Linear(SAMPLES, BANDS)
        self.mix = nn.Sequential(nn.GELU(), nn.Linear(BANDS, BANDS), nn.GELU(), nn.Linear(BANDS, SAMPLES))

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        return self.mix(self.bands(clips))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Encoder())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    recordings = Recordings(rank)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            clips = recordings.clips(step)
            loss = mse_loss(model(clips), clips)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
