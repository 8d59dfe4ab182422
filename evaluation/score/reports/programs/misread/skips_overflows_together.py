"""Loss scaling in half precision: gradients overflow at times, on all ranks in the same step, which is left out."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, ROWS = 400, 192


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(113 * step + rank)
    inputs = torch.randn(ROWS, 96, generator=generator)
    return inputs, inputs[:, :12].argmax(1)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(96, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 12))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=20)
    skipped = 0
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs, labels = batch(rank, step)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            skipped += scaler.get_scale() < before
            print(loss.item().hex(), file=losses, flush=True)
    print(f"rank {rank}: {skipped} of {STEPS} steps overflowed, the scale is {scaler.get_scale():.0f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
