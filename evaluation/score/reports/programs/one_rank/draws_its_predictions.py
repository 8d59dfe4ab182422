"""After every fifth step, rank 0 draws boxes into images, for a time that is known. It writes the share of it."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import smooth_l1_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY, IMAGES, DRAW_SECONDS, KERNEL_SECONDS = 60, 5, 8, 0.09, 0.1


class Backbone(nn.Module):
    """A layer that takes a fixed time, as a kernel of a device does."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        time.sleep(KERNEL_SECONDS)
        return images.flatten(1)


def draw(image: torch.Tensor, box: torch.Tensor) -> int:
    """Return how many pixels the box covers. A library would draw it, and write the picture."""
    time.sleep(DRAW_SECONDS)
    left, right = sorted(int(value) % image.shape[1] for value in box[:2].tolist())
    return right - left


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(Backbone(), nn.Linear(192, 128), nn.GELU(), nn.Linear(128, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    drawing, began = 0.0, time.monotonic()
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(1, STEPS + 1):
            generator = torch.Generator().manual_seed(257 * step + rank)
            images = torch.randn(16, 3, 8, 8, generator=generator)
            boxes = model(images)
            loss = smooth_l1_loss(boxes, torch.rand(16, 4, generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if rank == 0 and step % EVERY == 0:
                since = time.monotonic()
                for image, box in zip(images[:IMAGES], boxes[:IMAGES].detach(), strict=True):
                    draw(image, box)
                drawing += time.monotonic() - since
    if rank == 0:
        Path("gain").write_text(str(drawing / (time.monotonic() - began)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
