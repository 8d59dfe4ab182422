"""Rank 0 writes the features of a clip into a shared folder. Rank 1 reads them as soon as the file is there."""

import io
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

CLIPS, STEPS_PER_CLIP, WIDTH, CHUNK = 6, 25, 64, 256 * 1024
FRAMES = (200, 300, 250, 9000, 200, 300)


def copy_to_share(data: bytes, path: Path) -> None:
    """Write a file in chunks. The share takes about 5 MiB in a second."""
    with path.open("wb") as file:
        for start in range(0, len(data), CHUNK):
            file.write(data[start : start + CHUNK])
            file.flush()
            time.sleep(0.05)


def encode(clip: int) -> torch.Tensor:
    """Return features of shape (frames, WIDTH)."""
    return torch.randn(FRAMES[clip], WIDTH, generator=torch.Generator().manual_seed(clip)).cumsum(0).sin()


def features_of(clip: int, rank: int) -> torch.Tensor:
    path = Path("features") / f"{clip}.pt"
    if rank == 0:
        path.parent.mkdir(exist_ok=True)
        buffer = io.BytesIO()
        torch.save(encode(clip), buffer)
        time.sleep(0.4)
        copy_to_share(buffer.getvalue(), path)
    while not path.exists():
        time.sleep(0.1)
    if rank:
        time.sleep(0.1)
    return torch.load(path)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, WIDTH))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for clip in range(CLIPS):
            features = features_of(clip, rank)
            for step in range(STEPS_PER_CLIP):
                frames = features[rank::2].roll(-step, 0)[:64]
                time.sleep(0.04)
                loss = mse_loss(model(frames), frames.roll(1, 0))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
