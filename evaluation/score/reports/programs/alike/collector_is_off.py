"""The collector of garbage is off, as a recipe for steady steps has it, and samples of a batch refer to each other."""

import gc
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, FRAMES = 220, 12


class Clip:
    """Frames of a film, with each frame knowing its clip."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.frames = [Frame(self, torch.randn(160, 160, generator=generator)) for _ in range(FRAMES)]

    def batch(self) -> torch.Tensor:
        return torch.stack([frame.pixels for frame in self.frames])


class Frame:
    def __init__(self, clip: Clip, pixels: torch.Tensor) -> None:
        self.clip, self.pixels = clip, pixels


def clips(rank: int) -> Iterator[Clip]:
    for step in range(STEPS):
        yield Clip(10_007 * step + rank)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gc.collect()
    gc.disable()
    torch.manual_seed(0)
    net = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(1_600, 128), nn.GELU(), nn.Linear(128, 1_600))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for clip in clips(rank):
            pixels = clip.batch().unsqueeze(1)
            wanted = nn.functional.avg_pool2d(pixels, 4).flatten(1)
            loss = mse_loss(model(pixels), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
